"""Long rows of bytes, of which all but one byte of each is known: their results for all 256 bytes
are computed first, and then looked up.
"""

from __future__ import annotations

from typing import Final

from penstock.compiler.expression import Expression
from penstock.compiler.program import Kernel, Program
from penstock.compiler.tabulate import BYTES
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, splatted, vector
from penstock.drivers.llvm.emit.flat import Flat, Loops
from penstock.drivers.llvm.emit.places import Places, Span
from penstock.drivers.llvm.isa import Isa

VALUES: Final = 256

LEAST: Final = 512
"""Elements of a row from which on a table pays."""

LEAST_STEPS: Final = 8
"""Steps that take longer than to look a byte up."""

INDEXED: Final = 128
"""The bytes of the tables that one instruction reads, of sets that look up quickly."""


def varying(
    program: Program, kernel: Kernel, loops: Loops, along: int | None, isa: Isa
) -> Flat | None:
    """The bytes that alone differ along loop *along*, if a table of results pays."""
    written, steps = loops.written, (*kernel.body.steps, *kernel.finish.steps)
    if along is None or along >= len(loops.outer) or loops.outer[along] < LEAST:
        return None
    if kernel.combine != "none" or isa.bytes_by_table != INDEXED or len(steps) < LEAST_STEPS:
        return None
    found = [a for a in (*loops.reads, *loops.extras) if _differs(a, along)]
    if len(found) != 1 or written.dtype not in BYTES or written.steps[along] != 1:
        return None
    (data,) = found
    if data.dtype not in BYTES or data.steps[along] != 1 or data.axes or data.turn is not None:
        return None
    safe = all(_reads_inside(program, e) for e in (kernel.body, kernel.finish))
    return data if safe else None


def _differs(access: Flat, along: int) -> bool:
    return bool(access.steps[along]) or any(axis.step_of(along) for axis in access.axes)


def _reads_inside(program: Program, expression: Expression) -> bool:
    """Whether lookups stay inside their tables whatever the bytes are: at a byte, or at a distance
    between two of them that is at least 0.
    """
    count = len(expression.arguments)

    def is_distance(value: int) -> bool:
        if value < count:
            return expression.dtype_of(value) in BYTES
        step = expression.steps[value - count]
        if step.operation == "maximum":
            less, bound = (expression.steps[a - count] for a in step.arguments if a >= count)
            return (
                less.operation == "sub"
                and (bound.operation, bound.value) == ("constant", 0)
                and all(_is_byte(expression, a) for a in less.arguments)
            )
        return _is_byte(expression, value)

    return all(
        is_distance(step.arguments[0]) and program.tensors[int(step.value or 0)].shape[0] >= VALUES
        for step in expression.steps
        if step.operation == "lookup"
    )


def _is_byte(expression: Expression, value: int) -> bool:
    """Whether *value* is a byte, or one in a wider type."""
    count = len(expression.arguments)
    if value >= count and expression.steps[value - count].operation == "cast":
        value = expression.steps[value - count].arguments[0]
    return expression.dtype_of(value) in BYTES


def write(
    f: Function, places: Places, kernel: Kernel, loops: Loops, data: Flat, along: int, lanes: int,
    table: str, begin: Index, size: int,
) -> None:  # fmt: skip
    """*size* elements of loop *along* from *begin* on, by the *table* in the function's memory."""
    m, width = places.machine, places.machine.isa.width

    def fill(first: Index) -> None:
        places.indexes[along] = begin
        numbers = ", ".join(f"i8 {i}" for i in range(lanes))
        start = f.splat(f.value(f"trunc i64 {first} to i8", "i8"), lanes)
        bytes_ = f.value(f"add {start}, <{numbers}>", vector(lanes, "i8"))
        writer = places.writer(lanes)

        def given(access: Flat) -> Reg:
            if access is data:
                return bytes_
            return f.splat(places.load(access, Span(1, None)), lanes)

        total = writer.write(kernel.body, [given(a) for a in loops.reads])
        result = writer.write(kernel.finish, [total, *(given(a) for a in loops.extras)])
        f.store(writer.stored(result, loops.written.dtype), f.at(table, first))

    def turn(first: Index, left: int | None = None) -> None:
        places.indexes[along] = f.add(begin, first)
        span = Span(width, along, tail=left)
        found = m.lookup(f, table, places.load(data, span), width)
        places.store(found or splatted("0", "i8", width), loops.written, span)

    f.each(0, VALUES, lanes, fill)
    whole = size // width * width
    f.each(0, whole, width, turn)
    if whole < size:
        turn(whole, size - whole)
