"""Element-wise operations, activations, pools, reductions and operations that move values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from benchmarks.models.making import BITS8, COMMON, Case, Drawing, Pair, pair
from penstock.ir import DType

F32, I8, U8, I16, I32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32
IMAGE: Final = (1, 96, 96, 128)
CHANNELS: Final = (128,)
REAL_UNARY: Final = (
    "ABS", "NEG", "EXP", "LOG", "SQRT", "RSQRT", "SQUARE", "SIN", "COS", "FLOOR", "ELU", "RELU",
    "RELU6", "LEAKY_RELU", "GELU", "HARD_SWISH", "LOGISTIC", "TANH",
)  # fmt: skip
QUANTIZED_UNARY: Final = ("RELU", "RELU6", "LEAKY_RELU", "LOGISTIC", "TANH")
BINARY: Final = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")


def binary() -> Iterator[Case]:
    """Operations on two images, and on an image and a vector or scalar per channel."""
    forms = (("", IMAGE), (" by channel", CHANNELS), (" by pixel", (1, 96, 96, 1)))
    for kind in BINARY:
        for dtype in COMMON:
            if (kind == "DIV" and dtype.is_integer) or (
                kind == "SQUARED_DIFFERENCE" and dtype in {U8, I16}
            ):
                continue
            for name, shape in forms:
                drawing = Drawing()
                given = [drawing.input(dtype, IMAGE), drawing.input(dtype, shape)]
                result = drawing.operation(kind, given, dtype)
                yield drawing.case(f"{kind}{name}, {dtype.value}", result, math.prod(IMAGE))
    for kind in ("LESS", "EQUAL"):
        for dtype in (F32, I8):
            drawing = Drawing()
            given = [drawing.input(dtype, IMAGE), drawing.input(dtype, IMAGE)]
            result = drawing.operation(kind, given, DType.BOOL)
            yield drawing.case(f"{kind}, {dtype.value}", result, math.prod(IMAGE))
    drawing = Drawing()
    chosen = drawing.input(DType.BOOL, IMAGE)
    given = [chosen, drawing.input(F32, IMAGE), drawing.input(F32, IMAGE)]
    result = drawing.operation("SELECT_V2", given, F32)
    yield drawing.case("SELECT_V2, float32", result, math.prod(IMAGE))


def unary() -> Iterator[Case]:
    for kind in REAL_UNARY:
        low = 0.1 if kind in {"LOG", "SQRT", "RSQRT"} else -4.0
        yield _unary(kind, F32, low)
    for kind in QUANTIZED_UNARY:
        for dtype in (I8, U8, I16):
            yield _unary(kind, dtype)
    for dtype in BITS8:
        yield _unary("HARD_SWISH", dtype)
        yield _unary("GELU", dtype)
    for dtype in COMMON:
        yield _softmax(dtype)
    drawing = Drawing()
    given = drawing.input(F32, IMAGE)
    result = drawing.operation("L2_NORMALIZATION", [given], F32)
    yield drawing.case("L2_NORMALIZATION, float32", result, math.prod(IMAGE))
    drawing = Drawing()
    slopes = drawing.constant(drawing.values(F32, (1, 1, 128)))
    result = drawing.operation("PRELU", [drawing.input(F32, IMAGE), slopes], F32)
    yield drawing.case("PRELU, float32", result, math.prod(IMAGE))
    for source, target in ((F32, I8), (F32, U8), (F32, I16), (I8, U8), (I16, I8)):
        drawing = Drawing()
        result = drawing.operation("QUANTIZE", [drawing.input(source, IMAGE)], target)
        name = f"QUANTIZE, {source.value} to {target.value}"
        yield drawing.case(name, result, math.prod(IMAGE))
    for source in (I8, U8, I16):
        drawing = Drawing()
        result = drawing.operation("DEQUANTIZE", [drawing.input(source, IMAGE)], F32)
        yield drawing.case(f"DEQUANTIZE, {source.value}", result, math.prod(IMAGE))
    for source, target in ((F32, I32), (I32, F32)):
        drawing = Drawing()
        result = drawing.operation("CAST", [drawing.input(source, IMAGE)], target)
        yield drawing.case(f"CAST, {source.value} to {target.value}", result, math.prod(IMAGE))


def pools() -> Iterator[Case]:
    shapes = (
        ("2x2", (1, 112, 112, 96), 2, 2),
        ("3x3 by 1", (1, 56, 56, 64), 3, 1),
        ("whole", (8, 14, 14, 768), 14, 1),
    )
    for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        for dtype in COMMON if kind != "L2_POOL_2D" else (F32,):
            for name, shape, size, stride in shapes:
                drawing = Drawing()
                result = drawing.operation(
                    kind,
                    [drawing.input(dtype, shape)],
                    dtype,
                    padding="VALID" if name == "whole" else "SAME",
                    filter_width=size,
                    filter_height=size,
                    stride_w=stride,
                    stride_h=stride,
                )
                work = math.prod(shape) * (1 if name == "whole" else size * size // stride**2)
                yield drawing.case(f"{kind} {name}, {dtype.value}", result, work)


def resizes() -> Iterator[Case]:
    for kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for dtype in COMMON:
            for name, size in (("up", 96), ("down", 40)):
                drawing = Drawing()
                shape = (1, 48, 48, 128) if name == "up" else (1, 80, 80, 768)
                given = [drawing.input(dtype, shape), drawing.integers(size, size)]
                result = drawing.operation(kind, given, dtype, half_pixel_centers=True)
                work = size * size * shape[3]
                yield drawing.case(f"{kind} {name}, {dtype.value}", result, work)


def reductions() -> Iterator[Case]:
    axes = (("pixels", (1, 2)), ("channels", (3,)))
    for kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for dtype in COMMON if kind != "REDUCE_PROD" else (F32,):
            if kind == "SUM" and dtype is I16:
                continue
            for name, axis in axes:
                drawing = Drawing()
                given = [drawing.input(dtype, IMAGE), drawing.integers(*axis)]
                result = drawing.operation(kind, given, dtype, keep_dims=False)
                yield drawing.case(f"{kind} of {name}, {dtype.value}", result, math.prod(IMAGE))
    for kind in ("ARG_MAX", "ARG_MIN"):
        for dtype in (F32, I8, U8):
            drawing = Drawing()
            given = [drawing.input(dtype, IMAGE), drawing.integers(3)]
            result = drawing.operation(kind, given, I32, output_type="INT32")
            yield drawing.case(f"{kind}, {dtype.value}", result, math.prod(IMAGE))
    drawing = Drawing()
    axis_two = drawing.constant(np.array(2, np.int32))
    given = [drawing.input(F32, (1, 1024, 1024)), axis_two]
    result = drawing.operation("CUMSUM", given, F32)
    yield drawing.case("CUMSUM, float32", result, 2**20)


def movements() -> Iterator[Case]:
    for dtype in COMMON:
        for name, order in (("NHWC to NCHW", (0, 3, 1, 2)), ("swap", (0, 2, 1, 3))):
            yield _moved(f"TRANSPOSE {name}", "TRANSPOSE", dtype, IMAGE, order)
        yield _moved("PAD", "PAD", dtype, IMAGE, ((0, 0), (1, 1), (1, 1), (0, 0)))
        yield _moved("TILE", "TILE", dtype, (1, 48, 48, 128), (1, 2, 2, 1))
        if dtype is not I16:
            yield _moved("SPACE_TO_DEPTH", "SPACE_TO_DEPTH", dtype, IMAGE, block_size=2)
            yield _moved("DEPTH_TO_SPACE", "DEPTH_TO_SPACE", dtype, IMAGE, block_size=2)
        yield _moved("REVERSE_V2", "REVERSE_V2", dtype, IMAGE, (2,))
        for axis in (1, 3):
            drawing = Drawing()
            parts = [drawing.input(dtype, (1, 48, 96, 64)) for _ in range(4)]
            result = drawing.operation("CONCATENATION", parts, dtype, axis=axis)
            yield drawing.case(
                f"CONCATENATION of axis {axis}, {dtype.value}", result, 4 * 48 * 96 * 64
            )
        drawing = Drawing()
        starts = [drawing.integers(0, 0, 0, 0), drawing.integers(1, 95, 95, 128)]
        result = drawing.operation("SLICE", [drawing.input(dtype, IMAGE), *starts], dtype)
        yield drawing.case(f"SLICE, {dtype.value}", result, 95 * 95 * 128)
        drawing = Drawing()
        bounds = [drawing.integers(*v) for v in ((0, 0, 0, 0), (1, 96, 96, 128), (1, 1, 1, 1))]
        result = drawing.operation("STRIDED_SLICE", [drawing.input(dtype, IMAGE), *bounds], dtype)
        yield drawing.case(f"STRIDED_SLICE, {dtype.value}", result, math.prod(IMAGE))
        drawing = Drawing()
        places = drawing.constant(drawing.rng.integers(0, 5000, 16384).astype(np.int32))
        table = drawing.input(dtype, (5000, 128))
        result = drawing.operation("GATHER", [table, places], dtype, axis=0)
        yield drawing.case(f"GATHER, {dtype.value}", result, 16384 * 128)


def _moved(
    name: str,
    kind: str,
    dtype: DType,
    shape: tuple[int, ...],
    parameter: tuple[object, ...] = (),
    *,
    block_size: int | None = None,
) -> Case:
    drawing = Drawing()
    given = [drawing.input(dtype, shape)]
    if parameter:
        given.append(drawing.integers(*parameter))
    more: dict[str, Any] = {} if block_size is None else {"block_size": block_size}
    result = drawing.operation(kind, given, dtype, **more)
    work = math.prod(shape) * (4 if kind == "TILE" else 1)
    return drawing.case(f"{name}, {dtype.value}", result, work)


def _unary(kind: str, dtype: DType, low: float = -4.0) -> Case:
    drawing = Drawing()
    quantization = None
    if dtype.is_integer and kind in {"LOGISTIC", "TANH"}:
        quantization = _bounded(kind, dtype)
    given = drawing.input(dtype, IMAGE, low, 4.0)
    more: dict[str, Any] = {"alpha": 0.1} if kind == "LEAKY_RELU" else {}
    result = drawing.operation(kind, [given], dtype, scaled=quantization, **more)
    return drawing.case(f"{kind}, {dtype.value}", result, math.prod(IMAGE))


def _bounded(kind: str, dtype: DType) -> Pair:
    """The scale and zero point that TFLite fixes for results in [0, 1] or [-1, 1]."""
    if dtype is I16:
        return pair(2.0**-15)
    if kind == "TANH":
        return pair(2.0**-7, 0 if dtype is I8 else 128)
    return pair(2.0**-8, -128 if dtype is I8 else 0)


def _softmax(dtype: DType) -> Case:
    drawing = Drawing()
    given = drawing.input(dtype, (1024, 1001), -4.0, 4.0)
    quantization = None
    if dtype.is_integer:
        quantization = _bounded("LOGISTIC", dtype)
    result = drawing.operation("SOFTMAX", [given], dtype, scaled=quantization, beta=1.0)
    return drawing.case(f"SOFTMAX, {dtype.value}", result, 1024 * 1001)
