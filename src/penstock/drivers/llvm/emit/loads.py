"""Loads of the first elements of a vector, for sets on which masks cost much."""

from __future__ import annotations

from penstock.drivers.llvm.emit.assembler import (
    BYTES_OF,
    Function,
    Reg,
    lanes_of,
    pieces_of,
    vector,
)
from penstock.drivers.llvm.isa import Isa


def load_where(
    f: Function, isa: Isa, type_: str, pointer: str, mask: Reg | None, fill: Reg | None = None
) -> Reg:
    """As `Function.masked_load`: by a few plain loads where *mask* is of the first elements, and
    *isa* has no cheap masks.
    """
    pieces = None if mask is None or isa.masks else pieces_of(mask)
    if pieces is None:
        return f.masked_load(type_, pointer, mask, fill)
    lanes, scalar = lanes_of(type_)
    made, done = fill or Reg("zeroinitializer", type_), 0
    for count in pieces:
        piece = vector(count, scalar)
        some = f.load(piece, f.at(pointer, done * BYTES_OF[scalar]), 1)
        if count == 1:
            made = f.value(f"insertelement {made}, {some}, i32 {done}", type_)
        else:
            wide = f.resized(some, lanes)
            places = [lanes + i - done if done <= i < done + count else i for i in range(lanes)]
            made = f.mixed(made, wide, places)
        done += count
    return made
