"""DENSIFY_LEVELS: converts sparse tensors to dense ones (NNAPI's experimental DENSIFY).

The format is TACO's (Kjolstad et al., "The Tensor Algebra Compiler", 2017): a tensor is a tree.
Each level is one dimension, or one block of a dimension; the values are the leaves. In a dense
level every node has all children; a compressed level lists them by segments and indices, as CSR
lists rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Outputs, Site, direct, require
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.structure.shape import checked
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import NDArray

FIRST_LEVEL = 5
COMPRESSED = 1


class Level(NamedTuple):
    """One level: its axis of the dense tensor, its size, and the lists of a compressed level."""

    axis: int
    size: int
    segments: NDArray | None
    indices: NDArray | None


@direct(
    "DENSIFY_LEVELS",
    check=lambda s: require(
        s.input(0).quantization == s.output().quantization, "densifying that rescales"
    ),
)
def densify_levels(site: Site, inputs: Inputs) -> Outputs:
    """Elements without a value are zero (stored: the zero point)."""
    quantization = site.input(0).quantization
    nothing = 0 if quantization is None else quantization.zero_point
    values = given(inputs[0]).reshape(-1)
    levels, rank = read_levels(inputs)
    sizes = [math.prod(n.size for n in levels if n.axis == axis) for axis in range(rank)]
    shape = checked(sizes, "DENSIFY")
    out = np.full(shape, nothing, values.dtype)
    nodes, places = descend(levels, rank, len(values))
    if len(nodes):
        out[tuple(places)] = values[nodes]
    return (out,)


def read_levels(inputs: Inputs) -> tuple[list[Level], int]:
    """The levels in order, and the dense rank. Raises `InputError` for a contradiction."""
    order, formats, sizes = (given(inputs[i]).reshape(-1).tolist() for i in (1, 3, 4))
    blocks = inputs[2].reshape(-1).tolist() if inputs[2] is not None else []
    rank = len(order) - len(blocks)
    if (
        rank < 1
        or not len(order) == len(formats) == len(sizes)
        or sorted(order) != list(range(len(order)))
        or not set(blocks) <= set(range(rank))
        or not set(order[:rank]) <= set(range(rank))
    ):
        raise InputError(f"levels in the order {order} of blocks {blocks}, sizes {sizes}")
    levels = []
    for at, (node, size) in enumerate(zip(order, sizes, strict=True)):
        axis = node if node < rank else blocks[node - rank]
        if size < 0 or formats[at] not in {0, COMPRESSED}:
            raise InputError(f"level {at} of format {formats[at]} and size {size}")
        lists: list[NDArray | None] = [None, None]
        if formats[at] == COMPRESSED:
            lists = [*inputs[FIRST_LEVEL + 2 * at : FIRST_LEVEL + 2 * at + 2], None, None][:2]
        levels.append(Level(axis, size, *lists))
        if formats[at] == COMPRESSED:
            _check_lists(levels[-1], at)
    return levels, rank


def _check_lists(level: Level, at: int) -> None:
    if level.segments is None or level.indices is None:
        raise InputError(f"level {at} is compressed and has no segments or no indices")
    segments, indices = level.segments, level.indices
    if segments.ndim != 1 or indices.ndim != 1:
        raise ShapeMismatch(f"segments {segments.shape} and indices {indices.shape} of level {at}")
    steps = np.diff(segments.astype(np.int64))
    if not segments.size or segments[0] < 0 or segments[-1] > len(indices) or (steps < 0).any():
        raise InputError(
            f"segments of level {at} that decrease, or leave its {len(indices)} indices"
        )
    if indices.size and (indices.min() < 0 or indices.max() >= level.size):
        raise InputError(f"an index of level {at} outside 0..{level.size - 1}")


def descend(levels: Sequence[Level], rank: int, count: int) -> tuple[NDArray, list[NDArray]]:
    """The leaves of the tree: their positions among *count* values, and their indexes along each
    axis.

    Raises `InputError` if the tree has more nodes than the next level's segments, or than values.
    The tree is therefore never larger than the input.
    """
    nodes = np.zeros(1, np.int64)
    places = [np.zeros(1, np.int64) for _ in range(rank)]
    for at, level in enumerate(levels):
        if level.segments is None or level.indices is None:
            _check_reach(levels[at:], int(nodes.max(initial=-1)) + 1, count)
            repeats = np.full(len(nodes), level.size)
            index = np.tile(np.arange(level.size), len(nodes))
            nodes = np.repeat(nodes * level.size, level.size) + index
        else:
            if nodes.size and nodes.max() + 1 >= len(level.segments):
                raise InputError(f"level {at} has {len(level.segments)} segments, too few")
            starts = level.segments[nodes].astype(np.int64)
            repeats = level.segments[nodes + 1] - starts
            before = np.cumsum(repeats) - repeats
            nodes = np.arange(repeats.sum()) + np.repeat(starts - before, repeats)
            index = level.indices[nodes]
        places = [np.repeat(p, repeats) for p in places]
        places[level.axis] = places[level.axis] * level.size + index
    if nodes.size and nodes.max() >= count:
        raise InputError(f"{count} values, where the levels have {int(nodes.max()) + 1}")
    return nodes, places


def _check_reach(levels: Sequence[Level], nodes: int, count: int) -> None:
    """Checks that the next dense levels do not multiply *nodes* beyond the amount of data."""
    for level in levels:
        if level.segments is not None:
            count = len(level.segments) - 1
            break
        nodes *= level.size
    if nodes > count:
        raise InputError(f"{nodes} nodes of dense levels, where {count} values or segments follow")
