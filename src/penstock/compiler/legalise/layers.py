"""Convolutions, fully connected layers and matrix products: sums of products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Expression, Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.quantised import (
    NARROW,
    STORED,
    Finish,
    bounds_of,
    layer_multipliers,
    limits_of,
    rescaled,
    scale_of,
    weight_zero,
)
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.checks import Windows, require_rows, windows
from penstock.driverkit.site import Site, require
from penstock.ir import DType

WEIGHTS = NARROW | {DType.INT4}
F32 = DType.FLOAT32


class Products(Struct, frozen=True):
    """The loops and positions of a sum of products."""

    loops: tuple[int, ...]
    reduced: tuple[int, ...]
    data: tuple[Position, ...]
    weights: tuple[Position, ...]
    write: tuple[Position, ...]
    channel: Position


class Layer(Struct, frozen=True):
    """Where a layer has its operands, and which axis of the weights has the scales."""

    data: int = 0
    weights: int = 1
    bias: int = 2
    axis: int = 0
    real: bool = False
    """Whether TFLite scales the sums in float64 and rounds once."""


def emit_layer(operation: Operation, name: str, layer: Layer, products: Products) -> None:
    """Adds the kernel of a layer, in float32 or quantised."""
    site = operation.site
    data, weights = site.input(layer.data), site.input(layer.weights)
    if data.dtype is weights.dtype is site.output().dtype is F32:
        _emit(operation, name, layer, products, F32, (None, None), _float_finish)
        return
    accepted = data.dtype in STORED and weights.dtype in WEIGHTS
    if not (accepted and site.output().dtype in STORED):
        site.refuse_types()
    zero = scale_of(data, "an input").zero_point
    sums = DType.INT64 if _is_wide(site, layer) else DType.INT32
    zeros = zero, weight_zero(weights)
    _emit(operation, name, layer, products, sums, zeros, _quantised_finish)


def _is_wide(site: Site, layer: Layer) -> bool:
    """Whether sums have 64 bits: those of 16-bit data, unless the bias has 32."""
    if site.input(layer.data).dtype is not DType.INT16:
        return False
    if site.has(layer.bias):
        return site.input(layer.bias).dtype is DType.INT64
    return site.attributes.get("quantized_bias_type") != "INT32"


def _emit(
    operation: Operation, name: str, layer: Layer, products: Products, sums: DType,
    zeros: tuple[int | None, int | None],
    finish_of: Callable[[Operation, Layer, Finish], Expression],
) -> None:  # fmt: skip
    data, weights = operation.tensor(layer.data), operation.tensor(layer.weights)
    fill = 0.0 if zeros[0] is None else zeros[0]
    shape = operation.shape(data)
    inside = all(
        low >= 0 and high < size
        for (low, high), size in zip(
            (p.span((*products.loops, *products.reduced)) for p in products.data),
            shape,
            strict=True,
        )
    )
    reads = [
        Access(data, products.data, None if inside else fill),
        Access(weights, products.weights),
    ]
    finish = Finish(operation, sums, products.channel)
    operation.build.emit(
        name,
        products.loops,
        reads,
        product(
            operation.build.tensors[data].dtype, operation.build.tensors[weights].dtype, sums, zeros
        ),
        Access(operation.target(), products.write),
        reduced=products.reduced,
        combine="sum",
        sums=sums,
        finish=finish_of(operation, layer, finish),
        extras=finish.extras,
    )


def product(
    data: DType, weights: DType, sums: DType, zeros: tuple[int | None, int | None]
) -> Expression:
    """(data - zero) * (weights - zero), as *sums*."""
    scope = Scope(data, weights)
    factors = [scope.argument(i).cast(sums) for i in (0, 1)]
    factors = [f - z if z else f for f, z in zip(factors, zeros, strict=True)]
    return scope.finish(factors[0] * factors[1])


def _float_finish(operation: Operation, layer: Layer, finish: Finish) -> Expression:
    bias = finish.bias(layer.bias)
    scope = finish.scope()
    total = scope.argument(0)
    if bias is not None:
        total = total + scope.argument(bias).cast(F32)
    return scope.finish(total.clamp(*bounds_of(operation.site.activation)))


def _quantised_finish(operation: Operation, layer: Layer, finish: Finish) -> Expression:
    site = operation.site
    channels = site.output_shape()[-1]
    data, output = site.input(layer.data), site.output()
    bias = finish.bias(layer.bias)
    single = data.dtype is DType.UINT8 and not layer.real
    multipliers = layer_multipliers(
        site, layer.data, layer.weights, layer.axis, channels, single=single
    )
    limits = limits_of(site.activation, output)
    zero_point = scale_of(output, "an output").zero_point
    wide = _is_wide(site, layer)
    if not layer.real:
        return rescaled(finish, multipliers, bias, limits, zero_point, output.dtype, wide=wide)
    factors = finish.vector(multipliers, DType.FLOAT64)
    scope = finish.scope()
    total = scope.argument(0)
    if bias is not None:
        total = total + scope.argument(bias).cast(total.dtype)
    real = total.cast(DType.FLOAT64)
    factor = (
        scope.constant(float(multipliers.reshape(-1)[0]), DType.FLOAT64)
        if factors is None
        else scope.argument(factors)
    )
    rounded = (real * factor).apply("round_away") + float(zero_point)
    return scope.finish(rounded.clamp(float(limits[0]), float(limits[1])).cast(output.dtype))


def window_positions(w: Windows, outer: Sequence[int], inner: Sequence[int]) -> list[Position]:
    """Position along each spatial axis: output * stride + tap * dilation - padding."""
    return [
        Position(-before, ((o, stride), (i, dilation)))
        for before, stride, dilation, o, i in zip(
            w.before, w.strides, w.dilations, outer, inner, strict=True
        )
    ]


@legal("CONV_2D")
def convolution(operation: Operation) -> None:
    """Images NHWC, filters [out, height, width, in]; grouped where the filters have fewer
    channels.
    """
    site = operation.site
    image, filters, output = site.shape(0), site.shape(1), site.output_shape()
    require(len(image) == len(filters) == 4, "an image of another rank")
    w = windows(site, image[1:3], filters[1:3])
    groups = image[3] // filters[3]
    require(groups * filters[3] == image[3] and output[3] % groups == 0, "channels in no groups")
    if groups == 1:
        rows, across = window_positions(w, (1, 2), (4, 5))
        products = Products(
            output,
            filters[1:],
            (*along(0), rows, across, *along(6)),
            along(3, 4, 5, 6),
            along(0, 1, 2, 3),
            *along(3),
        )
    else:
        each = output[3] // groups
        rows, across = window_positions(w, (1, 2), (5, 6))
        channel = Position(0, ((3, each), (4, 1)))
        products = Products(
            (*output[:3], groups, each),
            filters[1:],
            (*along(0), rows, across, Position(0, ((3, filters[3]), (7, 1)))),
            (channel, *along(5, 6, 7)),
            (*along(0, 1, 2), channel),
            channel,
        )
    emit_layer(operation, "convolution", Layer(), products)


@legal("DEPTHWISE_CONV_2D")
def depthwise(operation: Operation) -> None:
    """Filters [1, height, width, out]: each input channel has out / in of them."""
    site = operation.site
    image, filters, output = site.shape(0), site.shape(1), site.output_shape()
    require(len(image) == len(filters) == 4 and filters[0] == 1, "an image of another rank")
    multiplier = output[3] // image[3]
    require(multiplier * image[3] == output[3] == filters[3], "channels in no groups")
    w = windows(site, image[1:3], filters[1:3])
    if multiplier == 1:
        rows, across = window_positions(w, (1, 2), (4, 5))
        channel, loops, inner = along(3)[0], output, (4, 5)
        depth = channel
    else:
        rows, across = window_positions(w, (1, 2), (5, 6))
        channel = Position(0, ((3, multiplier), (4, 1)))
        loops, inner = (*output[:3], image[3], multiplier), (5, 6)
        depth = along(3)[0]
    products = Products(
        loops,
        filters[1:3],
        (*along(0), rows, across, depth),
        (Position(), *along(*inner), channel),
        (*along(0, 1, 2), channel),
        channel,
    )
    emit_layer(operation, "depthwise", Layer(axis=3), products)


@legal("FULLY_CONNECTED")
def fully_connected(operation: Operation) -> None:
    """The rows of the input times weights [units, depth]."""
    site = operation.site
    require_rows(site)
    weights, output = site.shape(1), site.output_shape()
    units, depth = weights
    rows = math.prod(output) // units if units else 0
    require(rows * depth == math.prod(site.shape()), "an input that does not make rows")
    source = operation.build.alias((rows, depth), operation.tensor())
    target = operation.target()
    flat = operation.build.tensor(site.output().dtype, (rows, units))
    operation.build.aliases[target] = flat
    inner = _Flat(operation, source, flat)
    products = Products((rows, units), (depth,), along(0, 2), along(1, 2), along(0, 1), *along(1))
    emit_layer(inner, "fully_connected", Layer(real=True), products)


class _Flat(Operation):
    """A fully connected layer over the rows of its input, whatever shape that has."""

    def __init__(self, operation: Operation, source: int, target: int) -> None:
        super().__init__(operation.build, operation.site)
        self._source, self._target = source, target

    def tensor(self, position: int = 0) -> int:
        return self._source if position == 0 else super().tensor(position)

    def target(self, position: int = 0) -> int:
        return self._target


@legal("BATCH_MATMUL")
def batch_matmul(operation: Operation) -> None:
    """The last two dimensions multiplied, the others broadcast; either side may be transposed."""
    site = operation.site
    a, b, output = site.shape(0), site.shape(1), site.output_shape()
    adjoint = site.flag("adj_x"), site.flag("adj_y")
    dtypes = {site.input(0).dtype, site.input(1).dtype, site.output().dtype}
    rank, depth = len(output), a[-2] if adjoint[0] else a[-1]
    row, column, inner = rank - 2, rank - 1, rank

    def positions(shape: tuple[int, ...], last: tuple[int, int]) -> tuple[Position, ...]:
        first = rank - len(shape)
        batch = [
            Position() if size == 1 else Position(0, ((first + axis, 1),))
            for axis, size in enumerate(shape[:-2])
        ]
        return (*batch, *along(*last))

    left = positions(a, (inner, row) if adjoint[0] else (row, inner))
    right = positions(b, (column, inner) if adjoint[1] else (inner, column))
    products = Products(output, (depth,), left, right, along(*range(rank)), Position())
    if dtypes == {F32}:
        _emit(operation, "matmul", Layer(bias=9), products, F32, (None, None), _plain)
        return
    quantised = [site.input(0), site.input(1), site.output()]
    require(dtypes <= {DType.INT8} or dtypes <= {DType.INT16}, "types of this product")
    given, other, made = (scale_of(o, "a factor") for o in quantised)
    wide = site.input(0).dtype is DType.INT16
    real = float(np.float32(given.scale) * np.float32(other.scale)) / made.scale
    sums = DType.INT64 if wide else DType.INT32

    def finish(_operation: Operation, _layer: Layer, finish: Finish) -> Expression:
        limits = limits_of("NONE", site.output())
        return rescaled(
            finish, np.array([real]), None, limits, made.zero_point, site.output().dtype, wide=wide
        )

    zeros = given.zero_point, other.zero_point
    _emit(operation, "matmul", Layer(), products, sums, zeros, finish)


def _plain(_operation: Operation, _layer: Layer, finish: Finish) -> Expression:
    scope = finish.scope()
    return scope.finish(scope.argument(0))
