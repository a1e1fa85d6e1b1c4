"""Sums of products: what convolutions, fully connected layers and matrix products share.

A layer is one nest, or several that write different parts of its result. It computes in float32, in
integers, or hybrid (`hybrid`), as the types of its operands say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Expression, Number, Scope, Value
from penstock.compiler.legalise import hybrid
from penstock.compiler.legalise.builder import Operation
from penstock.compiler.legalise.quantised import (
    STORED,
    Finish,
    bounds_of,
    channel_scales,
    finite_bounds_of,
    layer_multipliers,
    limits_of,
    rescaled,
    scale_of,
    weight_zero,
)
from penstock.compiler.program import Access, Position
from penstock.driverkit.site import Site, require
from penstock.ir import DType
from penstock.ir.rounding import Sums

F32: Final = DType.FLOAT32
PACKED: Final = frozenset({DType.INT4, DType.INT2})
"""Types of constant weights that a program has as int8."""

WEIGHTS: Final = hybrid.WEIGHTS


class Products(Struct, frozen=True):
    """The loops and positions of a sum of products. *channel* is that of the output channel."""

    loops: tuple[int, ...]
    reduced: tuple[int, ...]
    data: tuple[Position, ...]
    weights: tuple[Position, ...]
    write: tuple[Position, ...]
    channel: Position

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all loops."""
        return (*self.loops, *self.reduced)


class Layer(Struct, frozen=True):
    """Where a layer has its operands, and which axis of the weights has the scales.

    *real*: TFLite scales the integer sums in float64 and rounds once. *asymmetric*: how a hybrid
    layer quantises its data (None: there is no hybrid form). *joined*: it multiplies both scales
    with each other first. *rank*: how many axes of the data are rows with a scale of their own.
    *finite*: infinite sums of floats become the greatest floats, as in TFLite's kernels.
    """

    data: int = 0
    weights: int = 1
    bias: int = 2
    axis: int = 0
    real: bool = False
    asymmetric: bool | None = None
    joined: bool = False
    rank: int = 1
    finite: bool = True


FinishOf: TypeAlias = Callable[[Products, Finish], Expression]
"""Writes the expression from sums to results."""


class Form(Struct, frozen=True):
    """The numbers that a layer multiplies: tensors of *data* and *weights* with their *zeros*, the
    *fill* of data outside its tensor, and how many elements surround the data *before* each axis.
    *order* is that of the sums; fused ones begin with the first value that *finish* reads.
    """

    data: int
    weights: int
    sums: DType
    zeros: tuple[int | None, int | None]
    finish: FinishOf
    fill: Number = 0.0
    before: tuple[int, ...] = ()
    order: Sums = "any"


def emit_layer(operation: Operation, name: str, layer: Layer, *parts: Products) -> None:
    """Adds the kernels of a layer: one for each of *parts*."""
    site = operation.site
    data, weights, made = site.input(layer.data), site.input(layer.weights), site.output()
    if data.dtype is weights.dtype is made.dtype is F32:
        form = _float_form(operation, layer)
    elif data.dtype in STORED and weights.dtype in WEIGHTS and _is_stored(site, layer):
        form = _quantised_form(operation, layer)
    elif data.dtype is made.dtype is F32 and weights.dtype in WEIGHTS and _is_hybrid(layer):
        form = _hybrid_form(operation, layer, parts)
    else:
        site.refuse_types()
    for part in parts:
        emit_product(operation, name, form, part)


def _is_hybrid(layer: Layer) -> bool:
    return layer.asymmetric is not None


def _is_stored(site: Site, layer: Layer) -> bool:
    """Whether the result of a quantised layer has a type that TFLite's kernels compute."""
    made, given = site.output().dtype, site.input(layer.data).dtype
    return made is given or (layer.real and made is DType.INT16)


def emit_product(
    operation: Operation, name: str, form: Form, part: Products, target: int | None = None
) -> None:
    """Adds the kernel of *part*, which writes *target* (None: the output). One without products has
    sums of 0.
    """
    build = operation.build
    shift = form.before or (0,) * len(part.data)
    positions = tuple(
        Position(p.offset + edge, p.steps, p.through)
        for p, edge in zip(part.data, shift, strict=True)
    )
    is_empty = 0 in part.reduced
    inside = is_empty or all(
        low >= 0 and high < size
        for (low, high), size in zip(
            (p.span(part.sizes) for p in positions), operation.shape(form.data), strict=True
        )
    )
    reads = [
        Access(form.data, positions, None if inside else form.fill),
        Access(form.weights, part.weights),
    ]
    dtypes = [build.tensors[access.tensor].dtype for access in reads]
    finish = Finish(operation, form.sums, part.channel, part.loops)
    body = product(dtypes[0], dtypes[1], form.sums, form.zeros)
    if is_empty:
        scope = Scope()
        reads, body = [], scope.finish(scope.constant(0, form.sums))
    build.emit(
        name,
        part.loops,
        reads,
        body,
        Access(operation.target() if target is None else target, part.write),
        reduced=() if is_empty else part.reduced,
        combine="none" if is_empty else "sum",
        sums=form.sums,
        finish=form.finish(part, finish),
        extras=finish.extras,
        order="any" if is_empty else form.order,
    )


def product(
    data: DType, weights: DType, sums: DType, zeros: tuple[int | None, int | None]
) -> Expression:
    """(data - zero) * (weights - zero), as *sums*."""
    scope = Scope(data, weights)
    factors = [scope.argument(i).cast(sums) for i in (0, 1)]
    factors = [f - z if z else f for f, z in zip(factors, zeros, strict=True)]
    return scope.finish(factors[0] * factors[1])


def weight_tensor(operation: Operation, position: int, *, as_bytes: bool = False) -> int:
    """The tensor of the weights at input *position*: those of fewer than 8 bits as int8.
    *as_bytes*: uint8 weights too, whose bytes are int8 weights.
    """
    site, operand = operation.site, operation.site.input(position)
    packed = operand.dtype in PACKED
    if not packed and not (as_bytes and operand.dtype is DType.UINT8):
        return operation.tensor(position)
    if operand.is_constant:
        return operation.build.constant(
            DType.INT8, site.shape(position), lambda: site.model.constant(operand).astype(np.int8)
        )
    require(not packed, f"weights of type {operand.dtype.value} that are not constant")
    target = operation.build.tensor(DType.INT8, site.shape(position))
    scope = Scope(operand.dtype)
    body = scope.finish(scope.argument(0).cast(DType.INT8))
    operation.elementwise("bytes", body, [operation.tensor(position)], target)
    return target


def _float_form(operation: Operation, layer: Layer) -> Form:
    site = operation.site
    bounds = (finite_bounds_of if layer.finite else bounds_of)(site.activation)
    order = operation.order
    fused = order == "fused"

    def finish_of(part: Products, finish: Finish) -> Expression:
        bias = finish.bias(layer.bias)
        if fused and bias is None:
            zero = operation.build.constant(F32, (1,), lambda: np.zeros(1))
            bias = finish.read(zero, [Position()])
        scope = finish.scope()
        total = scope.argument(0)
        # Fused sums begin with the bias.
        if bias is not None and (not fused or 0 in part.reduced):
            total = total + scope.argument(bias).cast(F32)
        return scope.finish(total.clamp(*bounds))

    tensors = operation.tensor(layer.data), operation.tensor(layer.weights)
    return Form(*tensors, F32, (None, None), finish_of, order=order)


def is_wide(site: Site, layer: Layer) -> bool:
    """Whether sums have 64 bits: those of 16-bit data, unless the bias has 32."""
    if site.input(layer.data).dtype is not DType.INT16:
        return False
    if site.has(layer.bias):
        return site.input(layer.bias).dtype is DType.INT64
    return site.attributes.get("quantized_bias_type") != "INT32"


def _quantised_form(operation: Operation, layer: Layer) -> Form:
    site = operation.site
    data, output = site.input(layer.data), site.output()
    zeros = scale_of(data, "an input").zero_point, weight_zero(site.input(layer.weights))
    zero_point, wide = scale_of(output, "an output").zero_point, is_wide(site, layer)
    limits = limits_of(site.activation, output)
    single = data.dtype is DType.UINT8 and not layer.real
    filters = site.input(layer.weights).shape or ()
    channels = filters[layer.axis] or 0
    multipliers = layer_multipliers(
        site, layer.data, layer.weights, layer.axis, channels, single=single
    )

    def finish_of(_part: Products, finish: Finish) -> Expression:
        bias = finish.bias(layer.bias)
        if not layer.real:
            return rescaled(finish, multipliers, bias, limits, zero_point, output.dtype, wide=wide)
        factors = finish.vector(multipliers, DType.FLOAT64)
        scope = finish.scope()
        total = scope.argument(0)
        if bias is not None:
            total = total + scope.argument(bias).cast(total.dtype)
        factor = _number(scope, factors, float(multipliers.reshape(-1)[0]), DType.FLOAT64)
        real = (total.cast(DType.FLOAT64) * factor).apply("round_away") + float(zero_point)
        return scope.finish(real.clamp(float(limits[0]), float(limits[1])).cast(output.dtype))

    sums = DType.INT64 if wide else DType.INT32
    tensors = operation.tensor(layer.data), weight_tensor(operation, layer.weights)
    return Form(*tensors, sums, zeros, finish_of, zeros[0])


def _number(scope: Scope, argument: int | None, value: float, dtype: DType) -> Value:
    """An argument, or the constant that stands for it."""
    return scope.constant(value, dtype) if argument is None else scope.argument(argument)


def surroundings(
    shape: Sequence[int], parts: Sequence[Products]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How far the products read beyond data of *shape*: before and behind each axis."""
    before, after = [0] * len(shape), [0] * len(shape)
    for part in parts:
        if 0 in part.reduced:
            continue
        for axis, (position, size) in enumerate(zip(part.data, shape, strict=True)):
            low, high = position.span(part.sizes)
            before[axis] = max(before[axis], -low)
            after[axis] = max(after[axis], high - size + 1)
    return tuple(before), tuple(after)


def _hybrid_form(operation: Operation, layer: Layer, parts: Sequence[Products]) -> Form:
    site = operation.site
    filters = site.input(layer.weights)
    channels = (filters.shape or ())[layer.axis] or 0
    scales = channel_scales(site, layer.weights, layer.axis, channels).astype(np.float32)
    require(
        not site.has(layer.bias) or site.input(layer.bias).dtype is F32,
        "a bias that is not float32",
    )
    activation = site.activation
    tail = {"TANH", "SIGN_BIT"} if layer.real else set()
    bounds = (None, None) if activation in tail else bounds_of(activation)
    source = operation.tensor(layer.data)
    before, after = surroundings(operation.shape(source), parts)
    # Sums that float32 has exactly are sums of float32: a few taps take no 8-bit products.
    real = layer.joined and all(math.prod(p.reduced) <= hybrid.MOST_REAL for p in parts)
    rows = hybrid.quantised_rows(
        operation, source, layer.rank, asymmetric=bool(layer.asymmetric), before=before,
        after=after, real=real,
    )  # fmt: skip
    weights = weight_tensor(operation, layer.weights, as_bytes=True)
    if real:
        weights = _as_real(operation, weights)

    def finish_of(part: Products, finish: Finish) -> Expression:
        real = hybrid_total(operation, finish, part, rows, weights, joined=layer.joined)
        bias = finish.bias(layer.bias)
        vector = finish.vector(scales, F32)
        value = real(number_of(vector, float(scales.reshape(-1)[0])))
        if bias is not None:
            value = value + value.scope.argument(bias)
        if activation == "TANH" and tail:
            value = value.apply("tanh")
        elif activation == "SIGN_BIT" and tail:
            one = value.scope.constant(1.0, F32)
            value = value.scope.select(value < 0.0, one, 0.0)
        return value.scope.finish(value.clamp(*bounds))

    sums = F32 if real else DType.INT32
    return Form(rows.values, weights, sums, (None, None), finish_of, 0, rows.before)


def _as_real(operation: Operation, weights: int) -> int:
    """Integer weights as float32: a kernel, which is folded if they are constant."""
    build = operation.build
    scope = Scope(build.tensors[weights].dtype)
    target = build.tensor(F32, operation.shape(weights))
    operation.elementwise(
        "real weights", scope.finish(scope.argument(0).cast(F32)), [weights], target
    )
    return target


Factor: TypeAlias = Callable[[Scope], Value]
"""Writes a factor, in the scope that has everything that was read."""


def number_of(argument: int | None, value: float) -> Factor:
    """An argument, or the constant that stands for it, in float32."""
    return lambda scope: _number(scope, argument, value, F32)


def hybrid_total(
    operation: Operation,
    finish: Finish,
    part: Products,
    rows: hybrid.Rows,
    weights: int,
    *,
    joined: bool,
) -> Callable[[Factor], Value]:
    """The real value of integer sums, given the scale of the weights. Call it when everything is
    read.
    """
    place = part.data[: len(operation.shape(rows.scales))]
    step = finish.read(rows.scales, place)
    offset = total = None
    if rows.offsets is not None and 0 not in part.reduced:
        channels = part.channel.span(part.loops)[1] + 1
        access = Access(weights, part.weights)
        outer = {loop for loop in access.loops() if loop < len(part.loops)}
        require(
            outer == {loop for loop, _ in part.channel.steps},
            "data with an offset times weights that differ by batch",
        )
        sizes = part.loops, part.reduced
        sums = hybrid.weight_sums(operation, sizes, access, part.channel, channels)
        offset, total = finish.read(rows.offsets, place), finish.read(sums)

    def real(factor: Factor) -> Value:
        scope = finish.scope()
        value = scope.argument(0)
        if offset is not None and total is not None:
            value = value - scope.argument(total) * scope.argument(offset)
        scale, each = scope.argument(step), factor(scope)
        if joined:
            return value.cast(F32) * (scale * each)
        return value.cast(F32) * each * scale

    return real
