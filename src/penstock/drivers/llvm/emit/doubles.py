"""Elementary functions of float64, to a few units in the last place; and those of float32 that are
computed in float64.

exp and log: Cody and Waite's reduction (Software Manual for the Elementary Functions, 1980), and
the series of exp and of the inverse hyperbolic tangent. erf: W. J. Cody's rational functions
(Mathematics of Computation 23, 1969). Integers are made from floats by adding 1.5 * 2**52, which
every instruction set can do on vectors.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Final

from penstock.drivers.llvm.emit.assembler import Reg
from penstock.drivers.llvm.emit.scalars import Scalars
from penstock.ir import DType

F32, F64, I32, I64, BOOL = DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.BOOL

MAGIC: Final = 1.5 * 2.0**52
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def bitcast(w: Scalars, value: Reg, made: DType) -> Reg:
    """The bits of *value* as *made*, which is as wide."""
    type_ = w.type_of(made)
    return w.function.value(f"bitcast {value} to {type_}", type_)


def fma(w: Scalars, a: Reg, b: Reg, c: Reg) -> Reg:
    return w.intrinsic("fma", a, b, c)


def polynomial(w: Scalars, x: Reg, coefficients: Sequence[float]) -> Reg:
    """Horner's scheme; the highest power first."""
    result = w.constant(coefficients[0], F64)
    for coefficient in coefficients[1:]:
        result = fma(w, result, x, w.constant(coefficient, F64))
    return result


def bounded(w: Scalars, x: Reg, low: float, high: float) -> Reg:
    """X within bounds; NaN stays NaN."""
    x = w.extreme("olt", "min", [w.constant(high, F64), x], F64)
    return w.extreme("ogt", "max", [w.constant(low, F64), x], F64)


EXP: Final = tuple(1 / math.factorial(k) for k in range(13, 1, -1))


def exp(w: Scalars, x: Reg) -> Reg:
    """2**n * exp(r) with |r| <= ln(2) / 2; 0 below -746, infinity above 709.8."""
    x = bounded(w, x, -746.0, 710.0)
    n = w.intrinsic("roundeven", w.op("fmul", F64, x, w.constant(math.log2(math.e), F64)))
    r = fma(w, n, w.constant(-LN2_HIGH, F64), x)
    r = fma(w, n, w.constant(-LN2_LOW, F64), r)
    square = w.op("fmul", F64, r, r)
    rest = w.op("fadd", F64, r, w.constant(1.0, F64))
    p = fma(w, polynomial(w, r, EXP), square, rest)
    # Two factors, so that results below the least normal number are right as well.
    half = w.intrinsic("floor", w.op("fmul", F64, n, w.constant(0.5, F64)))
    other = w.op("fsub", F64, n, half)
    return w.op("fmul", F64, w.op("fmul", F64, p, _power(w, half)), _power(w, other))


def _power(w: Scalars, exponent: Reg) -> Reg:
    """2**exponent, a whole number as float64."""
    moved = w.op("fadd", F64, exponent, w.constant(MAGIC + 1023.0, F64))
    bits = w.op("shl", I64, bitcast(w, moved, I64), w.constant(52, I64))
    return bitcast(w, bits, F64)


LOG: Final = tuple(2 / k for k in range(25, 1, -2))
SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD


def log(w: Scalars, x: Reg) -> Reg:
    """The sum of n ln(2) and the logarithm of the mantissa m in [sqrt(1/2), sqrt(2)): the
    series in (m - 1) / (m + 1).
    """
    tiny = w.op("fcmp olt", BOOL, x, w.constant(2.2250738585072014e-308, F64))
    scaled = w.choose(tiny, w.op("fmul", F64, x, w.constant(2.0**54, F64)), x)
    bits = w.op("sub", I64, bitcast(w, scaled, I64), w.constant(SQRT_HALF_BITS, I64))
    exponent = w.op("ashr", I64, bits, w.constant(52, I64))
    fraction = w.op("and", I64, bits, w.constant((1 << 52) - 1, I64))
    m = bitcast(w, w.op("add", I64, fraction, w.constant(SQRT_HALF_BITS, I64)), F64)
    moved = bitcast(w, w.op("add", I64, exponent, w.constant(_bits(MAGIC), I64)), F64)
    n = w.op("fsub", F64, moved, w.constant(MAGIC, F64))
    n = w.choose(tiny, w.op("fsub", F64, n, w.constant(54.0, F64)), n)
    f = w.op("fsub", F64, m, w.constant(1.0, F64))
    s = w.op("fdiv", F64, f, w.op("fadd", F64, f, w.constant(2.0, F64)))
    z = w.op("fmul", F64, s, s)
    series = w.op("fmul", F64, polynomial(w, z, LOG), z)
    small = fma(w, s, series, w.op("fadd", F64, s, s))
    small = fma(w, n, w.constant(LN2_LOW, F64), small)
    result = fma(w, n, w.constant(LN2_HIGH, F64), small)
    zero = w.constant(0.0, F64)
    result = w.choose(w.op("fcmp oeq", BOOL, x, zero), w.constant(-math.inf, F64), result)
    result = w.choose(w.op("fcmp olt", BOOL, x, zero), w.constant(math.nan, F64), result)
    # Infinity and NaN are their own logarithms.
    return w.choose(w.op("fcmp ueq", BOOL, x, w.constant(math.inf, F64)), x, result)


EXPM1: Final = tuple(1 / math.factorial(k) for k in range(16, 1, -1))


def expm1(w: Scalars, x: Reg) -> Reg:
    """The series below one half, exp(x) - 1 above."""
    square = w.op("fmul", F64, x, x)
    small = fma(w, polynomial(w, x, EXPM1), square, x)
    large = w.op("fsub", F64, exp(w, x), w.constant(1.0, F64))
    near = w.op("fcmp olt", BOOL, w.intrinsic("fabs", x), w.constant(0.5, F64))
    return w.choose(near, small, large)


def tanh(w: Scalars, x: Reg) -> Reg:
    """T / (t + 2) with t = exp(2x) - 1."""
    size = bounded(w, w.intrinsic("fabs", x), 0.0, 20.0)
    t = expm1(w, w.op("fadd", F64, size, size))
    result = w.op("fdiv", F64, t, w.op("fadd", F64, t, w.constant(2.0, F64)))
    return w.intrinsic("copysign", result, x)


def logistic(w: Scalars, x: Reg) -> Reg:
    """1 / (1 + exp(-x))."""
    one = w.constant(1.0, F64)
    small = exp(w, w.op("fneg", F64, w.intrinsic("fabs", x)))
    negative = w.op("fcmp olt", BOOL, x, w.constant(0.0, F64))
    return w.op("fdiv", F64, w.choose(negative, small, one), w.op("fadd", F64, one, small))


SMALL: Final = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
MIDDLE: Final = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
     1.23033935480374942e3),
)  # fmt: skip
LARGE: Final = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip


def _rational(w: Scalars, x: Reg, pair: tuple[tuple[float, ...], tuple[float, ...]]) -> Reg:
    return w.op("fdiv", F64, polynomial(w, x, pair[0]), polynomial(w, x, pair[1]))


def erf(w: Scalars, x: Reg) -> Reg:
    """The error function: three rational functions, of x, of |x|, and of 1 / x**2."""
    one = w.constant(1.0, F64)
    size = bounded(w, w.intrinsic("fabs", x), 0.0, 6.0)
    square = w.op("fmul", F64, size, size)
    small = w.op("fmul", F64, x, _rational(w, square, SMALL))
    middle = _rational(w, size, MIDDLE)
    safe = w.extreme("ogt", "max", [square, one], F64)
    inverse = w.op("fdiv", F64, one, safe)
    tail = w.op("fmul", F64, inverse, _rational(w, inverse, LARGE))
    root = w.constant(1 / math.sqrt(math.pi), F64)
    large = w.op("fmul", F64, w.op("fsub", F64, root, tail), w.intrinsic("sqrt", inverse))
    far = w.op("fcmp ogt", BOOL, size, w.constant(4.0, F64))
    rest = w.op("fmul", F64, w.choose(far, large, middle), exp(w, w.op("fneg", F64, square)))
    outer = w.intrinsic("copysign", w.op("fsub", F64, one, rest), x)
    near = w.op("fcmp ole", BOOL, size, w.constant(0.46875, F64))
    return w.choose(near, small, outer)


def power(w: Scalars, a: Reg, b: Reg) -> Reg:
    """exp(b * log(|a|)), with the sign and the special values of C's pow."""
    one, zero = w.constant(1.0, F64), w.constant(0.0, F64)
    size = w.intrinsic("fabs", a)
    result = exp(w, w.op("fmul", F64, b, log(w, size)))
    whole = w.op("fcmp oeq", BOOL, w.intrinsic("roundeven", b), b)
    half = w.op("fmul", F64, b, w.constant(0.5, F64))
    odd = w.op("fcmp one", BOOL, w.intrinsic("floor", half), half)
    odd = w.op("and", BOOL, whole, odd)
    result = w.choose(odd, w.intrinsic("copysign", result, a), result)
    infinite = w.op("fcmp oeq", BOOL, size, w.constant(math.inf, F64))
    negative = w.op("fcmp olt", BOOL, a, zero)
    known = w.op("or", BOOL, whole, infinite)
    unknown = w.op("and", BOOL, negative, w.op("xor", BOOL, known, w.constant(1, BOOL)))
    result = w.choose(unknown, w.constant(math.nan, F64), result)
    endless = w.op("fcmp oeq", BOOL, w.intrinsic("fabs", b), w.constant(math.inf, F64))
    unit = w.op("and", BOOL, w.op("fcmp oeq", BOOL, size, one), endless)
    ones = w.op("or", BOOL, unit, w.op("fcmp oeq", BOOL, a, one))
    ones = w.op("or", BOOL, ones, w.op("fcmp oeq", BOOL, b, zero))
    return w.choose(ones, one, result)


TWO_OVER_PI: Final = 2 / math.pi
HALF_PI: Final = (1.5707963267948966, 6.123233995736766e-17)
SIN: Final = tuple((-1) ** (k // 2) / math.factorial(k) for k in range(17, 2, -2))
COS: Final = tuple((-1) ** (k // 2) / math.factorial(k) for k in range(16, 3, -2))


PIECES: Final = (
    0xA2F983, 0x6E4E44, 0x1529FC, 0x2757D1, 0xF534DD, 0xC0DB62, 0x95993C, 0x439041,
)  # fmt: skip
"""2 / pi in pieces of 24 bits, the first just below the point."""

NEAR: Final = 2.0**50
"""Below it, a number is reduced by two pieces of pi / 2."""


def _reduced(w: Scalars, x: Reg) -> tuple[Reg, Reg]:
    """A whole number n, modulo 4, and r, so that x = n * pi / 2 + r, and |r| <= pi / 4.

    Greater numbers are reduced as by M. Payne and R. Hanek ("Radian reduction for trigonometric
    functions", 1983): the products of a float32 and a piece are exact, and each is taken modulo 4.
    """
    n = w.intrinsic("roundeven", w.op("fmul", F64, x, w.constant(TWO_OVER_PI, F64)))
    r = fma(w, n, w.constant(-HALF_PI[0], F64), x)
    r = bounded(w, fma(w, n, w.constant(-HALF_PI[1], F64), r), -1.0, 1.0)
    parts: list[Reg] = []
    for number, piece in enumerate(PIECES):
        part = w.op("fmul", F64, x, w.constant(math.ldexp(piece, -24 * (number + 1)), F64))
        whole = w.intrinsic("roundeven", w.op("fmul", F64, part, w.constant(0.25, F64)))
        parts.append(fma(w, whole, w.constant(-4.0, F64), part))
    far = functools.reduce(lambda one, other: w.op("fadd", F64, one, other), parts)
    nearest = w.intrinsic("roundeven", far)
    rest = w.op("fmul", F64, w.op("fsub", F64, far, nearest), w.constant(HALF_PI[0], F64))
    is_near = w.op("fcmp olt", BOOL, w.intrinsic("fabs", x), w.constant(NEAR, F64))
    return w.choose(is_near, n, nearest), w.choose(is_near, r, rest)


def _circular(w: Scalars, x: Reg, quarter: int) -> Reg:
    """The sine of x + quarter * pi / 2, of a float32 *x* as float64."""
    n, r = _reduced(w, x)
    square = w.op("fmul", F64, r, r)
    s = fma(w, w.op("fmul", F64, polynomial(w, square, SIN), square), r, r)
    c = fma(w, square, w.constant(-0.5, F64), w.constant(1.0, F64))
    c = fma(w, w.op("fmul", F64, square, square), polynomial(w, square, COS), c)
    # The quarter of the circle: n modulo 4.
    quarters = w.op("fmul", F64, n, w.constant(0.25, F64))
    rest = w.op("fsub", F64, quarters, w.intrinsic("floor", quarters))
    turn = w.cast(w.op("fmul", F64, rest, w.constant(4.0, F64)), F64, I32)
    turn = w.op("add", I32, turn, w.constant(quarter, I32))
    zero = w.constant(0, I32)
    odd = w.op("icmp ne", BOOL, w.op("and", I32, turn, w.constant(1, I32)), zero)
    flip = w.op("icmp ne", BOOL, w.op("and", I32, turn, w.constant(2, I32)), zero)
    value = w.choose(odd, c, s)
    return w.choose(flip, w.op("fneg", F64, value), value)


def sin(w: Scalars, x: Reg) -> Reg:
    return _circular(w, x, 0)


def cos(w: Scalars, x: Reg) -> Reg:
    return _circular(w, x, 1)


CHUNKS: Final = 12
"""How many times 24 bits the quotient of two float32 may have."""


def modulo(w: Scalars, a: Reg, b: Reg) -> Reg:
    """The remainder, with the sign of *b*, of float32 values as float64: 24 bits of the quotient at
    a time, each step exact.
    """
    size, rest = w.intrinsic("fabs", b), w.intrinsic("fabs", a)
    for chunk in range(CHUNKS - 1, -1, -1):
        step = w.op("fmul", F64, size, w.constant(2.0 ** (24 * chunk), F64))
        count = w.intrinsic("trunc", w.op("fdiv", F64, rest, step))
        rest = fma(w, w.op("fneg", F64, count), step, rest)
    infinite = w.constant(math.inf, F64)
    endless = w.op("fcmp oeq", BOOL, size, infinite)
    finite = w.op("fcmp olt", BOOL, w.intrinsic("fabs", a), infinite)
    rest = w.choose(w.op("and", BOOL, endless, finite), w.intrinsic("fabs", a), rest)
    rest = w.intrinsic("copysign", rest, a)
    zero = w.constant(0.0, F64)
    signs = w.op("xor", BOOL, w.op("fcmp olt", BOOL, rest, zero), w.op("fcmp olt", BOOL, b, zero))
    some = w.op("fcmp one", BOOL, rest, zero)
    moved = w.op("fadd", F64, rest, b)
    result = w.choose(w.op("and", BOOL, some, signs), moved, rest)
    none = w.op("fcmp oeq", BOOL, rest, zero)
    return w.choose(none, w.intrinsic("copysign", zero, b), result)


FUNCTIONS: Final[dict[str, Callable[..., Reg]]] = {
    "cos": cos,
    "erf": erf,
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "logistic": logistic,
    "power": power,
    "sin": sin,
    "tanh": tanh,
}
"""The functions of float64."""

WIDENED: Final = frozenset(["cos", "erf", "expm1", "mod", "power", "sin"])
"""The functions of float32 that are computed in float64."""
