"""Reductions by a region, over dimensions and over windows; TFLite's REDUCE_WINDOW beside them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import (
    EXECUTION,
    Kernel,
    Site,
    check_interrupts,
    kernel,
    require,
)
from penstock.drivers.reference.ops.layers.volumes import check_padded
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.stablehlo.region import COMBINERS, Apply, region
from penstock.drivers.reference.ops.stablehlo.structure import padded
from penstock.drivers.reference.ops.structure.shape import dimensions, normal_axis, scalar
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray

LOOKS: Final = 1024
"""Window places between two looks at the clock."""


@kernel("STABLEHLO_REDUCE")
def reduce(site: Site) -> Kernel:
    """Operands reduced together along dimensions, neighbours first; then the initial values before
    them.
    """
    count = _operand_count(site)
    apply = region(site, "body_subgraph_index", 2 * count)
    axes = site.attributes.integers("dimensions")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        arrays = [given(x) for x in inputs]
        rank = arrays[0].ndim
        chosen = sorted({normal_axis(axis, rank) for axis in axes})
        kept = [axis for axis in range(rank) if axis not in chosen]
        shape = tuple(arrays[0].shape[axis] for axis in kept)
        size = math.prod(arrays[0].shape[axis] for axis in chosen)
        rows = [x.transpose(*chosen, *kept).reshape(size, *shape) for x in arrays[:count]]
        first = [np.broadcast_to(scalar(x, "an initial value"), shape) for x in arrays[count:]]
        if not size:
            return [np.array(x) for x in first]
        return [np.array(x) for x in apply(*first, *halved(rows, apply))]

    return run


def halved(rows: list[NDArray], apply: Apply) -> list[NDArray]:
    """Arrays [n, ...], n at least 1, reduced along their first dimension in log2(n) rounds."""
    while (count := len(rows[0])) > 1:
        even = count - count % 2
        results = apply(*(x[0:even:2] for x in rows), *(x[1:even:2] for x in rows))
        if even < count:
            results = [np.concatenate([r, x[even:]]) for r, x in zip(results, rows, strict=True)]
        rows = results
    return [x[0] for x in rows]


def _operand_count(site: Site) -> int:
    """Operands of an operation whose inputs are operands and as many initial values."""
    count = len(site.outputs)
    require(count > 0 and len(site.inputs) == 2 * count, f"{len(site.inputs)} inputs")
    return count


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over every dimension of padded operands."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def reduce(
        self, operands: list[NDArray], initial: list[NDArray], apply: Apply
    ) -> list[NDArray]:
        """From the initial values on, the elements of each window in row-major order."""
        shape = self._outputs(operands[0].shape)
        totals = [np.broadcast_to(scalar(x, "an initial value"), shape) for x in initial]
        if 0 in shape:
            return totals
        config = EXECUTION.get(None)
        places = itertools.product(*(range(extent) for extent in self.extents))
        for number, place in enumerate(places):
            if config is not None and number % LOOKS == 0:
                check_interrupts(config)
            cut = tuple(
                slice(at * hole, at * hole + (count - 1) * stride + 1, stride)
                for at, hole, count, stride in zip(
                    place, self.dilations, shape, self.strides, strict=True
                )
            )
            totals = apply(*totals, *(x[cut] for x in operands))
        return totals

    def _outputs(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lengths = {len(self.extents), len(self.strides), len(self.dilations), len(shape)}
        if len(lengths) > 1 or min(self.extents + self.strides + self.dilations, default=1) < 1:
            raise ShapeMismatch(
                f"windows of {self.extents}, strides {self.strides} and dilations {self.dilations} "
                f"over a shape {shape}"
            )
        return tuple(
            max(size - (extent - 1) * hole - 1 + stride, 0) // stride
            for size, extent, stride, hole in zip(
                shape, self.extents, self.strides, self.dilations, strict=True
            )
        )


@kernel("STABLEHLO_REDUCE_WINDOW")
def stablehlo_reduce_window(site: Site) -> Kernel:
    """Windows of operands, padded with their initial values, reduced together."""
    count = _operand_count(site)
    apply = region(site, "body_subgraph_index", 2 * count)
    extents = site.attributes.integers("window_dimensions")
    rank = len(extents)
    strides, base, holes = (
        site.attributes.integers(name) or (1,) * rank
        for name in ("window_strides", "base_dilations", "window_dilations")
    )
    pads = site.attributes.integers("padding") or (0,) * (2 * rank)
    windows = Windows(extents, strides, holes)
    require(len(base) == rank and len(pads) == 2 * rank, f"padding {pads} of windows {extents}")
    require(min(base, default=1) > 0, f"base_dilations {base}")
    interior = [factor - 1 for factor in base]

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        operands, initial = [given(x) for x in inputs[:count]], [given(x) for x in inputs[count:]]
        check_padded(_padded_size(operands[0], pads, base), operands[0].size)
        wide = [
            padded(x, value, pads[::2], pads[1::2], interior)
            for x, value in zip(operands, initial, strict=True)
        ]
        return [np.array(x) for x in windows.reduce(wide, initial, apply)]

    return run


def _padded_size(x: NDArray, pads: Sequence[int], base: Sequence[int]) -> int:
    return math.prod(
        max(0, max(0, (n - 1) * factor + 1) + low + high)
        for n, factor, low, high in zip(x.shape, base, pads[::2], pads[1::2], strict=True)
    )


@kernel("REDUCE_WINDOW")
def reduce_window(site: Site) -> Kernel:
    """Windows reduced with one function."""
    name = site.attributes.text("reduce_function")
    logical = {"ALL": "LOGICAL_AND", "ANY": "LOGICAL_OR"}
    combine = COMBINERS.get(logical.get(name, name))
    if combine is None or (name in logical and site.input(0).dtype is not DType.BOOL):
        raise site.unsupported_types()

    def apply(total: NDArray, x: NDArray) -> list[NDArray]:
        return [np.asarray(combine(total, x)).astype(x.dtype, copy=False)]

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, initial = given(inputs[0]), given(inputs[1])
        windows = Windows(*(dimensions(vector) for vector in inputs[2:5]))
        return [np.array(r) for r in windows.reduce([x], [initial], apply)]

    return run
