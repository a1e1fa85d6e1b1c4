"""Loops of nothing but products: they measure what the processor reaches at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, vector
from penstock.drivers.llvm.isa import Instructions, Isa

Kind: TypeAlias = Literal["float32", "int32"]
"""The type of the sums: of products of floats, or of 8 bits."""

FUNCTIONS: Final[Mapping[Kind, str]] = {"float32": "peak_float32", "int32": "peak_int32"}
"""`name(turns, room)` executes the loop; *room* is 64 bytes that it may read and write."""

SUMS: Final = 10
"""Independent sums, so that no product waits for another."""


def products_a_turn(kind: Kind, lanes: int) -> int:
    """The multiply-accumulates of one turn of the loop."""
    return SUMS * lanes * (1 if kind == "float32" else 4)


def loop(kind: Kind, isa: Isa) -> tuple[Function, str]:
    """The function of the loop, and the text of its entry point."""
    m = Instructions(isa)
    f = Function(f"loop_{kind}", ["room"], kernel=False, numbers=["turns"])
    floats = kind == "float32"
    type_ = m.floats if floats else m.words
    first = f.load(type_, "%room")
    group = f.load("i32", "%room", 4)
    weights = [] if floats else m.weights(f, "%room")
    data = [] if floats else m.broadcast(f, group)

    def body(_: Index, sums: list[Reg]) -> list[Reg]:
        if m.isa.dot == "vpmaddwd" and not floats:
            # A product and a sum: the product must be another one in each turn, or LLVM takes it
            # out of the loop.
            pairs = vector(2 * m.isa.lanes, "i16")
            given = [f.value(f"bitcast {s} to {pairs}", pairs) for s in sums]
            return [m.product(f, s, [g, g], weights) for s, g in zip(sums, given, strict=True)]
        if floats:
            name = f"llvm.fma.v{m.isa.lanes}f32"
            return [f.call(name, type_, first, first, s) for s in sums]
        return [m.product(f, s, data, weights) for s in sums]

    for result in f.loop(0, "%turns", 1, body, [first] * SUMS):
        f.store(result, "%room")
    entry = f"""
define void @{FUNCTIONS[kind]}(i64 %turns, ptr %room) noinline nounwind {{
  call void @{f.name}(ptr %room, i64 %turns)
  ret void
}}"""
    return f, entry
