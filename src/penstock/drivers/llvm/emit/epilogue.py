"""Finds the requantisation at the end of a layer, and writes it as it was proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Expression, Step
from penstock.compiler.layout import SIGN
from penstock.compiler.program import Kernel, Program
from penstock.compiler.tabulate import BYTES
from penstock.drivers.llvm.emit.assembler import (
    Function,
    Index,
    Reg,
    lanes_of,
    splatted,
    vector,
)
from penstock.drivers.llvm.isa import Instructions
from penstock.drivers.llvm.proof.requantise import Proof
from penstock.ir import DType, NDArray


class Scaled(Struct, frozen=True, eq=False):
    """clamp(rescale(sum + bias) + zero point), the value *value* of the finish of a kernel.

    Vectors have one element for each channel, or one. *bias* is the tensor of the bias, or None.
    """

    value: int
    bias: NDArray
    mantissas: NDArray
    shifts: NDArray
    zero_point: int
    limits: tuple[int, int]


class _Unknown(Exception):
    """The expression is another one."""


def find(program: Program, kernel: Kernel) -> Scaled | None:
    """The requantisation of the kernel's sums, if its finish begins with one."""
    finish = kernel.finish
    first = len(finish.arguments)
    try:
        for number, step in enumerate(finish.steps):
            if step.operation == "rescale":
                return _scaled(program, kernel, finish, first + number, step)
    except _Unknown:
        pass
    return None


def _scaled(
    program: Program, kernel: Kernel, finish: Expression, number: int, step: Step
) -> Scaled:
    def step_of(value: int) -> Step:
        first = len(finish.arguments)
        if value < first:
            raise _Unknown
        return finish.steps[value - first]

    def constant(value: int) -> int:
        found = step_of(value)
        if found.operation != "constant":
            raise _Unknown
        return int(found.value or 0)

    def vector(value: int) -> NDArray:
        if value >= len(finish.arguments):
            return np.array([constant(value)], np.int64)
        access = kernel.extras[value - 1]
        if value == 0 or access.tensor not in program.constants or len(access.axes) != 1:
            raise _Unknown
        if access.axes[0].offset or len(access.axes[0].steps) != 1:
            raise _Unknown
        return program.constants[access.tensor].astype(np.int64)

    bias = np.zeros(1, np.int64)
    total = step.arguments[0]
    if total != 0:
        added = step_of(total)
        if added.operation != "add" or 0 not in added.arguments:
            raise _Unknown
        bias = vector(next(a for a in added.arguments if a != 0))
    value, zero_point = number, 0
    low, high = -(2**31), 2**31 - 1
    while True:
        users = [
            (len(finish.arguments) + i, s)
            for i, s in enumerate(finish.steps)
            if value in s.arguments
        ]
        if len(users) != 1 or users[0][1].dtype is not DType.INT32:
            break
        at, user = users[0]
        if user.operation not in {"add", "maximum", "minimum"} or user.arguments[0] != value:
            break
        try:
            other = constant(user.arguments[1])
        except _Unknown:
            break
        if user.operation == "add":
            if (low, high) != (-(2**31), 2**31 - 1):
                break
            zero_point += other
        elif user.operation == "maximum":
            low = max(low, other)
        else:
            high = min(high, other)
        value = at
    if high - low > 255:
        raise _Unknown
    return Scaled(
        value, bias, vector(step.arguments[1]), vector(step.arguments[2]), zero_point, (low, high)
    )


def byte_of(finish: Expression, scaled: Scaled) -> tuple[int, int] | None:
    """(the byte that the requantised value becomes, what is added for it), or None. 128 is added
    where int8 is stored as uint8, -128 where uint8 is stored as int8, otherwise 0.
    """
    first, value, offset = len(finish.arguments), scaled.value, 0
    found: tuple[int, int] | None = None
    while value != finish.result and not offset:
        users = [(first + i, s) for i, s in enumerate(finish.steps) if value in s.arguments]
        if len(users) != 1:
            break
        value, step = users[0]
        if step.operation == "xor" and step.dtype in BYTES:
            other = finish.steps[step.arguments[1] - first]
            if other.operation != "constant" or abs(int(other.value or 0)) != SIGN:
                break
            offset = SIGN if step.dtype is DType.UINT8 else -SIGN
        elif step.operation != "cast" or step.dtype not in BYTES:
            break
        elif found is not None:
            # The other type of a byte is no other number only once its sign bit is flipped.
            continue
        found = value, offset
    if found is None or 0 in needed(finish, found[0]):
        return None
    return found


def needed(finish: Expression, known: int | None) -> set[int]:
    """The values that the result is computed from where value *known* is given."""
    count, found = len(finish.arguments), {finish.result}
    for number in range(count + len(finish.steps) - 1, count - 1, -1):
        if number in found and number != known:
            found.update(finish.steps[number - count].arguments)
    return found


def held(f: Function, m: Instructions, proof: Proof, place: Index) -> dict[str, Reg]:
    """The constants of *proof*, by name: the vectors that lie *place* bytes into them."""
    size = m.isa.width
    return {n: f.load(m.floats, f.at(f"%{n}", place), size) for n in proof.constants}


def scaled_sum(
    f: Function, m: Instructions, proof: Proof, total: Reg, vectors: Mapping[str, Reg]
) -> Reg:
    """The requantised value, before its zero point, of a vector of sums. *vectors* are `held`."""
    same = "sitofp" if proof.lifted is None else "bitcast"
    real, c = f.value(f"{same} {total} to {m.floats}", m.floats), vectors["c"]
    if "d" in vectors:
        less = f.value(f"icmp slt {total}, zeroinitializer", vector(m.isa.lanes, "i1"))
        c = f.value(f"select {less}, {vectors['d']}, {c}", m.floats)
    return m.rounded(f, real, vectors["a"], c)


def patched(
    f: Function, m: Instructions, whole: Reg, total: Reg, rounds: Sequence[tuple[str, str]]
) -> Reg:
    """*whole* with a number added for certain sums. *rounds* are pointers to a vector of sums and
    to what each adds.
    """
    for sums, deltas in rounds:
        special = f.load(m.words, sums, m.isa.width)
        same = f.value(f"icmp eq {total}, {special.name}", vector(m.isa.lanes, "i1"))
        delta = f.load(m.words, deltas, m.isa.width)
        added = f.value(f"select {same}, {delta}, {m.words} zeroinitializer", m.words)
        whole = f.value(f"add {whole}, {added.name}", m.words)
    return whole


def packed(
    f: Function, m: Instructions, whole: list[Reg], scaled: Scaled, offset: int, dtype: DType
) -> Reg:
    """Four vectors of 32 bits as bytes, plus the zero point, clamped."""
    signed = dtype is DType.INT8
    result = m.pack(f, whole, scaled.zero_point + offset, signed=signed)
    low, high = scaled.limits[0] + offset, scaled.limits[1] + offset
    return bounded(f, result, (low, high), signed=signed)


def bounded(f: Function, value: Reg, limits: tuple[int, int], *, signed: bool) -> Reg:
    """A vector of bytes within *limits*."""
    least, most = (-128, 127) if signed else (0, 255)
    kind, (count, _) = "s" if signed else "u", lanes_of(value.type)
    for bound, limit, operation in ((limits[0], least, "max"), (limits[1], most, "min")):
        if bound != limit:
            constant = splatted(str(bound), "i8", count)
            value = f.call(f"llvm.{kind}{operation}.v{count}i8", value.type, value, constant)
    return value
