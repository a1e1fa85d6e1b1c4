"""Writes the borders of tensors, piece by piece as they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.program import Border, Tensor
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg

PATTERN_BYTES: Final = 8

UNROLLED: Final = 4
"""The vectors that a turn of a loop stores."""


class Pieces(Struct, frozen=True):
    """*count* pieces of *size* bytes that begin *pitch* bytes apart, the first at *begin*."""

    begin: int
    size: int
    count: int
    pitch: int


def pieces(tensor: Tensor, border: Border) -> Iterator[Pieces]:
    """The pieces of *border* as they lie in memory. What ends one row and begins the next one is
    one piece.
    """
    shape = tensor.shape
    axis = max(i for i in range(len(shape)) if border.before[i] or border.behind[i])
    stride = int(np.prod(shape[axis + 1 :], dtype=np.int64)) * tensor.dtype.numpy.itemsize
    covered = np.ones(shape[: axis + 1], np.bool_)
    ends = list(zip(border.before, shape, border.behind, strict=True))[: axis + 1]
    covered[tuple(slice(before, size - behind) for before, size, behind in ends)] = False
    steps = np.flatnonzero(np.diff(covered.reshape(-1), prepend=False, append=False))
    found: Pieces | None = None
    for begin, end in (steps.reshape(-1, 2) * stride).tolist():
        if found is not None and end - begin == found.size:
            pitch = begin - found.begin if found.count == 1 else found.pitch
            if begin == found.begin + found.count * pitch:
                found = Pieces(found.begin, found.size, found.count + 1, pitch)
                continue
        if found is not None:
            yield found
        found = Pieces(begin, end - begin, 1, 0)
    if found is not None:
        yield found


def pattern(tensor: Tensor, border: Border) -> int:
    """The bytes of the border's value over and over, as an int64."""
    value = np.array([border.value]).astype(tensor.dtype.numpy)
    return int(np.tile(value, PATTERN_BYTES // value.itemsize).view(np.int64)[0])


def function(name: str, found: Sequence[Pieces], width: int) -> Function:
    """`name(at, pattern)` writes the pieces *found* of a tensor, in vectors of *width* bytes."""
    f = Function(name, ["at"], kernel=False, numbers=["pattern"])
    full = f.splat(Reg("%pattern", "i64"), width // PATTERN_BYTES)

    def write(start: str, size: int) -> None:
        """*size* bytes from *start* on. The last vector may write over the one before it."""
        if size < width:
            half = 1 << (size.bit_length() - 1)
            part = _part(f, full, half)
            f.store(part, start)
            if half < size:
                f.store(part, f.at(start, size - half))
            return
        turn = UNROLLED * width
        looped = size // turn * turn

        def stores(first: Index, count: int) -> None:
            for number in range(count):
                f.store(full, f.at(start, f.add(first, number * width)))

        f.each(0, looped, turn, lambda first: stores(first, UNROLLED))
        stores(looped, (size - looped) // width)
        if size % width:
            f.store(full, f.at(start, size - width))

    for piece in found:
        first = f.at("%at", piece.begin)

        def turn(number: Index, first: str = first, piece: Pieces = piece) -> None:
            write(f.at(first, f.mul(number, piece.pitch)), piece.size)

        f.each(0, piece.count, 1, turn)
    return f


def _part(f: Function, full: Reg, size: int) -> Reg:
    """The first *size* bytes of the pattern."""
    if size > PATTERN_BYTES:
        return f.chosen(full, range(size // PATTERN_BYTES))
    if size == PATTERN_BYTES:
        return Reg("%pattern", "i64")
    return f.value(f"trunc i64 %pattern to i{8 * size}", f"i{8 * size}")


__all__ = ["Pieces", "function", "pattern", "pieces"]
