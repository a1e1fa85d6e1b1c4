"""Functions of two 8-bit values, such as quantised sums and products, in float32 by proof.

result = floor(a * x + b * y + c), or floor(a * (x - p) * (y - q) + c), clamped, for all 65,536
pairs: each is tried here, with the rounding of the instructions. Pairs that differ are patched one
by one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Scope, Step
from penstock.compiler.tabulate import BYTES, _leaves
from penstock.drivers.llvm.emit.assembler import Reg
from penstock.drivers.llvm.emit.epilogue import bounded
from penstock.drivers.llvm.emit.scalars import Scalars
from penstock.ir import DType, NDArray

LEAST_STEPS: Final = 8
MOST_EXCEPTIONS: Final = 8
OFFSETS: Final = (0.0, *(sign * 2.0**-k for k in range(18, 4, -1) for sign in (1, -1)))
"""What is tried beside the real constant: roundings within the function move its steps a little."""


class Pair(Struct, frozen=True):
    """The value of step *number* from those of *x* and *y*: a * x + b * y + c, or with *zeros* a
    times the product of their distances from these, plus *c*, or *below* where it is negative.
    """

    number: int
    x: int
    y: int
    a: float
    b: float
    c: float
    limits: tuple[int, int]
    exceptions: tuple[tuple[int, int, int], ...]
    zeros: tuple[int, int] | None = None
    below: float = 0.0

    def computed(self, x: NDArray, y: NDArray, *, down: bool) -> NDArray:
        """What the instructions compute of all pairs of *x* and *y*, exceptions apart: a whole
        number below or next to a sum, of which the summands are exact in float64 here.
        """
        if self.zeros is None:
            inner = (self.b * y + self.c).astype(np.float32).astype(np.float64)
            real = self.a * x[:, None] + inner[None, :]
        else:
            product = (x - self.zeros[0])[:, None] * (y - self.zeros[1])[None, :]
            real = self.a * product + np.where(product < 0, self.below, self.c)
        whole = np.floor(real) if down else np.rint(real.astype(np.float32))
        return np.clip(whole, *self.limits).astype(np.int64)


def find(expression: Expression, down: bool) -> dict[int, Pair]:
    """The steps that are computed so, by number. The last of each chain."""
    count = len(expression.arguments)
    leaves, found = _leaves(expression), {}
    users = {a for s in expression.steps for a in s.arguments} | {expression.result}
    for index, step in enumerate(expression.steps):
        number = count + index
        if step.dtype not in BYTES or number not in users or len(leaves[number]) != 2:
            continue
        x, y = (_origin(expression, leaf) for leaf in sorted(leaves[number]))
        if x == y:
            continue
        if not {expression.dtype_of(x), expression.dtype_of(y)} <= BYTES:
            continue
        if step.operation in {"xor", "cast"} and expression.dtype_of(step.arguments[0]) in BYTES:
            continue
        pair = _fit(expression, number, x, y, down)
        if pair is not None:
            found[number] = pair
    return found


def _origin(expression: Expression, value: int) -> int:
    """The byte that is stored where *value* is one of the other sign."""
    count = len(expression.arguments)
    while value >= count:
        step = expression.steps[value - count]
        if step.operation not in {"xor", "cast"} or step.dtype not in BYTES:
            break
        if expression.dtype_of(step.arguments[0]) not in BYTES:
            break
        value = step.arguments[0]
    return value


@lru_cache(maxsize=1024)
def found(expression: Expression, down: bool) -> dict[int, Pair]:
    """`find`, once for each expression."""
    return find(expression, down)


def _fit(expression: Expression, number: int, x: int, y: int, down: bool) -> Pair | None:
    values = [
        np.arange(256, dtype=np.uint8).view(expression.dtype_of(leaf).numpy) for leaf in (x, y)
    ]
    result, steps = _function(expression, number, x, y)
    if steps < LEAST_STEPS or result.tables:
        return None
    made = evaluate(result, [values[0][:, None], values[1][None, :]], lambda _: np.empty(0))
    table = np.broadcast_to(made, (256, 256)).astype(np.int64)
    first, second = (v.astype(np.float64) for v in values)
    low, high = int(table.min()), int(table.max())
    inside = (table > low) & (table < high)
    if inside.sum() < 16:
        return None
    tried = [*_lines(result, number, (x, y), (low, high), down=down)]
    best, wrong = None, MOST_EXCEPTIONS + 1
    for pair in tried:
        count = int(np.count_nonzero(pair.computed(first, second, down=down) != table))
        if count < wrong:
            best, wrong = pair, count
        if not wrong:
            break
    if best is None:
        return None
    computed = best.computed(first, second, down=down)
    differ = np.argwhere(computed != table)
    exceptions = tuple(
        (int(values[0][i]), int(values[1][j]), int(table[i, j] - computed[i, j])) for i, j in differ
    )
    return replace(best, exceptions=exceptions)


def _lines(
    expression: Expression, number: int, leaves: tuple[int, int], limits: tuple[int, int], *,
    down: bool,
) -> Iterator[Pair]:  # fmt: skip
    """What may compute *expression*: its real function, its constant moved a little."""
    origin, right, up, far, corner = (
        float("nan") if v is None else v
        for v in (
            _at(expression, *point)
            for point in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (64.0, 32.0), (1.0, 1.0))
        )
    )
    a, b, both = right - origin, up - origin, corner - right - up + origin
    wide = 64 * a + 32 * b + 64 * 32 * both + origin
    if not abs(wide - far) <= 1e-9 * (abs(far) + 1):
        return
    half = 0.5 * down
    if abs(both) <= 1e-9 * (abs(a) + abs(b)):
        if max(abs(a), abs(b)) > 2**12:
            return
        for offset in OFFSETS:
            yield Pair(number, *leaves, _single(a), _single(b), _single(origin + offset + half),
                       limits, ())  # fmt: skip
        return
    zeros = round(-b / both), round(-a / both)
    if max(abs(z) for z in zeros) > 256 or abs(both) > 1:
        return
    c = origin - both * zeros[0] * zeros[1]
    # The first of two roundings moves steps by half its unit; the second rounds halves away from 0,
    # and so the steps of negative products move the other way.
    moved = 2.0 ** (math.frexp(both)[1] - 1)
    for offset in (moved, *OFFSETS):
        for sign in (-1, 1):
            yield Pair(number, *leaves, _single(both), 0.0, _single(c + offset + half), limits, (),
                       zeros, _single(c + sign * offset + half))  # fmt: skip


def _single(value: float) -> float:
    """*value* as float32."""
    return float(np.float32(value))


def _at(expression: Expression, *point: float) -> float | None:
    """The real function that *expression* rounds and clamps, at a point; None if it is unknown."""
    values = list(point)
    for step in expression.steps:
        made = _real(step, [values[i] for i in step.arguments])
        if made is None:
            return None
        values.append(made)
    return values[expression.result]


def _real(step: Step, given: list[float]) -> float | None:
    """The real value of a step: without rounding, and without bounds."""
    if step.operation == "constant":
        return float(step.value or 0)
    if step.operation in {"cast", "maximum", "minimum", "round_even", "round_away"}:
        return given[0]
    if step.operation == "xor":
        # A stored byte becomes one of the other sign, which is 128 less or more.
        return given[0] - 128 if step.dtype is DType.UINT8 else given[0] + 128
    if step.operation == "rescale":
        value, mantissa, shift = given
        return float(value * mantissa * 2.0 ** (shift - 31))
    if step.operation == "shift_left":
        return float(given[0] * 2.0 ** given[1])
    kinds = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
    found = kinds.get(step.operation)
    return None if found is None else float(found(*given))


def _function(expression: Expression, number: int, x: int, y: int) -> tuple[Expression, int]:
    scope = Scope(expression.dtype_of(x), expression.dtype_of(y))
    values = {x: scope.argument(0), y: scope.argument(1)}
    result = scope.finish(scope.rewritten(expression, number, values))
    return result, sum(s.operation != "constant" for s in result.steps)


def write(writer: Scalars, pair: Pair, x: Reg, y: Reg, dtypes: tuple[DType, DType, DType]) -> Reg:
    """The value of *pair* as the third of *dtypes*, from values of the first two."""
    i32 = DType.INT32
    if writer.lanes == writer.machine.isa.width and dtypes[2] in BYTES:
        return _write_bytes(writer, pair, (x, y), dtypes)
    wide = [writer.cast(v, d, i32) for v, d in zip((x, y), dtypes, strict=False)]
    whole = _whole(writer, pair, wide[0], wide[1])
    result = writer.clamped(whole, *pair.limits, i32)
    for p, q, delta in pair.exceptions:
        same = [
            writer.op("icmp eq", DType.BOOL, w, writer.constant(n, i32))
            for w, n in zip(wide, (p, q), strict=True)
        ]
        both = writer.op("and", DType.BOOL, *same)
        added = writer.choose(both, writer.constant(delta, i32), writer.constant(0, i32))
        result = writer.op("add", i32, result, added)
    return writer.cast(result, i32, dtypes[2])


def _whole(writer: Scalars, pair: Pair, x: Reg, y: Reg) -> Reg:
    """The whole number, not clamped, from int32 values."""
    f32 = DType.FLOAT32
    first, second = (writer.cast(v, DType.INT32, f32) for v in (x, y))
    a, b, c = (writer.constant(v, f32) for v in (pair.a, pair.b, pair.c))
    if pair.zeros is None:
        added = writer.intrinsic("fma", second, b, c)
        return writer.machine.rounded(writer.function, first, a, added)
    distances = [
        writer.op("fsub", f32, v, writer.constant(float(z), f32)) if z else v
        for v, z in zip((first, second), pair.zeros, strict=True)
    ]
    product = writer.op("fmul", f32, *distances)
    if pair.below != pair.c:
        negative = writer.op("fcmp olt", DType.BOOL, product, writer.constant(0.0, f32))
        c = writer.choose(negative, writer.constant(pair.below, f32), c)
    return writer.machine.rounded(writer.function, product, a, c)


def _write_bytes(
    writer: Scalars, pair: Pair, values: tuple[Reg, Reg], dtypes: tuple[DType, DType, DType]
) -> Reg:
    """The value of *pair* for a whole vector of bytes: four vectors of 32 bits side by side."""
    f, m = writer.function, writer.machine
    lanes, signed = m.isa.lanes, dtypes[2] is DType.INT8
    one = type(writer)(f, lanes, m, writer.table)
    x, y = (m.widened(f, v, signed=d is DType.INT8) for v, d in zip(values, dtypes, strict=False))
    whole = [_whole(one, pair, first, second) for first, second in zip(x, y, strict=True)]
    packed = m.pack(f, whole, 0, signed=signed)
    result = bounded(f, packed, pair.limits, signed=signed)
    for p, q, delta in pair.exceptions:
        same = [
            writer.op("icmp eq", DType.BOOL, v, writer.constant(n, d))
            for v, n, d in zip(values, (p, q), dtypes, strict=False)
        ]
        both = writer.op("and", DType.BOOL, *same)
        added = (writer.constant(v, dtypes[2]) for v in (delta, 0))
        result = writer.op("add", dtypes[2], result, writer.choose(both, *added))
    return result
