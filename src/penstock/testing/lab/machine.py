"""The lab device's arithmetic, on arrays (rows) or in a tiled layout.

The last two dimensions of a value are cut into tiles of 8 x 8, padded with zeros; a vector is one
row. The tiled array has the shape (product of the other dimensions, rows of tiles, columns of
tiles, 8, 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import GeneralFailure, ResourceExhaustedPersistent
from penstock.hal.buffer import InterfaceOf
from penstock.ir import NDArray
from penstock.ir.types import agrees, is_static
from penstock.memory import MEMORY_KINDS
from penstock.memory.domain import MemoryDomain
from penstock.testing.lab.kernels import OPCODES, activate
from penstock.testing.lab.program import MOST_BYTES, Instruction, Program, Slot

TILE: Final = 8

LAYERS: Final = ("FULLY_CONNECTED", "FULLY_CONNECTED_TURNED")
TILEWISE: Final = frozenset(("ADD", "SUB", "MUL", "RELU", "TANH", "LOGISTIC", *LAYERS))
"""The instructions that compute on tiles."""


class Tiled(Struct, frozen=True, eq=False):
    """A value of *shape* in *tiles*. Elements outside the shape are zero."""

    tiles: NDArray
    shape: tuple[int, ...]


Value: TypeAlias = "NDArray | Tiled"


def to_tiles(array: NDArray) -> Tiled:
    """*array* as new tiles."""
    lead, rows, columns = _extents(array.shape)
    down, across = -(-rows // TILE), -(-columns // TILE)
    padded = np.zeros((lead, down * TILE, across * TILE), array.dtype)
    padded[:, :rows, :columns] = array.reshape(lead, rows, columns)
    cut = padded.reshape(lead, down, TILE, across, TILE).transpose(0, 1, 3, 2, 4)
    return Tiled(np.ascontiguousarray(cut), array.shape)


def from_tiles(value: Tiled) -> NDArray:
    """Converts the tiles back to a C-contiguous array."""
    lead, rows, columns = _extents(value.shape)
    _, down, across, _, _ = value.tiles.shape
    whole = value.tiles.transpose(0, 1, 3, 2, 4).reshape(lead, down * TILE, across * TILE)
    return np.ascontiguousarray(whole[:, :rows, :columns]).reshape(value.shape)


def compute(one: Instruction, inputs: Sequence[Tiled], shape: tuple[int, ...]) -> Tiled:
    """The result of one instruction of `TILEWISE`. Elementwise inputs have the output's *shape*."""
    if one.opcode in LAYERS:
        return _layer(inputs, shape, turned=one.opcode != "FULLY_CONNECTED")
    tiles = OPCODES[one.opcode].run(one, [value.tiles for value in inputs], shape)
    if one.opcode == "LOGISTIC":  # not 0 where its input is
        inside = to_tiles(np.ones(shape, np.bool_)).tiles
        tiles = np.where(inside, tiles, np.float32(0))
    return Tiled(tiles, shape)


def _layer(inputs: Sequence[Tiled], shape: tuple[int, ...], *, turned: bool) -> Tiled:
    """The product of *inputs* 0 and 1, plus the bias, which has the output's shape.

    Weights are [units, depth], or transposed if *turned*.
    """
    x, weights, *bias = (value.tiles[0] for value in inputs)
    form = "rcij,cujk->ruik" if turned else "rcij,uckj->ruik"
    product = np.einsum(form, x, weights, optimize=True)
    return Tiled((product + bias[0] if bias else product)[None], shape)


def _extents(shape: tuple[int, ...]) -> tuple[int, int, int]:
    padded = (1, 1, *shape)
    rows, columns = padded[-2:]
    return math.prod(padded[:-2]), rows, columns


class Machine:
    """Runs instructions on arrays, or on tiles if it is *tiled*.

    It calls *count* with "conversions" for each change of layout. It maps memory of these *kinds*.
    """

    def __init__(
        self, *, tiled: bool, count: Callable[[str], None], kinds: tuple[str, ...] = MEMORY_KINDS
    ) -> None:
        self.tiled, self._count, self.kinds = tiled, count, kinds

    def rows(self, value: Value) -> NDArray:
        """*value* as an array."""
        if not isinstance(value, Tiled):
            return value
        self._count("conversions")
        return from_tiles(value)

    def tiles(self, value: Value) -> Tiled:
        """*value* in tiles."""
        if isinstance(value, Tiled):
            return value
        self._count("conversions")
        return to_tiles(value)

    def kept(self, value: Value) -> Value:
        """*value* as a buffer stores it: immutable tiles, or a copy of the array."""
        if self.tiled:
            return self.tiles(value)
        return np.array(self.rows(value), order="C")

    def compute(
        self, one: Instruction, inputs: Sequence[Value], program: Program, laid_out: LaidOut
    ) -> Value:
        """The result of one instruction. Raises `GeneralFailure` if shapes known only at run time
        do not fit.
        """
        slot = program.slots[one.output]
        if self.tiled and one.opcode in TILEWISE and any(isinstance(v, Tiled) for v in inputs):
            found = self._on_tiles(one, inputs, program, laid_out)
            if found is not None:
                return found
        arrays = [self.rows(value) for value in inputs]
        if not is_static(slot.shape):
            _check_shapes(one, arrays, slot)
        result = OPCODES[one.opcode].run(one, arrays, tuple(d or 0 for d in slot.shape or ()))
        return activate(one.activation, result)

    def _on_tiles(
        self, one: Instruction, inputs: Sequence[Value], program: Program, laid_out: LaidOut
    ) -> Tiled | None:
        """Computes on tiles. Returns None if the instruction is not supported on tiles."""
        slots = [program.slots[n] for n in one.inputs]
        shape = inputs[0].shape
        if one.opcode in LAYERS:
            output = program.slots[one.output].shape
            if len(shape) != 2 or output is None or len(output) != 2 or slots[1].offset is None:
                return None
            shape = tuple(d or 0 for d in output)
        given: list[Tiled] = []
        for place, (value, slot) in enumerate(zip(inputs, slots, strict=True)):
            layer_input = one.opcode in LAYERS and place < 2
            if slot.offset is not None:
                given.append(laid_out(one.inputs[place], value, None if layer_input else shape))
            elif layer_input or value.shape == shape:
                given.append(self.tiles(value))
            else:
                return None
        result = compute(one, given, shape)
        return Tiled(activate(one.activation, result.tiles), result.shape)


ROWS: Final = Machine(tiled=False, count=lambda _: None)
"""Computes on arrays."""


class LaidOut:
    """The constants of one program in tiles. Each is converted once, when it is first used."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...] | None], Tiled] = {}

    def __call__(self, slot: int, value: Value, shape: tuple[int, ...] | None) -> Tiled:
        """*value* of constant *slot*, broadcast to *shape*, in tiles."""
        key = slot, shape
        if key not in self._known and not isinstance(value, Tiled):
            whole = value if shape is None else np.broadcast_to(value, shape)
            self._known[key] = to_tiles(whole)
        return self._known[key]


class LabDomain(MemoryDomain):
    """Buffers in the layout of *machine*."""

    def __init__(self, machine: Machine, interface_of: InterfaceOf, capacity: int | None) -> None:
        super().__init__(interface_of, capacity=capacity)
        self._machine = machine

    def encode(self, array: NDArray, room: Callable[[], Any]) -> Any:
        return self._machine.kept(array)

    def decode(self, content: Any, target: NDArray) -> None:
        super().decode(self._machine.rows(content), target)


def _check_shapes(one: Instruction, inputs: Sequence[NDArray], slot: Slot) -> None:
    try:
        shape = np.broadcast_shapes(*(i.shape for i in inputs))
    except ValueError as error:
        raise GeneralFailure(f"{one.opcode}: {error}") from None
    if not agrees(slot.shape, shape):
        raise GeneralFailure(f"{one.opcode} gives shape {shape}, {slot.shape} is due")
    if int(np.prod(shape, dtype=object)) * slot.dtype.numpy.itemsize > MOST_BYTES:
        raise ResourceExhaustedPersistent(f"{one.opcode} gives a value of shape {shape}")
