"""SVDF: a fully connected layer over a sliding memory, its weights factored into features and time.

The state holds the last `memory` values of each filter, oldest first: [batch, filters * memory].
Each run shifts it by one place, then stores the newest values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.products import F32, product
from penstock.compiler.legalise.quantised import integer_range, rescale, scale_of
from penstock.compiler.legalise.recurrent import (
    activated,
    multiply,
    require_real,
    shaped,
    target_of,
    vector_of,
    weights_of,
)
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.fixed_point import quantize_multiplier
from penstock.driverkit.site import Refused, require
from penstock.ir import DType

STATE: Final = 4
Tail = Callable[[Value], Value]


class Sizes(Struct, frozen=True):
    """Of an SVDF: *filters* are *units* of *rank* filters each."""

    batch: int
    filters: int
    memory: int
    rank: int

    @property
    def units(self) -> int:
        return self.filters // self.rank

    @property
    def state(self) -> tuple[int, int, int]:
        return self.batch, self.filters, self.memory


@legal("SVDF")
def svdf(operation: Operation) -> None:
    """Float, hybrid, and integer with int8 data and an int16 or int8 state. Inputs: data, features,
    time, bias, state.
    """
    site = operation.site
    rank, time = site.attributes.integer("rank"), site.shape(2)
    require(len(site.shape()) == 2 and len(time) == 2, "data or weights of another rank")
    require(rank >= 1 and time[0] % rank == 0, f"{time[0]} filters of rank {rank}")
    sizes = Sizes(site.shape()[0], time[0], time[1], rank)
    source, features, state = (site.input(i).dtype for i in (0, 1, STATE))
    if source is features is DType.INT8 and state in {DType.INT8, DType.INT16}:
        _integer(operation, sizes)
        return
    require_real(operation, 0, STATE)
    _real(operation, sizes)


def _state(operation: Operation, sizes: Sizes) -> int:
    """The tensor [batch, filters, memory] of the new state, whose last places are still to be
    written.
    """
    build = operation.build
    before = shaped(operation, operation.tensor(STATE), sizes.state)
    if len(operation.site.outputs) > 1:
        after = target_of(operation, 1, sizes.state)
    else:
        after = build.tensor(build.tensors[before].dtype, sizes.state)
    if sizes.memory > 1:
        older = Access(before, (*along(0, 1), Position(1, ((2, 1),))))
        loops = sizes.batch, sizes.filters, sizes.memory - 1
        build.copy("slide", older, Access(after, along(0, 1, 2)), loops)
    return after


def _newest(after: int, sizes: Sizes) -> Access:
    """The place of the newest values, for loops over batch and filters."""
    return Access(after, (*along(0, 1), Position(sizes.memory - 1)))


def _real(operation: Operation, sizes: Sizes) -> None:
    site = operation.site
    weights = weights_of(operation, [1])
    require(weights.rows == sizes.filters, "features of another number of filters")
    after = _state(operation, sizes)
    multiply(
        operation, (operation.tensor(), lambda deep: (*along(0), deep)), (sizes.batch,), weights,
        _newest(after, sizes), [], asymmetric=site.flag("asymmetric_quantize_inputs"),
    )  # fmt: skip
    name = site.attributes.text("fused_activation_function")
    operands = [_matrix(operation)]
    extras = [Access(vector_of(operation, [3]), along(1))] if site.has(3) else []
    scope = Scope(F32, *(F32 for _ in extras))
    total = scope.argument(0)
    if extras:
        total = total + scope.argument(1)
    _over_time(
        operation, sizes, after, operands[0], product(F32, F32, F32, (None, None)),
        scope.finish(activated(total, name)), extras,
    )  # fmt: skip


def _matrix(operation: Operation) -> int:
    """The weights over time, float32; integers are multiplied by the scale of their filter."""
    site, operand = operation.site, operation.site.input(2)
    if operand.dtype is F32:
        return operation.tensor(2)
    require(operand.dtype in {DType.INT8, DType.UINT8}, "weights over time of another type")
    require(operand.is_constant, "integer weights over time that are computed")
    quantization = operand.quantization
    if quantization is None:
        raise Refused("integer weights without a scale")
    scales = np.array(quantization.scales, np.float32)
    require(scales.size in {1, site.shape(2)[1]}, f"{scales.size} scales of weights over time")
    return operation.build.constant(
        F32,
        site.shape(2),
        lambda: site.model.constant(operand).astype(np.int8).astype(np.float32) * scales,
    )


def _over_time(
    operation: Operation, sizes: Sizes, after: int, weights: int, body: Expression,
    finish: Expression, extras: Sequence[Access],
) -> None:  # fmt: skip
    """The sums of each unit's filters over time."""
    chosen = Position(0, ((1, sizes.rank), (2, 1)))
    sums = body.dtype
    operation.build.emit(
        "sums over time",
        (sizes.batch, sizes.units),
        [
            Access(after, (*along(0), chosen, *along(3))),
            Access(weights, (chosen, *along(3))),
        ],
        body,
        Access(operation.target(), along(0, 1)),
        reduced=(sizes.rank, sizes.memory),
        combine="sum",
        sums=sums,
        finish=finish,
        extras=extras,
    )


def _integer(operation: Operation, sizes: Sizes) -> None:
    """The integer form. Both scalings use quantised multipliers of ratios computed in float32.

    Sums over time wrap at 32 bits. The only activation is RELU, which the output's type applies:
    TFLite's kernel assumes that the output's zero point is the least value of the type.
    """
    site, build = operation.site, operation.build
    activation = site.attributes.text("fused_activation_function")
    require(activation == "RELU", f"an integer SVDF with the activation {activation}")
    require(site.shape(1)[0] == sizes.filters, "features of another number of filters")
    made = scale_of(site.output(), "an output")
    given, features, time, state = (scale_of(site.input(i), "an operand") for i in (0, 1, 2, STATE))
    scales = [np.float32(q.scale) for q in (given, features, time, state, made)]
    first, second = scales[0] * scales[1] / scales[3], scales[3] * scales[2] / scales[4]
    for real in (first, second):
        quantize_multiplier(float(real))
    after = _state(operation, sizes)
    kind = build.tensors[after].dtype
    scope = Scope(DType.INT32)
    newest = rescale(scope.argument(0), float(first)).clamp(*integer_range(kind)).cast(kind)
    build.emit(
        "features",
        (sizes.batch, sizes.filters),
        [Access(operation.tensor(), along(0, 2)), Access(operation.tensor(1), along(1, 2))],
        product(DType.INT8, DType.INT8, DType.INT32, (given.zero_point, 0)),
        _newest(after, sizes),
        reduced=site.shape(1)[1:],
        combine="sum",
        sums=DType.INT32,
        finish=scope.finish(newest),
    )
    extras = [Access(operation.tensor(3), along(1))] if site.has(3) else []
    last = Scope(DType.INT32, *(DType.INT32 for _ in extras))
    total = last.argument(0)
    if extras:
        total = total + last.argument(1)
    dtype = site.output().dtype
    scaled = rescale(total, float(second)) + made.zero_point
    stored = scaled.clamp(*integer_range(dtype)).cast(dtype)
    body = product(kind, site.input(2).dtype, DType.INT32, (state.zero_point, 0))
    _over_time(operation, sizes, after, operation.tensor(2), body, last.finish(stored), extras)
