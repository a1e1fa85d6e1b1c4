"""Elements selected or written by index, and indexes of elements."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Outputs, Site, direct, types
from penstock.drivers.reference.structure.shape import checked, dimensions, normal_axis, scalar
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray

ADDED: Final = types("float32 float64 int8 uint8 int16 int32 int64 bool")


@direct("GATHER")
def gather(site: Site, inputs: Inputs) -> Outputs:
    """Selects slices along an axis by index; leading batch dimensions are shared."""
    axis, batches = site.attributes.integer("axis"), site.attributes.integer("batch_dims")
    x, indices = np.asarray(inputs[0]), np.asarray(inputs[1])
    along = normal_axis(axis, x.ndim)
    shared = batches + indices.ndim if batches < 0 else batches
    if not 0 <= shared <= min(along, indices.ndim) or x.shape[:shared] != indices.shape[:shared]:
        raise ShapeMismatch(f"GATHER with {shared} batch dimensions along axis {along}")
    _check_indices(indices, x.shape[along])
    if shared == 0:
        return (np.asarray(x.take(indices, along, mode="clip"), x.dtype),)
    return (_gather_batches(x, indices, along, shared),)


def _gather_batches(x: NDArray, indices: NDArray, along: int, shared: int) -> NDArray:
    batch = math.prod(x.shape[:shared])
    outer, rest = x.shape[shared:along], x.shape[along:]
    flat = x.reshape(batch, math.prod(outer), *rest)
    picked = indices.reshape(batch, math.prod(indices.shape[shared:]))
    taken = flat[
        np.arange(batch)[:, None, None], np.arange(flat.shape[1])[:, None], picked[:, None]
    ]
    return taken.reshape(*x.shape[:along], *indices.shape[shared:], *rest[1:])


def _check_indices(indices: NDArray, size: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise IndexError(f"an index outside 0..{size - 1}")


def _split_indices(indices: NDArray, shape: tuple[int, ...]) -> tuple[NDArray, ...]:
    """The index vectors, one array for each of the first dimensions of *shape*."""
    depth = indices.shape[-1] if indices.ndim else 1
    if depth > len(shape):
        raise ShapeMismatch(f"indexes of {depth} numbers into a shape {shape}")
    parts = tuple(indices[..., at] for at in range(depth))
    for part, size in zip(parts, shape, strict=False):
        _check_indices(part, size)
    return parts


@direct("GATHER_ND", inputs=2)
def gather_nd(_: Site, inputs: Inputs) -> Outputs:
    """Selects elements or slices by index vectors."""
    x, indices = np.asarray(inputs[0]), np.asarray(inputs[1])
    parts = _split_indices(indices, x.shape)
    if not parts:
        return (np.broadcast_to(x, (*indices.shape[:-1], *x.shape)).copy(),)
    return (np.asarray(x[parts]),)


@direct("SCATTER_ND", accepts=lambda s: s.output().dtype in ADDED)
def scatter_nd(_: Site, inputs: Inputs) -> Outputs:
    """Zeros of a given shape with the updates added at index vectors."""
    indices, updates, shape = (
        np.asarray(inputs[0]),
        np.asarray(inputs[1]),
        dimensions(inputs[2]),
    )
    result = _zeros(shape, updates.dtype)
    parts = _split_indices(indices, shape)
    if updates.shape != (*indices.shape[:-1], *shape[len(parts) :]):
        raise ShapeMismatch(f"updates of shape {updates.shape} to a shape {shape}")
    if _each_once(parts, shape):
        result[parts] += updates
    else:
        np.add.at(result, parts, updates)
    return (result,)


def _each_once(parts: tuple[NDArray, ...], shape: tuple[int, ...]) -> bool:
    """Whether all index vectors are distinct, so that the order of additions does not matter."""
    if not parts or not parts[0].size:
        return False
    places = np.sort(np.ravel_multi_index(parts, shape[: len(parts)]), axis=None)
    return bool((places[1:] != places[:-1]).all())


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
    return np.zeros(checked(shape, "scattering"), dtype)


@direct("SPARSE_TO_DENSE", inputs=4)
def sparse_to_dense(_: Site, inputs: Inputs) -> Outputs:
    """An array of the default, with values (or one value) written at index vectors."""
    indices, values = np.asarray(inputs[0]), np.asarray(inputs[2])
    shape = dimensions(inputs[1])
    result = _zeros(shape, values.dtype)
    result[...] = scalar(inputs[3], "a default value")
    vectors = indices.reshape(-1, len(shape)) if indices.ndim == 2 else indices.reshape(-1, 1)
    result[_split_indices(vectors, shape)] = values
    return (result,)


@direct("ONE_HOT")
def one_hot(site: Site, inputs: Inputs) -> Outputs:
    """A new dimension with the on value at the index's position, the off value elsewhere."""
    axis, dtype = site.attributes.integer("axis"), site.output().dtype.numpy
    indices, (depth,) = np.asarray(inputs[0]), dimensions(inputs[1])
    on, off = (scalar(x, "a value of ONE_HOT") for x in inputs[2:])
    checked((depth, *indices.shape), "ONE_HOT")
    at = normal_axis(axis, indices.ndim + 1)
    places = np.arange(depth).reshape(-1, *[1] * (indices.ndim - at))
    return (np.where(np.expand_dims(indices, at) == places, on, off).astype(dtype),)


@direct("WHERE")
def where(site: Site, inputs: Inputs) -> Outputs:
    """The index vectors of the elements that are true or not zero."""
    dtype = site.output().dtype.numpy
    # NumPy counts before it searches, and another process may change shared memory in between.
    is_there = np.not_equal(np.asarray(inputs[0]), 0)
    return (np.argwhere(is_there).astype(dtype),)


@direct("UNIQUE")
def unique(site: Site, inputs: Inputs) -> Outputs:
    """The distinct elements, in order of first occurrence, and each element's position."""
    dtype = site.output(1).dtype.numpy
    x = np.asarray(inputs[0]).reshape(-1)
    values, first, places = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return values[order], rank[places].astype(dtype)


@direct("TOPK_V2", accepts=lambda s: s.input(0).dtype is s.output().dtype)
def top_k(site: Site, inputs: Inputs) -> Outputs:
    """The k largest of the last dimension, in a stable order, and their indexes."""
    dtype = site.output(1).dtype.numpy
    x, (k,) = np.asarray(inputs[0]), dimensions(inputs[1])
    if x.ndim == 0 or not 0 <= k <= x.shape[-1]:
        raise ShapeMismatch(f"the {k} largest of a shape {x.shape}")
    # Sorting the reversed row and reversing the result is a stable descending sort for every
    # type.
    sorted_by = np.where(np.isnan(x), -np.inf, x) if x.dtype.kind == "f" else x
    backward = np.argsort(sorted_by[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    order = x.shape[-1] - 1 - backward[..., :k]
    return np.take_along_axis(x, order, axis=-1), order.astype(dtype)


@direct("BUCKETIZE")
def bucketize(site: Site, inputs: Inputs) -> Outputs:
    """For each element, how many of the sorted boundaries are at most equal to it."""
    boundaries = np.array(site.attributes["boundaries"], np.float32)
    x = np.asarray(inputs[0])
    return (np.searchsorted(boundaries, x.astype(np.float32), "right").astype(np.int32),)


SUMMED: Final = frozenset({DType.FLOAT32, DType.INT32})

_SEGMENTS: Final[dict[str, tuple[np.ufunc, str]]] = {
    "UNSORTED_SEGMENT_SUM": (np.add, "zero"),
    "UNSORTED_SEGMENT_PROD": (np.multiply, "one"),
    "UNSORTED_SEGMENT_MAX": (np.fmax, "least"),
    "UNSORTED_SEGMENT_MIN": (np.fmin, "greatest"),
}


@direct("SEGMENT_SUM", accepts=lambda s: s.output().dtype in SUMMED)
def segment_sum(_: Site, inputs: Inputs) -> Outputs:
    """Sums of the rows that share a segment id; ids must not decrease."""
    x, ids = np.asarray(inputs[0]), np.asarray(inputs[1])
    if len(ids) != len(x) or (ids.size and ids[0] < 0) or (np.diff(ids) < 0).any():
        raise ShapeMismatch("segment ids that decrease, or are not one for each row")
    result = _zeros((int(ids[-1]) + 1 if ids.size else 0, *x.shape[1:]), x.dtype)
    np.add.at(result, ids, x)
    return (result,)


@direct(*_SEGMENTS, accepts=lambda s: s.output().dtype in SUMMED)
def unsorted_segments(site: Site, inputs: Inputs) -> Outputs:
    """Reduces slices that share a segment id; negative ids are ignored."""
    function, neutral = _SEGMENTS[site.operation.type]
    dtype = site.output().dtype
    limits = np.finfo(np.float32) if dtype.is_float else np.iinfo(np.int32)
    start = {"zero": 0, "one": 1, "least": limits.min, "greatest": limits.max}[neutral]
    x, ids, (count,) = np.asarray(inputs[0]), np.asarray(inputs[1]), dimensions(inputs[2])
    if x.shape[: ids.ndim] != ids.shape:
        raise ShapeMismatch(f"segment ids of shape {ids.shape} for a shape {x.shape}")
    result = _zeros((count, *x.shape[ids.ndim :]), x.dtype)
    result[...] = start
    kept = ids >= 0
    _check_indices(ids[kept], count)
    function.at(result, ids[kept], x[kept])
    return (result,)
