"""Prints single steps of an expression as instructions on vectors of any width."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from penstock.compiler.expression import Number, Step
from penstock.drivers.llvm.emit.assembler import (
    SCALARS,
    Function,
    Reg,
    first_of,
    splatted,
    suffix_of,
    vector,
)
from penstock.drivers.llvm.isa import Instructions
from penstock.ir import DType

UNSIGNED: Final = frozenset({DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64, DType.BOOL})


FLOAT: Final = DType.FLOAT32
I32: Final = DType.INT32


def register_type(dtype: DType) -> str:
    """The LLVM type of one value in a register: booleans have one bit there."""
    return "i1" if dtype is DType.BOOL else SCALARS[dtype]


def literal(value: Number, dtype: DType) -> str:
    """A constant of LLVM's language."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype in {DType.FLOAT32, DType.FLOAT64}:
        number = (
            struct.unpack("<f", struct.pack("<f", value))[0] if dtype is DType.FLOAT32 else value
        )
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if dtype is DType.FLOAT16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    return str(int(value))


class Scalars:
    """Writes scalar operations into *function*, on vectors of *lanes* elements, with the
    instructions of *machine*.

    *table* returns a pointer to a constant tensor and its element type. *active* is a mask of the
    elements that matter (None: all): tables are not read for others.
    """

    active: Reg | None = None

    def __init__(
        self,
        function: Function,
        lanes: int,
        machine: Instructions,
        table: Callable[[int], tuple[str, DType]],
    ) -> None:
        self.function, self.lanes, self.machine, self.table = function, lanes, machine, table

    def type_of(self, dtype: DType) -> str:
        return vector(self.lanes, register_type(dtype))

    def constant(self, value: Number, dtype: DType) -> Reg:
        return splatted(literal(value, dtype), register_type(dtype), self.lanes)

    def step(self, step: Step, given: list[Reg], dtypes: list[DType]) -> Reg:
        """The result of *step* on values of *dtypes*."""
        name = step.operation
        if name == "constant":
            return self.constant(step.value or 0, step.dtype)
        if name == "cast":
            return self.cast(given[0], dtypes[0], step.dtype)
        if name == "lookup":
            return self._lookup(int(step.value or 0), given[0], dtypes[0], step.dtype)
        special = getattr(self, f"_{name}", None)
        if special is not None:
            return special(given, dtypes, step.dtype)  # type: ignore[no-any-return]
        raise NotImplementedError(f"{name} of {step.dtype.value}")

    def op(self, text: str, dtype: DType, *values: Reg) -> Reg:
        """An instruction of operands of one type."""
        names = ", ".join(v.name for v in values)
        return self.function.value(f"{text} {values[0].type} {names}", self.type_of(dtype))

    def intrinsic(self, name: str, *values: Reg, extra: str = "") -> Reg:
        """An intrinsic that is overloaded by the type of its first operand."""
        type_ = values[0].type
        scalar = {"float": "f32", "double": "f64"}.get(type_.split(" x ")[-1].strip("<>"), "")
        scalar = scalar or type_.split(" x ")[-1].strip("<>")
        suffix = f"v{self.lanes}{scalar}" if self.lanes > 1 else scalar
        given = [*values, *([Reg(extra.split()[1], extra.split(maxsplit=1)[0])] if extra else [])]
        return self.function.call(f"llvm.{name}.{suffix}", type_, *given)

    # Arithmetic.

    def _add(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("fadd" if dtype.is_float else "add", dtype, *v)

    def _sub(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("fsub" if dtype.is_float else "sub", dtype, *v)

    def _mul(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("fmul" if dtype.is_float else "mul", dtype, *v)

    def _safe_divisor(self, divisor: Reg, dtype: DType, *, signed: bool) -> Reg:
        """1 in the place of 0, and of -1 if *signed*."""
        one = self.constant(1, dtype)
        zero = self.op("icmp eq", DType.BOOL, divisor, self.constant(0, dtype))
        safe = self.choose(zero, one, divisor)
        if not signed:
            return safe
        minus = self.op("icmp eq", DType.BOOL, divisor, self.constant(-1, dtype))
        return self.choose(minus, one, safe)

    def _div(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        if dtype.is_float:
            return self.op("fdiv", dtype, *v)
        if dtype is DType.UINT64:
            return self.op("udiv", dtype, v[0], self._safe_divisor(v[1], dtype, signed=False))
        if dtype is DType.INT64:
            # The quotient of the least value by -1 would trap.
            safe = self._safe_divisor(v[1], dtype, signed=True)
            minus = self.op("icmp eq", DType.BOOL, v[1], self.constant(-1, dtype))
            negative = self.op("sub", dtype, self.constant(0, dtype), v[0])
            return self.choose(minus, negative, self.op("sdiv", dtype, v[0], safe))
        # In float64, which is exact for 32 bits and never traps.
        safe = self._safe_divisor(v[1], dtype, signed=False)
        a, b = (self.cast(x, dtype, DType.FLOAT64) for x in (v[0], safe))
        return self.cast(self.op("fdiv", DType.FLOAT64, a, b), DType.FLOAT64, dtype)

    def _mod(self, v: list[Reg], d: list[DType], dtype: DType) -> Reg:
        if dtype.is_float:
            raise NotImplementedError(f"mod of {dtype.value}")
        signed = dtype not in UNSIGNED
        # Remainders by 1 and -1 are 0.
        safe = self._safe_divisor(v[1], dtype, signed=signed)
        quotient = self._div([v[0], safe], d, dtype)
        rest = self.op("sub", dtype, v[0], self.op("mul", dtype, quotient, safe))
        if not signed:
            return rest
        zero = self.constant(0, dtype)
        some = self.op("icmp ne", DType.BOOL, rest, zero)
        unlike = self.op("icmp slt", DType.BOOL, self.op("xor", dtype, rest, safe), zero)
        moved = self.op("add", dtype, rest, safe)
        return self.choose(self.op("and", DType.BOOL, some, unlike), moved, rest)

    def _neg(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        if dtype.is_float:
            return self.op("fneg", dtype, *v)
        return self.op("sub", dtype, self.constant(0, dtype), *v)

    def _abs(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        if dtype.is_float:
            return self.intrinsic("fabs", *v)
        if dtype in UNSIGNED:
            return v[0]
        return self.intrinsic("abs", *v, extra="i1 false")

    def _sign(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        zero, one = self.constant(0, dtype), self.constant(1, dtype)
        if dtype in UNSIGNED:
            return self.choose(self.op("icmp eq", DType.BOOL, v[0], zero), zero, one)
        if not dtype.is_float:
            return self.clamped(v[0], -1, 1, dtype)
        # Zeros and NaN are their own signs.
        less, greater = (self.op(f"fcmp {c}", DType.BOOL, v[0], zero) for c in ("olt", "ogt"))
        below = self.choose(less, self.constant(-1, dtype), v[0])
        return self.choose(greater, one, below)

    def _maximum(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.extreme("ogt", "max", v, dtype)

    def _minimum(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.extreme("olt", "min", v, dtype)

    def clamped(self, value: Reg, low: Number, high: Number, dtype: DType) -> Reg:
        """*value* within *low* and *high*."""
        value = self.extreme("ogt", "max", [value, self.constant(low, dtype)], dtype)
        return self.extreme("olt", "min", [value, self.constant(high, dtype)], dtype)

    def extreme(self, compare: str, name: str, v: list[Reg], dtype: DType) -> Reg:
        if dtype.is_float:
            return self.choose(self.op(f"fcmp {compare}", DType.BOOL, *v), v[0], v[1])
        return self.intrinsic(f"{'u' if dtype in UNSIGNED else 's'}{name}", *v)

    def _floor(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.intrinsic("floor", *v)

    def _ceil(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.intrinsic("ceil", *v)

    def _trunc(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.intrinsic("trunc", *v)

    def _round_even(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.intrinsic("roundeven", *v)

    def _round_away(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        """Adds the number below one half, with the sign, and truncates."""
        half = 0.49999997019767761 if dtype is DType.FLOAT32 else 0.49999999999999994
        signed = self.intrinsic("copysign", self.constant(half, dtype), v[0])
        return self.intrinsic("trunc", self.op("fadd", dtype, v[0], signed))

    def _sqrt(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.intrinsic("sqrt", *v)

    def _rsqrt(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("fdiv", dtype, self.constant(1.0, dtype), self.intrinsic("sqrt", *v))

    # Comparisons and bits.

    def _less(self, v: list[Reg], d: list[DType], _: DType) -> Reg:
        return self._compare("lt", v, d[0])

    def _less_equal(self, v: list[Reg], d: list[DType], _: DType) -> Reg:
        return self._compare("le", v, d[0])

    def _equal(self, v: list[Reg], d: list[DType], _: DType) -> Reg:
        text = "fcmp oeq" if d[0].is_float else "icmp eq"
        return self.op(text, DType.BOOL, *v)

    def _compare(self, which: str, v: list[Reg], dtype: DType) -> Reg:
        if dtype.is_float:
            return self.op(f"fcmp o{which}", DType.BOOL, *v)
        return self.op(f"icmp {'u' if dtype in UNSIGNED else 's'}{which}", DType.BOOL, *v)

    def choose(self, condition: Reg, yes: Reg, no: Reg) -> Reg:
        return self.function.value(f"select {condition}, {yes}, {no}", yes.type)

    def _select(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.choose(*v)

    def _and(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("and", dtype, *v)

    def _or(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("or", dtype, *v)

    def _xor(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("xor", dtype, *v)

    def _not(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op(
            "xor", dtype, v[0], self.constant(-1 if dtype is not DType.BOOL else 1, dtype)
        )

    def _shift_left(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("shl", dtype, *v)

    def _shift_right(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        return self.op("lshr" if dtype in UNSIGNED else "ashr", dtype, *v)

    def _leading_zeros(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        """Of numbers of 32 bits, whatever their type is."""
        zeros = self.intrinsic("ctlz", *v, extra="i1 false")
        more = 32 - 8 * dtype.numpy.itemsize
        return self.op("add", dtype, zeros, self.constant(more, dtype)) if more else zeros

    def _bitcast(self, v: list[Reg], _: list[DType], dtype: DType) -> Reg:
        type_ = self.type_of(dtype)
        if v[0].type == type_:
            return v[0]
        return self.function.value(f"bitcast {v[0]} to {type_}", type_)

    # Fixed point (docs of penstock.driverkit.fixed_point), in 64 bits.

    def wide(self, value: Reg, dtype: DType) -> Reg:
        return self.cast(value, dtype, DType.INT64)

    def _narrowed(self, value: Reg, dtype: DType) -> Reg:
        return self.cast(value, DType.INT64, dtype)

    def _high_product(self, v: list[Reg], d: list[DType], dtype: DType) -> Reg:
        a, b = (self.wide(x, t) for x, t in zip(v, d, strict=True))
        return self._narrowed(self._high(a, b), dtype)

    def _high(self, a: Reg, b: Reg) -> Reg:
        i64 = DType.INT64
        product = self.op("mul", i64, a, b)
        product = self.op("add", i64, product, self.constant(1 << 30, i64))
        product = self.op("ashr", i64, product, self.constant(31, i64))
        return self.intrinsic("smin", product, self.constant(2**31 - 1, i64))

    def _divide_by_power(self, v: list[Reg], d: list[DType], dtype: DType) -> Reg:
        x, e = (self.wide(x, t) for x, t in zip(v, d, strict=True))
        return self._narrowed(self._divided(x, e), dtype)

    def _divided(self, x: Reg, exponent: Reg) -> Reg:
        i64 = DType.INT64
        one, zero = self.constant(1, i64), self.constant(0, i64)
        half = self.op("ashr", i64, self.op("shl", i64, one, exponent), one)
        sign = self.op("ashr", i64, x, self.constant(63, i64))
        some = self.op("icmp sgt", DType.BOOL, half, zero)
        less = self.op("and", i64, sign, self.choose(some, self.constant(-1, i64), zero))
        moved = self.op("add", i64, self.op("add", i64, x, half), less)
        return self.op("ashr", i64, moved, exponent)

    def _rescale(self, v: list[Reg], d: list[DType], dtype: DType) -> Reg:
        i64 = DType.INT64
        x, mantissa, shift = (self.wide(x, t) for x, t in zip(v, d, strict=True))
        zero = self.constant(0, i64)
        left = self.intrinsic("smax", shift, zero)
        right = self.intrinsic("smax", self.op("sub", i64, zero, shift), zero)
        left = self.op("and", i64, left, self.constant(31, i64))
        moved = self.op("shl", i64, x, left)
        moved = self.wide(self.cast(moved, i64, DType.INT32), DType.INT32)
        return self._narrowed(self._divided(self._high(moved, mantissa), right), dtype)

    def _rescale_wide(self, v: list[Reg], d: list[DType], dtype: DType) -> Reg:
        i64 = DType.INT64
        x, mantissa, shift = (self.wide(x, t) for x, t in zip(v, d, strict=True))
        rounded = self.op("add", i64, mantissa, self.constant(1 << 15, i64))
        rounded = self.op("ashr", i64, rounded, self.constant(16, i64))
        small = self.op("icmp slt", DType.BOOL, mantissa, self.constant(0x7FFF0000, i64))
        reduced = self.choose(small, rounded, self.constant(0x7FFF, i64))
        total = self.op("sub", i64, self.constant(15, i64), shift)
        mask = self.constant(63, i64)
        before = self.op("and", i64, self.op("sub", i64, total, self.constant(1, i64)), mask)
        half = self.op("shl", i64, self.constant(1, i64), before)
        sum_ = self.op("add", i64, self.op("mul", i64, x, reduced), half)
        result = self.op("ashr", i64, sum_, self.op("and", i64, total, mask))
        return self.cast(self.cast(result, i64, DType.INT32), DType.INT32, dtype)

    # Conversions and tables.

    def cast(self, value: Reg, given: DType, made: DType) -> Reg:
        """A value of type *given* as *made*."""
        source, target = register_type(given), register_type(made)
        type_ = self.type_of(made)
        if source == target:
            return value
        if made is DType.BOOL:
            compare = "fcmp une" if given.is_float else "icmp ne"
            return self.op(compare, made, value, self.constant(0, given))
        half = DType.FLOAT16
        if half in {given, made} and FLOAT not in {given, made}:
            # From and to float16 there are conversions of float32 alone.
            return self.cast(self.cast(value, given, FLOAT), FLOAT, made)
        if given.is_float and made.is_float:
            widens = given.numpy.itemsize < made.numpy.itemsize
            name = "fpext" if widens else "fptrunc"
        elif given.is_float:
            if made in {DType.UINT32, DType.UINT64}:
                name = f"llvm.fptoui.sat.{suffix_of(type_)}.{suffix_of(value.type)}"
                return self.function.call(name, type_, value)
            whole = DType.INT64 if target == "i64" else DType.INT32
            found = self._whole(value, given, whole)
            if register_type(whole) == target:
                return found
            return self.function.value(f"trunc {found} to {type_}", type_)
        elif made.is_float:
            name = "uitofp" if given in UNSIGNED else "sitofp"
        else:
            bits = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
            extend = "zext" if given in UNSIGNED else "sext"
            name = extend if bits[source] < bits[target] else "trunc"
        return self.function.value(f"{name} {value} to {type_}", type_)

    def truncated(self, value: Reg, made: DType) -> Reg:
        """A float32 that is within int32, and not NaN, as an integer of at most 32 bits."""
        whole = self.function.value(f"fptosi {value} to {self.type_of(I32)}", self.type_of(I32))
        return self.cast(whole, I32, made)

    def _whole(self, value: Reg, given: DType, made: DType) -> Reg:
        """A float, truncated, as int32 or int64: the nearest of these where it is beyond them, and
        0 for NaN.
        """
        bits = 8 * made.numpy.itemsize
        type_ = self.type_of(made)
        if self.lanes == 1 or self.machine.isa.architecture == "aarch64":
            name = f"llvm.fptosi.sat.{suffix_of(type_)}.{suffix_of(value.type)}"
            return self.function.call(name, type_, value)
        # x86 has no such instruction for vectors. Comparisons decide what is no such number.
        least, limit = (self.constant(sign * 2.0 ** (bits - 1), given) for sign in (-1, 1))
        most = self.constant(2 ** (bits - 1) - 1, made)
        above = self.op("fcmp oge", DType.BOOL, value, limit)
        inside = self.extreme("ogt", "max", [value, least], given)
        inside = self.choose(above, self.constant(0, given), inside)
        whole = self.function.value(f"fptosi {inside} to {type_}", type_)
        odd = self.op("fcmp uno", DType.BOOL, value, value)
        return self.choose(odd, self.constant(0, made), self.choose(above, most, whole))

    def _lookup(self, table: int, index: Reg, given: DType, made: DType) -> Reg:
        pointer, dtype = self.table(table)
        if given is DType.UINT8 and dtype in {DType.UINT8, DType.INT8} and self.lanes > 1:
            found = self.machine.lookup(self.function, pointer, index, self.lanes)
            if found is not None:
                return found
        # Indexes of 32 bits are extended with their sign.
        narrow = given.numpy.itemsize < 4 or given is DType.INT32
        wide = self.cast(index, given, DType.INT32 if narrow else DType.INT64)
        scalar = SCALARS[dtype]
        if self.lanes == 1:
            place = self.function.value(f"getelementptr {scalar}, ptr {pointer}, {wide}", "ptr")
            return self.loaded(self.function.load(scalar, place.name), dtype)
        pointers = vector(self.lanes, "ptr")
        places = self.function.value(f"getelementptr {scalar}, ptr {pointer}, {wide}", pointers)
        type_ = vector(self.lanes, scalar)
        mask = self.active or first_of(self.lanes, self.lanes)
        kinds = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
        name = f"llvm.masked.gather.v{self.lanes}{kinds}.v{self.lanes}p0"
        found = self.function.call(name, type_, places, mask, Reg("poison", type_))
        return self.loaded(found, dtype)

    def loaded(self, value: Reg, dtype: DType) -> Reg:
        """A value as it lies in memory, as it is in a register."""
        if dtype is not DType.BOOL:
            return value
        return self.function.value(
            f"icmp ne {value}, {'0' if self.lanes == 1 else 'zeroinitializer'}",
            self.type_of(DType.BOOL),
        )

    def stored(self, value: Reg, dtype: DType) -> Reg:
        """A value as it is in a register, as it lies in memory."""
        if dtype is not DType.BOOL:
            return value
        type_ = vector(self.lanes, "i8")
        return self.function.value(f"zext {value} to {type_}", type_)
