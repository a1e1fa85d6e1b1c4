"""StableHLO's dot_general and convolution: sums of products in the type of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.layers.convolution import convolve
from penstock.drivers.reference.layers.padding import Steps
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.stablehlo.elementwise import ANY, SMALL
from penstock.drivers.reference.stablehlo.structure import padded
from penstock.drivers.reference.structure.shape import checked
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, DType, NDArray

EXACT: Final = 2.0**53
"""Integer sums below this are exact in float64, in any order."""


def _sum_dtype(site: Site) -> np.dtype[Any]:
    """The type of sums: the result's type, but float32 for small floats, and int64 for integers,
    whose low bits are the same at any width.
    """
    made = site.output().dtype
    for operand in (site.input(0), site.input(1), site.output()):
        site.require_types(operand.dtype in ANY and operand.quantization is None)
    if made in SMALL:
        return np.dtype(np.float32)
    return np.dtype(np.int64) if made.is_integer else made.numpy


def product(left: NDArray, right: NDArray) -> NDArray:
    """Products of the last two dimensions; of integers through BLAS if that is exact."""
    if left.dtype == np.int64:
        reach = _magnitude(left) * _magnitude(right) * left.shape[-1]
        if reach < EXACT:
            sums: NDArray = np.matmul(left.astype(np.float64), right.astype(np.float64))
            return sums.astype(np.int64)
    return np.asarray(np.matmul(left, right))


def _magnitude(x: NDArray) -> float:
    return max(abs(float(x.max(initial=0))), abs(float(x.min(initial=0))))


def multiply(left: NDArray, columns: NDArray) -> NDArray:
    """[rows, depth] times [columns, depth] to sums [rows, columns]."""
    return product(left, columns.T)


@kernel("STABLEHLO_DOT_GENERAL")
def dot_general(site: Site) -> Kernel:
    """Products summed: [batching ..., free left ..., free right ...]."""
    attributes, target, wide = site.attributes, site.output().dtype.numpy, _sum_dtype(site)
    batch = [attributes.integers(f"{side}_batching_dimensions") for side in ("lhs", "rhs")]
    inner = [attributes.integers(f"{side}_contracting_dimensions") for side in ("lhs", "rhs")]

    def run(inputs: Inputs) -> Outputs:
        (a, free_a), (b, free_b) = (
            _matrices(given(x), *numbers, wide)
            for x, numbers in zip(inputs, zip(batch, inner, strict=True), strict=True)
        )
        if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[2]:
            raise ShapeMismatch("batching or contracting dimensions of two sizes")
        sizes = [given(inputs[0]).shape[axis] for axis in batch[0]]
        shape = checked((*sizes, *free_a, *free_b), "a product")
        sums = product(a, b.transpose(0, 2, 1))
        return (sums.reshape(shape).astype(target, copy=False),)

    return run


def _matrices(
    x: NDArray, batch: Sequence[int], inner: Sequence[int], dtype: np.dtype[Any]
) -> tuple[NDArray, tuple[int, ...]]:
    """*x* as [batching, free, contracting], and the sizes of its free dimensions."""
    used = [*batch, *inner]
    if len(set(used)) != len(used) or any(not 0 <= axis < x.ndim for axis in used):
        raise ShapeMismatch(f"dimension numbers {tuple(used)} of an operand of shape {x.shape}")
    free = [axis for axis in range(x.ndim) if axis not in used]
    sizes = [tuple(x.shape[axis] for axis in axes) for axes in (batch, free, inner)]
    ordered = x.transpose(*batch, *free, *inner).astype(dtype)
    return ordered.reshape([math.prod(part) for part in sizes]), sizes[1]


def _order(attributes: Attributes, name: str, first: str, second: str) -> tuple[int, ...]:
    """The dimensions (*first*, spatial ..., *second*) of one operand or of the result."""
    ends = [attributes.integer(f"{name}_{end}_dimension") for end in (first, second)]
    order = ends[0], *attributes.integers(f"{name}_spatial_dimensions"), ends[1]
    require(sorted(order) == list(range(len(order))), f"{name} dimension numbers {order}")
    return order


GEOMETRY: Final = (
    *(("window_strides", 1), ("padding", 0)),
    *(("lhs_dilation", 1), ("rhs_dilation", 1), ("window_reversal", 0)),
)
"""A convolution's attributes, a number (padding: two) for each spatial dimension, by default."""


class Geometry(NamedTuple):
    """The values of `GEOMETRY`."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    base: tuple[int, ...]
    holes: tuple[int, ...]
    reversal: tuple[int, ...]

    @classmethod
    def of(cls, attributes: Attributes, rank: int) -> Geometry:
        found = []
        for name, default in GEOMETRY:
            count = 2 * rank if name == "padding" else rank
            found.append(attributes.integers(name) or (default,) * count)
            require(len(found[-1]) == count, f"{name} {found[-1]} for {rank} spatial dimensions")
        geometry = cls(*found)
        least = min((*geometry.strides, *geometry.base, *geometry.holes), default=1)
        require(least > 0, "strides or dilations below 1")
        return geometry

    def padded(self, image: NDArray) -> NDArray:
        """*image* [batch, spatial ..., depth] dilated and padded, or cropped."""
        low, high = (0, *self.padding[::2], 0), (0, *self.padding[1::2], 0)
        interior = (0, *(factor - 1 for factor in self.base), 0)
        return padded(image, np.zeros((), image.dtype), low, high, interior, bounded=True)


@kernel("STABLEHLO_CONVOLUTION")
def convolution(site: Site) -> Kernel:
    """Convolution in any layout, of groups of features or of batches."""
    attributes, target, wide = site.attributes, site.output().dtype.numpy, _sum_dtype(site)
    require(site.output().dtype is not DType.BOOL, "a convolution of booleans")
    images = _order(attributes, "input", "batch", "feature")
    kernels = _order(attributes, "kernel", "output_feature", "input_feature")
    results = _order(attributes, "output", "batch", "feature")
    rank = len(images) - 2
    require(len(images) == len(kernels) == len(results), "spatial dimensions differ")
    geometry = Geometry.of(attributes, rank)
    groups, batches = (
        attributes.integer(f"{name}_group_count") or 1 for name in ("feature", "batch")
    )
    require(min(groups, batches) > 0 and 1 in {groups, batches}, f"{groups} and {batches} groups")

    def run(inputs: Inputs) -> Outputs:
        image, filters = given(inputs[0]), given(inputs[1])
        if not image.ndim == filters.ndim == rank + 2:
            raise ShapeMismatch(f"a convolution of shapes {image.shape} and {filters.shape}")
        image, filters = image.transpose(images), filters.transpose(kernels)
        flipped = tuple(1 + at for at, flag in enumerate(geometry.reversal) if flag)
        filters = np.flip(filters, flipped).astype(wide)
        _check_groups(image.shape, filters.shape, groups, batches)
        image = np.ascontiguousarray(geometry.padded(image.astype(wide)))
        parts = zip(np.split(image, batches), np.split(filters, batches), strict=True)
        sums = np.concatenate([_convolved(*part, geometry) for part in parts], axis=-1)
        return (np.ascontiguousarray(sums.transpose(np.argsort(results))).astype(target),)

    return run


def _check_groups(
    image: tuple[int, ...], filters: tuple[int, ...], groups: int, batches: int
) -> None:
    if image[0] % batches or filters[0] % (groups * batches) or image[-1] != filters[-1] * groups:
        raise ShapeMismatch(
            f"{groups} groups of features and {batches} of batches of images {image} "
            f"and filters {filters} (batch or output, spatial, depth)"
        )


def _convolved(image: NDArray, filters: NDArray, geometry: Geometry) -> NDArray:
    """[batch, outputs ..., channels], in the type of its operands."""
    steps = Steps(geometry.strides, geometry.holes, "VALID")
    window = steps.over(image.shape, filters.shape[1:-1])
    shape = len(image), *(axis.outputs for axis in window), len(filters)
    sums = np.zeros(checked(shape, "a convolution"), filters.dtype)
    if filters.size and image.size:
        cut = tuple(slice(axis.padded) for axis in window)
        columns = filters.reshape(len(filters), -1)
        convolve(
            image[(slice(None), *cut)],
            columns,
            window,
            sums,
            lambda sums, out: np.copyto(out, sums),
            multiply,
        )
    return sums
