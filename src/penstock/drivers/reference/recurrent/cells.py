"""Parts that recurrent cells share: fused activations, products with float, hybrid or diagonal
weights, and sequences, batch or time first, forward or backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, require
from penstock.drivers.reference.numerics import hybrid
from penstock.drivers.reference.numerics.products import Columns
from penstock.drivers.reference.numerics.requantize import BOUNDS, clamp_in_place
from penstock.drivers.reference.numerics.weights import given
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import is_static

Activation: TypeAlias = Callable[[NDArray], NDArray]
"""Maps real values to real values of the same shape; may overwrite its argument."""


def logistic(x: NDArray) -> NDArray:
    """1 / (1 + exp(-x)), in place."""
    # NumPy 2.4's `negative` reads wrong elements if it writes to a view of one element per row.
    np.multiply(x, np.float32(-1), out=x)
    np.exp(x, out=x)
    x += np.float32(1)
    return np.reciprocal(x, out=x)


FUNCTIONS: Final[dict[str, Activation]] = {
    "TANH": lambda x: np.tanh(x, out=x),
    "SIGMOID": logistic,
    "SIGN_BIT": lambda x: np.signbit(x).astype(np.float32),
}
"""Activations that are not clamps. SIGMOID is NNAPI's, SIGN_BIT TFLite's."""


def activation_function(name: str) -> Activation:
    """The fused activation of this name. Raises `Unsupported` for an unknown one."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    require(name in BOUNDS, f"the fused activation {name}")
    return lambda values: clamp_in_place(values, name)


REAL: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
HYBRID: Final = frozenset({DType.INT8, DType.UINT8})
"""Types of the integer weights of hybrid products."""

Arrays: TypeAlias = Mapping[int, NDArray]
"""The inputs that are present, by position."""

Product: TypeAlias = Callable[[NDArray], NDArray]
"""Multiplies vectors [rows, depth] float32 by weights. Returns new sums [rows, columns] float32."""


States: TypeAlias = Sequence[NDArray]


class Direction(Protocol):
    """One direction of a cell, with its parameters prepared."""

    def run(
        self, source: NDArray, auxiliary: NDArray | None, states: States, *, backward: bool = False
    ) -> tuple[NDArray, States]:
        """Outputs [time, batch, outputs] for *source* [time, batch, size], and the states
        afterwards. *auxiliary* [time, batch, its size] is used if the cell has weights for it.
        """
        ...


def single_direction(
    site: Site,
    one_step: str,
    parameters: Sequence[int],
    states: Sequence[int],
    make: Callable[[Arrays], Direction],
) -> Kernel:
    """The kernel of the cell that *make* builds from its *parameters*.

    It computes one step for the operation type *one_step*, and a sequence for other types.
    *parameters* and *states* are positions of inputs.
    """
    sequence = site.operation.type != one_step
    time_major = sequence and site.attributes.flag("time_major")

    def prepare(arrays: Arrays) -> Kernel:
        cell = make(arrays)

        def run(inputs: Inputs) -> Outputs:
            source, before = given(inputs[0]), [given(inputs[i]) for i in states]
            steps = time_first(source, time_major=time_major) if sequence else source[None]
            outputs, after = cell.run(steps, None, before)
            result = as_stored(outputs, time_major=time_major) if sequence else outputs[0]
            return real_results(site, [result, *_shaped(after, before)])

        return run

    return with_parameters(site, parameters, prepare)


def both_directions(
    site: Site,
    parameters: Sequence[int],
    states: Sequence[int],
    auxiliary: int,
    weighted: bool,
    make: Callable[[Arrays], tuple[Direction, Direction]],
) -> Kernel:
    """The kernel of a forward and a backward cell, with half of the *states* for each.

    A *weighted* input *auxiliary* joins both directions. Others are the backward cell's input.
    """
    time_major, merged = (site.attributes.flag(n) for n in ("time_major", "merge_outputs"))
    if weighted:
        site.input(auxiliary)

    def prepare(arrays: Arrays) -> Kernel:
        forward, backward = make(arrays)

        def run(inputs: Inputs) -> Outputs:
            source, extra = time_first(given(inputs[0]), time_major=time_major), None
            if site.has(auxiliary):
                extra = time_first(given(inputs[auxiliary]), time_major=time_major)
            other = source if weighted or extra is None else extra
            before = [given(inputs[i]) for i in states]
            half = len(before) // 2
            ahead, ahead_after = forward.run(source, extra, before[:half])
            back, back_after = backward.run(other, extra, before[half:], backward=True)
            results = [np.concatenate([ahead, back], axis=2)] if merged else [ahead, back]
            stored = [as_stored(r, time_major=time_major) for r in results]
            return real_results(site, [*stored, *_shaped([*ahead_after, *back_after], before)])

        return run

    return with_parameters(site, parameters, prepare)


def _shaped(after: States, before: States) -> list[NDArray]:
    """The states in their original shapes."""
    return [new.reshape(old.shape) for new, old in zip(after, before, strict=True)]


def with_parameters(
    site: Site, positions: Sequence[int], prepare: Callable[[Arrays], Kernel]
) -> Kernel:
    """The kernel that *prepare* builds from the present inputs among *positions*: once if all are
    constant, otherwise in each run.

    If shapes are known, errors of *prepare* are raised when the model is prepared.
    """
    present = [i for i in positions if site.has(i)]
    constants = {i: value for i in present if (value := site.constant(i)) is not None}
    if len(constants) == len(present):
        return prepare(constants)
    zeros = {i: zero for i in present if (zero := _zeros(site.input(i))) is not None}
    if len(zeros) == len(present):
        prepare(zeros)
    return lambda inputs: prepare({i: given(inputs[i]) for i in present})(inputs)


def check_real(site: Site, *positions: int) -> None:
    """Raises `Unsupported` unless the inputs at *positions* and all outputs are real."""
    operands = [*(site.input(i) for i in positions), *site.outputs]
    site.require_types(all(o.dtype in REAL for o in operands))


def real_results(site: Site, results: Sequence[NDArray]) -> list[NDArray]:
    """*results* for all outputs of the operation, in the outputs' types."""
    pairs = zip(results, site.outputs, strict=False)
    return [array.astype(operand.dtype.numpy, copy=False) for array, operand in pairs]


def _zeros(operand: Operand) -> NDArray | None:
    shape = operand.shape
    if shape is None or not is_static(shape):
        return None
    return np.broadcast_to(np.zeros((), operand.dtype.numpy), [d or 0 for d in shape])


def real_array(array: NDArray) -> NDArray:
    """Real values as float32."""
    return array.astype(np.float32, copy=False)


def real_values(array: NDArray, operand: Operand) -> NDArray:
    """A vector of parameters as float32; integers are multiplied by their scale."""
    if operand.dtype in HYBRID:
        return hybrid.weight_values(array, operand).astype(np.float32) * hybrid.weight_scales(
            operand, 0
        )
    kind = operand.dtype
    require(kind in REAL, f"parameters of type {kind.value} beside real activations")
    return real_array(array)


def real_product(
    site: Site, positions: Sequence[int], arrays: Arrays, *, asymmetric: bool
) -> Product:
    """The product with the weights [columns, depth] at *positions*, side by side.

    Weights of one dimension are the diagonal of a square matrix. Raises `Unsupported` for types
    that are neither real nor hybrid.
    """
    operands = [site.input(i) for i in positions]
    weights = [arrays[i] for i in positions]
    if any(w.ndim != 2 for w in weights) or len({o.dtype in HYBRID for o in operands}) > 1:
        parts = [
            partial(np.multiply, real_values(w, o))
            if w.ndim == 1
            else _product([w], [o], asymmetric)
            for w, o in zip(weights, operands, strict=True)
        ]
        return lambda rows: np.concatenate([part(rows) for part in parts], axis=1)
    return _product(weights, operands, asymmetric)


def _product(weights: list[NDArray], operands: list[Operand], asymmetric: bool) -> Product:
    if operands[0].dtype in HYBRID:
        return _hybrid(weights, operands, asymmetric)
    for kind in (operand.dtype for operand in operands):
        require(kind in REAL, f"weights of type {kind.value} beside real activations")
    stacked = np.concatenate([real_array(w) for w in weights])
    columns = np.ascontiguousarray(stacked.T)
    return lambda rows: np.matmul(rows, columns)


def _hybrid(weights: list[NDArray], operands: list[Operand], asymmetric: bool) -> Product:
    """The product of rows quantised at run time, times the row's and the weights' scale."""
    values = [hybrid.weight_values(w, o) for w, o in zip(weights, operands, strict=True)]
    columns = Columns(np.concatenate(values), hybrid.reach_of(asymmetric=asymmetric)).values
    across = np.ascontiguousarray(columns.T)
    scales = np.concatenate(
        [
            np.broadcast_to(hybrid.weight_scales(o, 0), len(w))
            for w, o in zip(weights, operands, strict=True)
        ]
    )

    def product(vectors: NDArray) -> NDArray:
        rows, steps = hybrid.centred_rows(vectors, asymmetric=asymmetric)
        sums: NDArray = np.matmul(rows, across)
        sums *= steps * scales
        return sums

    def wide_product(vectors: NDArray) -> NDArray:
        rows, steps = hybrid.centred_rows(vectors, asymmetric=asymmetric)
        sums: NDArray = np.matmul(rows.astype(across.dtype), across).astype(np.float32)
        sums *= steps * scales
        return sums

    return product if across.dtype == np.float32 else wide_product


def time_first(sequence: NDArray, *, time_major: bool) -> NDArray:
    """*sequence* as [time, batch, size]."""
    return sequence if time_major else np.swapaxes(sequence, 0, 1)


def as_stored(sequence: NDArray, *, time_major: bool) -> NDArray:
    """The inverse of `time_first`, contiguous."""
    return np.ascontiguousarray(time_first(sequence, time_major=time_major))


def rows_of(sequence: NDArray) -> NDArray:
    """[time, batch, size] as rows [time * batch, size], contiguous."""
    steps, batch, size = sequence.shape
    return np.ascontiguousarray(sequence).reshape(steps * batch, size)
