"""SOFTMAX of 8-bit values to int16 of any scale: in float32, by a table of exponentials.

Results are whole numbers, so that the sum of each row must be that of the reference device to the
last bit. A routine adds it up in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import elements
from penstock.compiler.legalise.elementwise import F32, I32
from penstock.compiler.legalise.quantised import integer_range, scale_of
from penstock.compiler.legalise.routines import RoutineWriter, Variable
from penstock.compiler.legalise.rows import Rows, distance
from penstock.compiler.program import Access, Position
from penstock.driverkit.site import require
from penstock.ir import DType

BLOCK: Final = 128
"""Terms from which on NumPy adds two halves apart."""

LANES: Final = 8
"""The sums that NumPy adds side by side."""

MOST_TERMS: Final = 1 << 12


def softmax_to_16(rows: Rows, beta: float) -> None:
    """Writes the kernels."""
    site = rows.operation.site
    given, made = scale_of(site.input(), "the input"), scale_of(site.output(), "a result")
    count = rows.shape[-1]
    require(count <= MOST_TERMS, f"a softmax of rows of more than {MOST_TERMS} elements")
    distances = np.arange(256, dtype=np.float32)
    powers = rows.build.constant(
        F32, (256,), lambda: np.exp(distances * np.float32(-beta * given.scale))
    )
    greatest = rows.greatest()
    terms = rows.build.tensor(F32, rows.shape)
    scope = Scope(rows.dtype, rows.dtype)
    term = scope.finish(scope.lookup(powers, distance(scope), F32))
    rows.made("powers", [rows.every(rows.source), rows.one(greatest)], term, terms)
    sums = _sums(rows, terms)
    inverse = float(np.float32(1) / np.float32(made.scale))
    low, high = integer_range(DType.INT16)
    scope = Scope(F32, I32)
    share = scope.argument(0) / scope.argument(1).bitcast(F32)
    steps = (share * inverse).apply("round_even") + float(made.zero_point)
    result = scope.finish(steps.clamp(float(low), float(high)).cast(DType.INT16))
    strides = tuple(
        (axis, elements(rows.shape[axis + 1 : -1])) for axis in range(len(rows.shape) - 1)
    )
    total = Access(sums, (Position(0, strides),))
    rows.made("shares", [rows.every(terms), total], result, rows.operation.target())


def _sums(rows: Rows, terms: int) -> int:
    """A vector of the sums of all rows, as bits."""
    count, number = rows.shape[-1], elements(rows.shape[:-1])
    w = RoutineWriter(rows.build, number)
    with w.each(number) as row:
        first = w.let(lambda r: r * count, row)
        w.keep(0, row, pairwise(w, lambda at: w.load(terms, w.let(_plus, first, at)), 0, count))
    w.emit("sums", number * (count // LANES + LANES))
    return w.memory


def _plus(a: Value, b: Value) -> Value:
    return a + b


def pairwise(
    w: RoutineWriter, term: Callable[[Variable], Variable], first: int, count: int
) -> Variable:
    """The sum of *count* terms from number *first* on, in NumPy's order: eight sums side by side,
    and of many terms each half apart.
    """
    if count > BLOCK:
        half = count // 2 // LANES * LANES
        parts = [pairwise(w, term, first, half), pairwise(w, term, first + half, count - half)]
        return w.let(_plus, *parts)
    whole = count // LANES * LANES
    if whole:
        sums = [w.let(lambda t: t, term(w.number(first + lane))) for lane in range(LANES)]
        with w.each(whole // LANES, 1) as turn:
            for lane, total in enumerate(sums):
                at = w.let(lambda t, k=lane: t * LANES + (first + k), turn)
                w.set(total, _plus, total, term(at))
        while len(sums) > 1:
            sums = [w.let(_plus, *sums[k : k + 2]) for k in range(0, len(sums), 2)]
        total = sums[0]
    else:
        total = w.number(0.0, F32)
    with w.each(first + count, first + whole) as at:
        w.set(total, _plus, total, term(at))
    return total
