"""Normalisations: by the length of vectors, by neighbours in depth, and by image."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise import fixed
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32, I64
from penstock.compiler.legalise.quantised import NARROW, scale_of
from penstock.compiler.legalise.rows import Rows
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import require
from penstock.ir import DType

LEAST_NORM: Final = 9.999999974752427e-07
"""1e-6 as float32."""

MOST_DEPTH: Final = 1 << 14


@legal("L2_NORMALIZATION")
def l2_normalization(operation: Operation) -> None:
    """Vectors over their length. Quantised results are in 1/128 around the middle."""
    site = operation.site
    dtype = site.input().dtype
    require(site.activation == "NONE", f"L2_NORMALIZATION with {site.activation}")
    require(dtype is site.output().dtype, "a result of another type")
    rows = Rows(operation)
    if dtype is not F32:
        require(dtype in NARROW, "types of this operation")
        _quantised_l2(operation, rows)
        return
    scope = Scope(F32)
    square = scope.finish(scope.argument(0) * scope.argument(0))
    sums = rows.reduced("squares", [rows.every(rows.source)], square, "sum", F32)
    lengths = rows.of_row("lengths", sums, lambda x: x.apply("sqrt").clamp(LEAST_NORM, None))
    scope = Scope(F32, F32)
    share = scope.finish(scope.argument(0) / scope.argument(1))
    reads = [rows.every(rows.source), rows.one(lengths)]
    rows.made("l2_normalization", reads, share, operation.target())


def _quantised_l2(operation: Operation, rows: Rows) -> None:
    site = operation.site
    dtype = rows.dtype
    zero, made = scale_of(site.input(), "the input").zero_point, scale_of(site.output(), "a result")
    least, middle = (0, 128) if dtype is DType.UINT8 else (-128, 0)
    require(made.scale == 1 / 128 and made.zero_point == middle, "results that are not in 1/128")
    require(rows.shape[-1] <= MOST_DEPTH, "vectors of this length")
    scope = Scope(dtype)
    value = scope.argument(0).cast(I32) - zero
    body = scope.finish(value * value)
    sums = rows.reduced("squares", [rows.every(rows.source)], body, "sum", I32)
    mantissas, shifts = (rows.of_row("inverse", sums, partial(_inverse_root, at)) for at in (0, 1))
    scope = Scope(dtype, I32, I32)
    x, mantissa, shift = scope.argument(0).cast(I32) - zero, scope.argument(1), scope.argument(2)
    if dtype is DType.UINT8:
        scaled = scope.add("rescale", x * 128, mantissa, shift)
    else:
        scaled = scope.add("rescale", x, mantissa, shift + 7)
    result = scope.finish((scaled + middle).clamp(least, least + 255).cast(dtype))
    reads = [rows.every(rows.source), rows.one(mantissas), rows.one(shifts)]
    rows.made("l2_normalization", reads, result, operation.target())


def _inverse_root(part: int, x: Value) -> Value:
    """The mantissa (part 0) or the shift (part 1) of 1 / sqrt(x)."""
    return fixed.inverse_root(x.cast(I64))[part].cast(I32)


@legal("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(operation: Operation) -> None:
    """X / (bias + alpha * the sum of squares of its neighbours in depth) ** beta."""
    site = operation.site
    require(site.input().dtype is site.output().dtype is F32, "types of this operation")
    shape, radius = site.shape(), site.attributes.integer("radius")
    require(radius >= 0 and len(shape) > 0, f"a radius of {radius}")
    bias, alpha, beta = (site.attributes.number(name) for name in ("bias", "alpha", "beta"))
    reach, last = min(radius, shape[-1]), len(shape) - 1
    near = Position(-reach, ((last, 1), (last + 1, 1)))
    source = operation.tensor()
    read = Access(source, (*along(*range(last)), near), 0.0)
    body = Scope(F32)
    square = body.finish(body.argument(0) * body.argument(0))
    scope = Scope(F32, F32)
    norm = scope.argument(0) * alpha + bias
    result = scope.finish(scope.argument(1) * _inverse_power(norm, beta))
    operation.build.emit(
        "local_response", shape, [read], square, operation.whole(operation.target()),
        reduced=(2 * reach + 1,), combine="sum", sums=F32, finish=result,
        extras=[operation.whole(source)],
    )  # fmt: skip


def _inverse_power(x: Value, beta: float) -> Value:
    """X ** -beta."""
    if beta == 1.0:
        return x.scope.constant(1.0, F32) / x
    if beta == 0.5:
        return x.apply("rsqrt")
    if beta == 0.75:
        # A power takes several times as long as roots.
        root = x.apply("rsqrt")
        return root * root.apply("sqrt")
    return x.apply("power", -beta)


F64: Final = DType.FLOAT64


@legal("INSTANCE_NORMALIZATION")
def instance_normalization(operation: Operation) -> None:
    """(x - mean) * gamma / sqrt(variance + epsilon) + beta of each channel of each image, in
    float64.
    """
    site = operation.site
    shape = site.shape()
    require(site.input().dtype is site.output().dtype is F32, "types of this operation")
    require(len(shape) == 4, "an image of another rank")
    gamma, beta, epsilon = (site.attributes.number(name) for name in ("gamma", "beta", "epsilon"))
    first = site.attributes.text("data_layout") == "NCHW"
    across = (2, 3) if first else (1, 2)
    depth = 1 if first else 3
    count = float(shape[across[0]] * shape[across[1]])
    build, source, outer = operation.build, operation.tensor(), (shape[0], shape[depth])
    numbers = {0: 0, depth: 1, across[0]: 2, across[1]: 3}
    inner = Access(source, along(*(numbers[axis] for axis in range(4))))
    one = along(0, 1)
    means, scales = build.tensor(F64, outer), build.tensor(F64, outer)
    body, finish = Scope(F32), Scope(F64)
    build.emit(
        "mean", outer, [inner], body.finish(body.argument(0).cast(F64)), Access(means, one),
        reduced=tuple(shape[axis] for axis in across), combine="sum",
        finish=finish.finish(finish.argument(0) / count),
    )  # fmt: skip
    body, finish = Scope(F32, F64), Scope(F64)
    centred = body.argument(0).cast(F64) - body.argument(1)
    root = (finish.argument(0) / count + epsilon).apply("sqrt")
    build.emit(
        "variance", outer, [inner, Access(means, one)], body.finish(centred * centred),
        Access(scales, one), reduced=tuple(shape[axis] for axis in across), combine="sum",
        finish=finish.finish(finish.constant(gamma, F64) / root),
    )  # fmt: skip
    scope = Scope(F32, F64, F64)
    centred = scope.argument(0).cast(F64) - scope.argument(1)
    result = scope.finish((centred * scope.argument(2) + beta).cast(F32))
    row = along(0, depth)
    reads = [operation.whole(source), Access(means, row), Access(scales, row)]
    build.emit("normalised", shape, reads, result, operation.whole(operation.target()))
