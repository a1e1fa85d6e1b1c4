"""Comparisons, boolean logic and selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.drivers.reference.ops.elements.pairs import with_pair
from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.ops.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from penstock.drivers.reference.ops.numerics.tables import (
    QUANTIZED_8,
    by_bits,
    look_up,
    stored_values,
)
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}
ORDERED: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.INT32, DType.INT64}
)


@kernel(*COMPARISONS)
def compare(site: Site) -> Kernel:
    """Real values compared; of quantised ones, what fixed point leaves of them.

    Scales of 1 and more, which TFLite's kernels do not define, compare like the others.
    """
    name, dtype = site.operation.type, site.input(0).dtype
    function = COMPARISONS[name]
    if dtype is not site.input(1).dtype:
        raise site.unsupported_types()
    equality = name in {"EQUAL", "NOT_EQUAL"}
    scaled = dtype in QUANTIZED_8 or (
        equality and dtype is DType.INT16 and site.input(0).quantization is not None
    )
    if scaled:
        first, second = (_scale(site.input(i), f"input {i}") for i in (0, 1))
        return with_pair(lambda a, b: function(first(a), second(b)))
    if dtype not in ORDERED and not (equality and dtype in {DType.BOOL, DType.STRING}):
        raise site.unsupported_types()
    return with_pair(lambda a, b: function(a, b).astype(bool))


def _scale(operand: Operand, role: str) -> Callable[[NDArray], NDArray]:
    """Stored values at 2**-8 of real ones, as integers."""
    quantization = tensor_quantization(operand, role)
    multiplier = quantize_multiplier(quantization.scale)

    def scale(stored: NDArray) -> NDArray:
        wide = (stored.astype(np.int64) - quantization.zero_point) << 8
        return multiply_by_quantized_multiplier(wide, *multiplier)

    if operand.dtype not in QUANTIZED_8:
        return scale
    table = by_bits(scale(stored_values(operand.dtype)), operand.dtype)
    return lambda stored: look_up(table, stored)


@kernel("LOGICAL_AND", "LOGICAL_OR")
def logical(site: Site) -> Kernel:
    """Boolean `and`, `or`."""
    return with_pair(np.logical_and if site.operation.type == "LOGICAL_AND" else np.logical_or)


@kernel("LOGICAL_NOT")
def logical_not(site: Site) -> Kernel:
    """Boolean `not`."""
    require(site.input(0).dtype is DType.BOOL, "LOGICAL_NOT of another type than bool")
    return _logical_not


def _logical_not(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
    return (np.logical_not(np.asarray(inputs[0])),)


@kernel("SELECT", "SELECT_V2")
def select(site: Site) -> Kernel:
    """`a` where the condition holds, else `b`: SELECT of one shape, with a condition of rank 1 that
    picks rows, or of rank 0; SELECT_V2 broadcasts.
    """
    require(
        site.input(1).dtype is site.input(2).dtype is site.output().dtype, "SELECT of two types"
    )
    old = site.operation.type == "SELECT"

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        condition, a, b = (np.asarray(x) for x in inputs)
        if old:
            if a.shape != b.shape:
                raise ShapeMismatch(f"SELECT from shapes {a.shape} and {b.shape}")
            if condition.ndim == 1 and a.ndim > 1:
                condition = condition.reshape(-1, *[1] * (a.ndim - 1))
        return (np.where(condition, a, b),)

    return run
