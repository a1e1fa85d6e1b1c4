"""Reductions, searches, running sums, and conversions between real and stored values."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from tests.differential.draw import Draw
from tests.differential.kinds import Kind
from tests.differential.registry import SWEPT, cases

AXES: Final = (DType.INT32, DType.INT64)


def axes(draw: Draw, rank: int) -> list[int]:
    """Some axes, from either end, now and then one of them twice."""
    chosen = [a for a in range(rank) if draw.chance(0.5)]
    draw.rng.shuffle(chosen)
    if chosen and draw.chance(0.1):
        chosen.append(chosen[0])
    return [a - rank if draw.chance(0.3) else a for a in chosen]


@cases(
    "MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL",
    choices=[SWEPT, AXES],
)  # fmt: skip
def reduction(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    shape = draw.shape(0, 5, 4)
    chosen = np.array(axes(draw, len(shape)), draw.type(1).numpy)
    if chosen.size == 1 and draw.chance(0.3):
        chosen = chosen.reshape(())
    scaled = draw.has_scale(dtype) or (kind in {"MEAN", "SUM"} and dtype is DType.INT16)
    given = draw.quantization(dtype, scaled=scaled)
    same = kind in {"REDUCE_MAX", "REDUCE_MIN"} or draw.chance(0.4)
    made = given if same else draw.quantization(dtype, scaled=given is not None)
    low, high = (-3, 3) if kind == "REDUCE_PROD" and given is None else (None, None)
    x = draw.value(dtype, shape, given, low=low, high=high)
    keep = draw.chance(0.5)
    draw.operation(kind, [x, draw.parameter(chosen)], [draw.output(dtype, made)], keep_dims=keep)


@cases("ARG_MAX", "ARG_MIN", choices=[SWEPT, AXES, AXES])
def search(draw: Draw, kind: str) -> None:
    dtype, made = draw.type(0), draw.type(1)
    shape = draw.shape(1, 4)
    x = draw.quantized_value(dtype, shape)
    axis = np.array(draw.axis(len(shape)), draw.type(2).numpy)
    if draw.chance(0.3):
        axis = axis.reshape(1)
    draw.operation(kind, [x, draw.parameter(axis)], [draw.output(made)], output_type=made.name)


@cases("CUMSUM", slots=1)
def running(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    x = draw.quantized_value(draw.type(0), shape)
    axis = draw.parameter(np.array(draw.axis(len(shape)), np.int32))
    exclusive, reverse = draw.chance(0.5), draw.chance(0.5)
    draw.operation(
        kind, [x, axis], [draw.output(draw.type(0))], exclusive=exclusive, reverse=reverse
    )


@cases("QUANTIZE", slots=2)
def quantize(draw: Draw, kind: str) -> None:
    source, target = draw.type(0), draw.type(1)
    shape = draw.shape()
    x = draw.value(source, shape, draw.quantization(source, scaled=source.is_integer))
    made = draw.quantization(target, scaled=target.is_integer)
    if source.is_float and shape and all(shape) and draw.chance(0.3):
        axis = draw.integer(0, len(shape) - 1)
        made = draw.per_channel(target, shape[axis], axis)
    declared = None if made is None or not made.per_channel else shape
    draw.operation(kind, [x], [draw.output(target, made, declared)])


@cases("DEQUANTIZE", choices=[SWEPT, [DType.FLOAT32]])
def dequantize(draw: Draw, kind: str) -> None:
    source, target = draw.type(0), draw.type(1)
    shape = draw.shape()
    given = draw.quantization(source, scaled=source.is_integer)
    if source.is_integer and shape and all(shape) and draw.chance(0.3):
        axis = draw.integer(0, len(shape) - 1)
        given = draw.per_channel(source, shape[axis], axis)
    x = draw.value(source, shape, given)
    draw.operation(kind, [x], [draw.output(target)])


@cases("FAKE_QUANT", choices=[[DType.FLOAT32]], own=[Kind.SETTINGS])
def rounded(draw: Draw, kind: str) -> None:
    x = draw.value(draw.type(0), draw.shape())
    low, high = draw.pick((0.0, draw.real(-4, 0))), draw.real(0.1, 4)
    bits = draw.integer(2, 16)
    if draw.has(Kind.SETTINGS):
        ends = (low, high, 0.0, 1.0, -1.0, draw.real(-4, 4))
        low, high = draw.pick(ends), draw.pick(ends)
        bits = draw.pick((bits, 1, 2, 16, 17, 24))
    draw.operation(
        kind,
        [x],
        [draw.output(draw.type(0))],
        min=low,
        max=high,
        num_bits=bits,
        narrow_range=draw.chance(0.5),
    )
