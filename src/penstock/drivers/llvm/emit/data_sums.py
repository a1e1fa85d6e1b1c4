"""Sums of the data of positions, for weights that do not fit the instructions as they are."""

from __future__ import annotations

import itertools
import math

from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, mask_of
from penstock.drivers.llvm.emit.matrix import Shape
from penstock.drivers.llvm.isa import Instructions
from penstock.drivers.llvm.isa.instructions import GROUP

LEAST_TAPS = 40
"""With fewer taps, a product more for each group takes no longer."""

MOST_PIECES = 9


def pays(shape: Shape, m: Instructions) -> bool:
    """Whether whole vectors of data are summed, instead of group after group."""
    pieces = math.prod(size for size, _ in shape.segments)
    whole = m.parts == 1 and m.isa.masks
    return whole and pieces <= MOST_PIECES and pieces * shape.length >= LEAST_TAPS


def data_sums(
    f: Function, m: Instructions, shape: Shape, rows: int, data: str, surplus: int
) -> list[Reg]:
    """*surplus* times the sum of the bytes that each of *rows* positions reads, in every lane."""
    step, width = shape.positions[-1].data, m.isa.width
    totals = [Reg("zeroinitializer", m.words)] * rows
    ones = m.repeated([1] * GROUP)
    whole = shape.length // width * width
    for places in itertools.product(*(range(size) for size, _ in shape.segments)):
        offset = sum(p * s for p, (_, s) in zip(places, shape.segments, strict=True))
        base = f.at(data, offset)

        def added(k: Index, sums: list[Reg], base: str = base, count: int = width) -> list[Reg]:
            return [
                m.product(
                    f,
                    total,
                    [f.masked_load(m.bytes, f.at(base, f.add(k, r * step)), mask_of(count, width))],
                    ones,
                )
                for r, total in enumerate(sums)
            ]

        if whole:
            totals = f.loop(0, whole, width, added, totals)
        if whole < shape.length:
            totals = added(whole, totals, count=shape.length - whole)
    made = []
    for total in totals:
        name = f"llvm.vector.reduce.add.v{m.isa.lanes}i32"
        one = f.call(name, "i32", total)
        made.append(f.splat(f.value(f"mul {one}, {surplus}", "i32"), m.isa.lanes))
    return made
