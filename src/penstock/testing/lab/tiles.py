"""The tiled layout that the lab device may keep values in, and what it computes there without
leaving it.

The last two dimensions of a value (a vector is one row) are cut into tiles of 8 x 8, filled up with
zeros: an array of shape (products of the others, rows of tiles, columns of tiles, 8, 8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.ir import NDArray

TILE: Final = 8

ELEMENTWISE: Final = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
}
UNARY: Final = ("RELU", "TANH", "LOGISTIC")
LAYERS: Final = ("FULLY_CONNECTED", "FULLY_CONNECTED_TURNED")
TILEWISE: Final = frozenset((*ELEMENTWISE, *UNARY, *LAYERS))
"""The instructions that compute on tiles."""


class Tiled(Struct, frozen=True, eq=False):
    """A value of *shape* in *tiles*. Whatever lies beyond the shape is zero."""

    tiles: NDArray
    shape: tuple[int, ...]


Value: TypeAlias = "NDArray | Tiled"


def to_tiles(array: NDArray) -> Tiled:
    """*array* in tiles of its own."""
    lead, rows, columns = _extents(array.shape)
    down, across = -(-rows // TILE), -(-columns // TILE)
    padded = np.zeros((lead, down * TILE, across * TILE), array.dtype)
    padded[:, :rows, :columns] = array.reshape(lead, rows, columns)
    cut = padded.reshape(lead, down, TILE, across, TILE).transpose(0, 1, 3, 2, 4)
    return Tiled(np.ascontiguousarray(cut), array.shape)


def from_tiles(value: Tiled) -> NDArray:
    """The array again, C-contiguous."""
    lead, rows, columns = _extents(value.shape)
    _, down, across, _, _ = value.tiles.shape
    whole = value.tiles.transpose(0, 1, 3, 2, 4).reshape(lead, down * TILE, across * TILE)
    return np.ascontiguousarray(whole[:, :rows, :columns]).reshape(value.shape)


def compute(opcode: str, inputs: Sequence[Tiled], shape: tuple[int, ...]) -> Tiled:
    """What one of `TILEWISE` gives; elementwise ones take values of the output's *shape*."""
    if opcode in LAYERS:
        return _layer(inputs, shape, turned=opcode != "FULLY_CONNECTED")
    given = [value.tiles for value in inputs]
    if opcode in ELEMENTWISE:
        return Tiled(ELEMENTWISE[opcode](*given), shape)
    (x,) = given
    if opcode == "RELU":
        return Tiled(np.maximum(x, np.float32(0)), shape)
    if opcode == "TANH":
        return Tiled(np.tanh(x), shape)
    one = np.float32(1)
    return Tiled(np.where(_inside(shape), one / (one + np.exp(-x)), np.float32(0)), shape)


def _layer(inputs: Sequence[Tiled], shape: tuple[int, ...], *, turned: bool) -> Tiled:
    """The product of *inputs* 0 and 1, weights [units, depth] or *turned*, and the bias, which has
    the output's shape.
    """
    x, weights, *bias = (value.tiles[0] for value in inputs)
    form = "rcij,cujk->ruik" if turned else "rcij,uckj->ruik"
    product = np.einsum(form, x, weights, optimize=True)
    return Tiled((product + bias[0] if bias else product)[None], shape)


def _inside(shape: tuple[int, ...]) -> NDArray:
    return to_tiles(np.ones(shape, np.bool_)).tiles


def _extents(shape: tuple[int, ...]) -> tuple[int, int, int]:
    padded = (1, 1, *shape)
    rows, columns = padded[-2:]
    return math.prod(padded[:-2]), rows, columns
