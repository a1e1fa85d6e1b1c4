"""StableHLO's gather and scatter: slices are read, or combined with updates, by index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.stablehlo.reduction import Apply, combiner, region
from penstock.drivers.reference.structure.shape import checked
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray

Combination: TypeAlias = Callable[[NDArray, NDArray, NDArray], None]
"""Combines values (last) with elements of a flat array at indices, one after another."""

UFUNCS: Final[dict[str, Any]] = {"STABLEHLO_ADD": np.add, "STABLEHLO_MULTIPLY": np.multiply}
"""Functions of regions that NumPy can apply one index after another."""


def index_vectors(indices: NDArray, axis: int) -> NDArray:
    """Index vectors [batch ..., length] along *axis*, which may be one past the last."""
    if axis == indices.ndim:
        return indices[..., np.newaxis]
    if not 0 <= axis < indices.ndim:
        raise ShapeMismatch(f"index_vector_dim {axis} of indices of shape {indices.shape}")
    return np.asarray(np.moveaxis(indices, axis, -1))


def _distinct(values: Sequence[int], bound: int, what: str) -> None:
    if len(set(values)) != len(values) or any(not 0 <= v < bound for v in values):
        raise ShapeMismatch(f"{what} {tuple(values)} are not distinct dimensions below {bound}")


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of an operand: their *sizes*, the dimensions that an index vector offsets (*moved*),
    and the dimensions of size 1 that slices do not have (*dropped*).
    """

    sizes: tuple[int, ...]
    moved: tuple[int, ...]
    dropped: tuple[int, ...]

    def check(self, shape: tuple[int, ...], length: int, *, inside: bool) -> None:
        """Raises `ShapeMismatch` unless slices and index vectors of *length* fit an operand of
        *shape*. With *inside*, slices must lie within it.
        """
        if len(shape) != len(self.sizes) or any(
            size < 0 or (inside and size > whole)
            for size, whole in zip(self.sizes, shape, strict=True)
        ):
            raise ShapeMismatch(f"slices of {self.sizes} of an operand of shape {shape}")
        _distinct(self.moved, len(shape), "indexed dimensions")
        _distinct(self.dropped, len(shape), "dimensions left out")
        if length != len(self.moved) or any(self.sizes[axis] != 1 for axis in self.dropped):
            raise ShapeMismatch(
                f"index vectors of {length} elements for dimensions {self.moved}, "
                f"slices of {self.sizes} without dimensions {self.dropped}"
            )

    @property
    def kept(self) -> tuple[int, ...]:
        """The sizes of the dimensions that slices keep."""
        return tuple(size for at, size in enumerate(self.sizes) if at not in self.dropped)

    def starts(self, vectors: NDArray, shape: tuple[int, ...], *, clamped: bool) -> list[Any]:
        """The start of slices in each dimension: for each index vector, or 0.

        *clamped* moves slices into the operand; other indices are limited, but stay outside.
        """
        found: list[Any] = [0] * len(shape)
        for at, axis in enumerate(self.moved):
            low = 0 if clamped else -self.sizes[axis]
            high = shape[axis] - self.sizes[axis] if clamped else shape[axis]
            indices = vectors[..., at]
            if indices.dtype.kind == "u":
                indices = np.minimum(indices, np.uint64(high)).astype(np.int64)
            found[axis] = np.clip(indices.astype(np.int64), low, high)
        return found

    def places(self, starts: list[Any], batch: tuple[int, ...]) -> list[NDArray]:
        """Indices in each dimension, which broadcast to [batch ..., kept sizes ...]."""
        kept = [axis for axis in range(len(self.sizes)) if axis not in self.dropped]
        found = []
        for axis, start in enumerate(starts):
            steps = np.arange(self.sizes[axis])
            along = [1] * len(kept)
            if axis in kept:
                along[kept.index(axis)] = self.sizes[axis]
            first = np.broadcast_to(start, batch).reshape((*batch, *[1] * len(kept)))
            found.append(first + steps.reshape(along if kept else []))
        return found


def _interleaved(batch: int, places: Sequence[int], rank: int) -> list[int]:
    """The order that puts dimensions after the first *batch* at *places* of the result."""
    _distinct(places, rank, "slice dimensions")
    first, rest = iter(range(batch)), iter(range(batch, rank))
    order = {place: next(rest) for place in places}
    return [order[at] if at in order else next(first) for at in range(rank)]


@kernel("STABLEHLO_GATHER")
def gather(site: Site) -> Kernel:
    """Slices at index vectors, moved into the operand if they exceed it."""
    attributes = site.attributes
    slices = Slices(
        attributes.integers("slice_sizes"),
        attributes.integers("start_index_map"),
        attributes.integers("collapsed_slice_dims"),
    )
    offsets, axis = attributes.integers("offset_dims"), attributes.integer("index_vector_dim")
    require(sorted(offsets) == list(offsets), f"offset_dims {offsets} out of order")

    def run(inputs: Inputs) -> Outputs:
        x, vectors = given(inputs[0]), index_vectors(given(inputs[1]), axis)
        slices.check(x.shape, vectors.shape[-1], inside=True)
        batch = vectors.shape[:-1]
        shape = checked((*batch, *slices.kept), "a gather")
        if len(offsets) != len(slices.kept):
            raise ShapeMismatch(f"offset_dims {offsets} of slices of {slices.kept}")
        order = _interleaved(len(batch), offsets, len(shape))
        places = slices.places(slices.starts(vectors, x.shape, clamped=True), batch)
        taken = x[tuple(places)] if x.ndim else np.broadcast_to(x, shape)
        return (np.array(taken.reshape(shape).transpose(order), order="C"),)

    return run


@kernel("STABLEHLO_SCATTER")
def scatter(site: Site) -> Kernel:
    """Combines updates with the operand at index vectors, in row-major order, if inside it."""
    require(
        len(site.inputs) == 3 and len(site.outputs) == 1, "STABLEHLO_SCATTER of several operands"
    )
    attributes = site.attributes
    windows = attributes.integers("update_window_dims")
    inserted = attributes.integers("inserted_window_dims")
    moved = attributes.integers("scatter_dims_to_operand_dims")
    axis = attributes.integer("index_vector_dim")
    require(sorted(windows) == list(windows), f"update_window_dims {windows} out of order")
    combine = _combination(site)

    def run(inputs: Inputs) -> Outputs:
        result, updates = np.array(inputs[0], order="C"), given(inputs[2])
        vectors = index_vectors(given(inputs[1]), axis)
        _distinct(inserted, result.ndim, "inserted_window_dims")
        _distinct(windows, updates.ndim, "update_window_dims")
        batch = vectors.shape[:-1]
        extents = iter([updates.shape[at] for at in windows])
        sizes = tuple(1 if at in inserted else next(extents, -1) for at in range(result.ndim))
        slices = Slices(sizes, moved, inserted)
        slices.check(result.shape, vectors.shape[-1], inside=False)
        order = _interleaved(len(batch), windows, len(batch) + len(windows))
        if tuple(updates.shape) != tuple((*batch, *slices.kept)[at] for at in order):
            raise ShapeMismatch(
                f"updates of shape {updates.shape} for indices of shape {given(inputs[1]).shape}"
            )
        places = slices.places(slices.starts(vectors, result.shape, clamped=False), batch)
        target = (*batch, *slices.kept)
        flat, inside = (x.transpose(order).reshape(-1) for x in _flat(places, result.shape, target))
        combine(result.reshape(-1), flat[inside], updates.reshape(-1)[inside])
        return (result,)

    return run


def _flat(
    places: list[NDArray], shape: tuple[int, ...], target: tuple[int, ...]
) -> tuple[NDArray, NDArray]:
    """Flat indices of elements, and whether each is inside the operand, in the shape *target*."""
    flat, inside = np.zeros(target, np.int64), np.ones(target, bool)
    for at, (indices, size) in enumerate(zip(places, shape, strict=True), start=1):
        flat += indices * math.prod(shape[at:])
        inside &= (indices >= 0) & (indices < size)
    return flat, inside


def _combination(site: Site) -> Combination:
    graph = site.graphs(site.attributes.integer("update_computation_subgraph_index"))
    if not graph.operations and graph.outputs == graph.inputs[1:2] and len(graph.inputs) == 2:
        return _replace
    ufunc = None if combiner(graph) is None else UFUNCS.get(graph.operations[0].type)
    if ufunc is not None:
        return ufunc.at  # type: ignore[no-any-return]  # a method of a universal function
    apply = region(site, "update_computation_subgraph_index", 2)
    return lambda whole, at, values: _in_turn(apply, whole, at, values)


def _replace(whole: NDArray, at: NDArray, values: NDArray) -> None:
    whole[at] = values


def _in_turn(apply: Apply, whole: NDArray, at: NDArray, values: NDArray) -> None:
    """Combines in rounds; each round uses an element at most once."""
    order = np.argsort(at, kind="stable")
    ranked = at[order]
    starts = np.flatnonzero(np.diff(ranked, prepend=-1))
    rounds = np.arange(at.size) - np.repeat(starts, np.diff(starts, append=at.size))
    order = order[np.argsort(rounds, kind="stable")]
    ends = np.cumsum(np.bincount(rounds))
    for chosen in np.split(order, ends[:-1]) if at.size else ():
        (whole[at[chosen]],) = apply(whole[at[chosen]], values[chosen])
