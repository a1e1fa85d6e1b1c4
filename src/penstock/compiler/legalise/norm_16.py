"""Layer normalisation of int16 sums, as TFLite's integer LSTM computes it."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation
from penstock.compiler.legalise.quantised import scale_of
from penstock.compiler.program import Access, along
from penstock.driverkit.fixed_point import INT32_MAX, INT32_MIN, quantize_multiplier
from penstock.driverkit.tables_16 import GREATEST, LEAST
from penstock.ir import DType

I16, I32, I64 = DType.INT16, DType.INT32, DType.INT64

RESOLUTION: Final = 1 << 10
"""Numbers of steps of a normalised value, and of a mean, in one step of the sums."""

SQRT_HALF: Final = 1518500250
NEWTON_STEPS: Final = 5


def normalised(
    operation: Operation, sums: Access, shape: tuple[int, int], positions: tuple[int, int]
) -> Access:
    """The int16 gates in Q3 of int16 *sums*, for loops of *shape*, batch and cell. *positions* are
    those of the int16 coefficients and the int32 bias.
    """
    build, site = operation.build, operation.site
    batch, cells = shape
    scale = np.float32(scale_of(site.input(positions[0]), "coefficients").scale)
    row = along(0)
    mean, variance, mantissa, shift = (build.tensor(I32, (batch,)) for _ in range(4))
    one = Scope(I16)
    total = Scope(I64)
    build.emit(
        "mean", (batch,), [sums], one.finish(one.argument(0).cast(I64)), Access(mean, row),
        reduced=(cells,), combine="sum", sums=I64,
        finish=total.finish((total.argument(0) * RESOLUTION / cells).cast(I32)),
    )  # fmt: skip
    wide = one.argument(0).cast(I64)
    both = Scope(I64, I32)
    middle = both.argument(1).cast(I64)
    squares = both.argument(0) * (RESOLUTION**2 // cells)
    build.emit(
        "variance", (batch,), [sums], one.finish(wide * wide), Access(variance, row),
        reduced=(cells,), combine="sum", sums=I64,
        finish=both.finish(((squares - middle * middle) / RESOLUTION**2).cast(I32)),
        extras=[Access(mean, row)],
    )  # fmt: skip
    least = max(1, int(np.float32(10000) * scale))
    for target, which in ((mantissa, 0), (shift, 1)):
        operation.elementwise("root", _root(least, which), [variance], target)
    made = build.tensor(I16, shape)
    reads = [sums, *(Access(t, row) for t in (mean, mantissa, shift))]
    reads += [Access(operation.tensor(p), along(1)) for p in positions]
    build.emit("normalise", shape, reads, _normal(float(scale)), Access(made, along(0, 1)))
    return Access(made, along(0, 1))


def _normal(scale: float) -> Expression:
    """The gate of a sum, its mean, the inverse root's mantissa and shift, coefficient and bias."""
    scope = Scope(I16, I32, I32, I32, I16, I32)
    total, mean, mantissa, shift, coefficient, bias = (scope.argument(i) for i in range(6))
    centred = total.cast(I32) * RESOLUTION - mean
    scaled = scope.add("rescale", centred, mantissa, shift, dtype=I32)
    weighted = (scaled * coefficient.cast(I32) + bias).cast(I64)
    half = scope.constant(RESOLUTION // 2, I64)
    above = scope.compare("less", scope.constant(0, I64), weighted)
    rounded = (weighted + scope.select(above, half, -half)) / RESOLUTION
    factors = quantize_multiplier(scale)
    constants = scope.constant(factors[0], I32), scope.constant(factors[1] + 12, I32)
    result = scope.add("rescale", rounded.cast(I32), *constants, dtype=I32)
    return scope.finish(result.clamp(LEAST, GREATEST).cast(I16))


def _shifted(value: Value, exponent: Value | int) -> Value:
    """A value times 2**exponent, clamped to 32 bits."""
    places = exponent if isinstance(exponent, int) else exponent.cast(I64)
    return value.cast(I64).apply("shift_left", places).clamp(INT32_MIN, INT32_MAX).cast(I32)


def _root(least: int, which: int) -> Expression:
    """The mantissa (*which* 0) or the shift (1) of the inverse square root of a variance, which is
    *least* where it is less than 1; `fixed_point.inverse_square_root`.
    """
    scope = Scope(I32)
    given = scope.argument(0)
    x = scope.select(given < 1, scope.constant(least, I32), given)
    value = x.apply("maximum", 2)
    large = scope.compare("less", value, 1 << 29)
    quarter_of = value.apply("shift_right", 2)
    value = scope.select(large, value, quarter_of)
    right = scope.select(large, scope.constant(11, I32), 12)
    pairs = (value.apply("leading_zeros") - 1).apply("shift_right", 1) - 1
    right = right - pairs
    half = value.apply("shift_left", pairs + pairs).apply("shift_right", 1)
    quarter = half.apply("divide_by_power", 1)
    root = scope.constant(1 << 28, I32)
    for _ in range(NEWTON_STEPS):
        square = root.apply("high_product", root)
        cube = _shifted(square.apply("high_product", root), 6)
        step = root.apply("high_product", (1 << 28) + (1 << 27))
        root = _shifted(step - quarter.apply("high_product", cube), 3)
    root = root.apply("high_product", SQRT_HALF)
    left = (-right).apply("maximum", 0)
    small = x < 2
    if which == 0:
        greatest = scope.constant(INT32_MAX, I32)
        return scope.finish(scope.select(small, greatest, root.apply("shift_left", left)))
    zero = scope.constant(0, I32)
    return scope.finish(scope.select(small, zero, -right.apply("maximum", 0)))
