"""Elementary functions of float32 by range reduction and polynomials, to about two units in the
last place.

exp and log: minimax polynomials after Cody and Waite's reduction (Software Manual for the
Elementary Functions, 1980). tanh and logistic: from exp. erf: a rational function (Cody, 1969), as
the reference device computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.drivers.llvm.emit.assembler import Reg
from penstock.drivers.llvm.emit.scalars import Scalars
from penstock.ir import DType

F32, I32, F64 = DType.FLOAT32, DType.INT32, DType.FLOAT64

LOG2E: Final = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4


def _fma(w: Scalars, a: Reg, b: Reg, c: Reg) -> Reg:
    return w.intrinsic("fma", a, b, c)


def polynomial(w: Scalars, x: Reg, coefficients: tuple[float, ...], dtype: DType = F32) -> Reg:
    """Horner's scheme; the highest power first."""
    result = w.constant(coefficients[0], dtype)
    for coefficient in coefficients[1:]:
        result = _fma(w, result, x, w.constant(coefficient, dtype))
    return result


EXP: Final = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
              5.0000001201e-1)  # fmt: skip


def exp(w: Scalars, x: Reg) -> Reg:
    """2**n * exp(r) with |r| <= ln(2) / 2; 0 below -103.3, infinity above 88.7."""
    high, low = w.constant(88.8, F32), w.constant(-104.0, F32)
    # The second of two floats is taken where one is NaN: NaN stays NaN.
    bounded = w.extreme("olt", "min", [high, x], F32)
    bounded = w.extreme("ogt", "max", [low, bounded], F32)
    n = w.intrinsic("roundeven", w.op("fmul", F32, bounded, w.constant(LOG2E, F32)))
    r = _fma(w, n, w.constant(-LN2_HIGH, F32), bounded)
    r = _fma(w, n, w.constant(-LN2_LOW, F32), r)
    square = w.op("fmul", F32, r, r)
    p = _fma(w, polynomial(w, r, EXP), square, w.op("fadd", F32, r, w.constant(1.0, F32)))
    scaled = w.machine.scaled(w.function, p, n, w.lanes)
    if scaled is not None:
        return scaled
    # Two factors, so that results below the least normal number are right as well.
    whole = w.cast(n, F32, I32)
    half = w.op("ashr", I32, whole, w.constant(1, I32))
    rest = w.op("sub", I32, whole, half)
    return w.op("fmul", F32, w.op("fmul", F32, p, _power_of_two(w, half)), _power_of_two(w, rest))


def _power_of_two(w: Scalars, exponent: Reg) -> Reg:
    biased = w.op("add", I32, exponent, w.constant(127, I32))
    bits = w.op("shl", I32, biased, w.constant(23, I32))
    return w.function.value(f"bitcast {bits} to {w.type_of(F32)}", w.type_of(F32))


def logistic(w: Scalars, x: Reg) -> Reg:
    one = w.constant(1.0, F32)
    small = exp(w, w.op("fneg", F32, w.intrinsic("fabs", x)))
    negative = w.op("fcmp olt", DType.BOOL, x, w.constant(0.0, F32))
    top = w.choose(negative, small, one)
    return w.op("fdiv", F32, top, w.op("fadd", F32, one, small))


TANH: Final = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
               -3.33332819422e-1)  # fmt: skip


def tanh(w: Scalars, x: Reg) -> Reg:
    """A polynomial below 0.625; 1 - 2 / (exp(2x) + 1) above."""
    size = w.intrinsic("fabs", x)
    square = w.op("fmul", F32, x, x)
    product = w.op("fmul", F32, polynomial(w, square, TANH), square)
    small = _fma(w, product, x, x)
    two, one = w.constant(2.0, F32), w.constant(1.0, F32)
    bounded = w.extreme("olt", "min", [w.constant(10.0, F32), size], F32)
    power = w.op("fadd", F32, exp(w, w.op("fmul", F32, bounded, two)), one)
    large = w.op("fsub", F32, one, w.op("fdiv", F32, two, power))
    large = w.intrinsic("copysign", large, x)
    near = w.op("fcmp olt", DType.BOOL, size, w.constant(0.625, F32))
    return w.choose(near, small, large)


LOG: Final = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
              -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


def log(w: Scalars, x: Reg) -> Reg:
    """The logarithm of a number above 0: of its mantissa in [sqrt(1/2), sqrt(2)), and n ln(2).
    0 gives minus infinity, a negative number NaN.
    """
    tiny = w.op("fcmp olt", DType.BOOL, x, w.constant(1.17549435e-38, F32))
    scaled = w.choose(tiny, w.op("fmul", F32, x, w.constant(2.0**25, F32)), x)
    type_ = w.type_of(I32)
    bits = w.function.value(f"bitcast {scaled} to {type_}", type_)
    bits = w.op("sub", I32, bits, w.constant(0x3F3504F3, I32))
    exponent = w.op("ashr", I32, bits, w.constant(23, I32))
    fraction = w.op("and", I32, bits, w.constant(0x007FFFFF, I32))
    fraction = w.op("add", I32, fraction, w.constant(0x3F3504F3, I32))
    m = w.function.value(f"bitcast {fraction} to {w.type_of(F32)}", w.type_of(F32))
    n = w.cast(exponent, I32, F32)
    n = w.choose(tiny, w.op("fsub", F32, n, w.constant(25.0, F32)), n)
    r = w.op("fsub", F32, m, w.constant(1.0, F32))
    square = w.op("fmul", F32, r, r)
    p = w.op("fmul", F32, w.op("fmul", F32, polynomial(w, r, LOG), r), square)
    p = _fma(w, n, w.constant(LN2_LOW, F32), p)
    p = _fma(w, square, w.constant(-0.5, F32), p)
    result = _fma(w, n, w.constant(LN2_HIGH, F32), w.op("fadd", F32, r, p))
    zero = w.constant(0.0, F32)
    is_zero = w.op("fcmp oeq", DType.BOOL, x, zero)
    infinite = w.constant(float("-inf"), F32)
    result = w.choose(is_zero, infinite, result)
    negative = w.op("fcmp olt", DType.BOOL, x, zero)
    result = w.choose(negative, w.constant(float("nan"), F32), result)
    # Infinity and NaN are their own logarithms.
    top = w.op("fcmp ueq", DType.BOOL, x, w.constant(float("inf"), F32))
    return w.choose(top, x, result)


FUNCTIONS: Final[dict[str, Callable[..., Reg]]] = {
    "exp": exp,
    "log": log,
    "logistic": logistic,
    "tanh": tanh,
}
