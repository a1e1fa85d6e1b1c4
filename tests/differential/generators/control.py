"""Control flow, tables, and the custom operators of detectors and of MediaPipe."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from flatbuffers import flexbuffers

from penstock.ir import DType
from tests.differential.draw import Draw
from tests.differential.kinds import OTHERS, Kind
from tests.differential.registry import cases

NUMBERS: Final = (DType.FLOAT32, DType.INT32, DType.INT64)
KEYS: Final = (DType.INT32, DType.INT64, DType.STRING)
PADDINGS: Final = {"SAME": 1, "VALID": 2}


def branch(draw: Draw, kind: str, dtype: DType, shape: tuple[int, ...]) -> int:
    """A subgraph of one operation on its input and a constant; its index."""
    graph = draw.builder.subgraph(kind.lower())
    x = graph.input(_declared(draw, dtype), shape)
    by = graph.constant(draw.array(dtype, (), 1, 3))
    return draw.builder.add_subgraph(graph.finish(graph.operation(kind, [x, by], [(dtype, shape)])))


def _declared(draw: Draw, dtype: DType) -> DType:
    """What the input of a branch is declared with, that is given a *dtype*."""
    if draw.has(Kind.STALE_INPUT):
        return draw.pick([d for d in OTHERS if d is not dtype])
    return dtype


def leaf(draw: Draw, kind: str, dtype: DType, shape: tuple[int, ...]) -> int:
    """As `branch`, of a subgraph that takes a condition too."""
    graph = draw.builder.subgraph(kind.lower())
    graph.input(DType.BOOL, ())
    x = graph.input(dtype, shape)
    by = graph.constant(draw.array(dtype, (), 1, 3))
    return draw.builder.add_subgraph(graph.finish(graph.operation(kind, [x, by], [(dtype, shape)])))


def nested(draw: Draw, kind: str) -> None:
    """IF within a branch of IF, to a depth: both branches anew, or one subgraph for both, which
    LiteRT prepares twice at every level.
    """
    dtype, shape = draw.type(0), draw.shape()
    shared = draw.chance(0.5)
    inner = leaf(draw, "ADD", dtype, shape)
    for level in range(draw.integer(2, 10 if shared else 70)):
        graph = draw.builder.subgraph(f"level {level}")
        given = [graph.input(DType.BOOL, ()), graph.input(dtype, shape)]
        targets = {
            "then_subgraph_index": inner,
            "else_subgraph_index": inner if shared else leaf(draw, "MUL", dtype, shape),
        }
        made = graph.operation(kind, [given[0], *given], [(dtype, shape)], targets)
        inner = draw.builder.add_subgraph(graph.finish(made))
    truth = draw.value(DType.BOOL, (), constant=False)
    draw.operation(
        kind,
        [truth, truth, draw.value(dtype, shape, static=True)],
        [draw.output(dtype, None, shape)],
        then_subgraph_index=inner,
        else_subgraph_index=inner,
    )


@cases("IF", choices=[NUMBERS], own=[Kind.NESTED, Kind.STALE_INPUT])
def condition(draw: Draw, kind: str) -> None:
    if draw.has(Kind.NESTED):
        nested(draw, kind)
        return
    dtype, shape = draw.type(0), draw.shape()
    truth = draw.value(DType.BOOL, draw.pick(((), (1,))), constant=False)
    x = draw.value(dtype, shape, static=True)
    draw.operation(
        kind,
        [truth, x],
        [draw.output(dtype, None, shape)],
        then_subgraph_index=branch(draw, "ADD", dtype, shape),
        else_subgraph_index=branch(draw, "MUL", dtype, shape),
    )


@cases("WHILE", choices=[NUMBERS], own=[Kind.STALE_INPUT])
def loop(draw: Draw, kind: str) -> None:
    """Counts to a number, and steps a value each time."""
    dtype, shape = draw.type(0), draw.shape()
    counter = (DType.INT32, ())
    cond = draw.builder.subgraph("cond")
    inputs = [cond.input(*counter), cond.input(dtype, shape)]
    limit = cond.constant(np.array(draw.integer(0, 6), np.int32))
    answer = cond.operation("LESS", [inputs[0], limit], [(DType.BOOL, ())])
    body = draw.builder.subgraph("body")
    inputs = [body.input(*counter), body.input(_declared(draw, dtype), shape)]
    one = body.constant(np.array(1, np.int32))
    (count,) = body.operation("ADD", [inputs[0], one], [counter])
    by = body.constant(draw.array(dtype, (), -2, 2))
    (value,) = body.operation(draw.pick(("ADD", "MUL")), [inputs[1], by], [(dtype, shape)])
    start = draw.value(DType.INT32, (), array=np.array(draw.integer(0, 3), np.int32))
    draw.operation(
        kind,
        [start, draw.value(dtype, shape, static=True)],
        [draw.output(DType.INT32, None, ()), draw.output(dtype, None, shape)],
        cond_subgraph_index=draw.builder.add_subgraph(cond.finish(answer)),
        body_subgraph_index=draw.builder.add_subgraph(body.finish([count, value])),
    )


def _tables(key: DType, value: DType) -> bool:
    """The pairs that LiteRT's tables have."""
    return {key, value} == {DType.INT64, DType.STRING}


@cases("HASHTABLE_FIND", choices=[KEYS, KEYS], only=_tables)
def find(draw: Draw, kind: str) -> None:
    keys, values = (
        np.array([b"a", b"bc", b"def"], object)
        if dtype is DType.STRING
        else np.array([3, 5, 8], dtype.numpy)
        for dtype in draw.types or ()
    )
    asked = np.array([keys[draw.integer(0, 2)] for _ in range(draw.integer(1, 4))], keys.dtype)
    if draw.chance(0.5):
        asked[0] = b"nobody" if draw.type(0) is DType.STRING else 7
    given = [draw.constant(a, None, draw.type(n)) for n, a in enumerate((keys, values))]
    query = draw.value(draw.type(0), asked.shape, array=asked, constant=False)
    default = draw.value(draw.type(1), (1,), constant=False)
    draw.operation(kind, [*given, query, default], [draw.output(draw.type(1))])


@cases("CUSTOM:TFLite_Detection_PostProcess", choices=[[DType.FLOAT32, DType.UINT8]])
def detections(draw: Draw, kind: str) -> None:
    dtype, places, classes = draw.type(0), draw.integer(1, 12), draw.integer(1, 4)
    corners = draw.rng.uniform(0.1, 0.9, (places, 4)).astype(np.float32)
    corners[:, 2:] = draw.rng.uniform(0.1, 0.4, (places, 2))
    most = draw.integer(1, 6)
    settings: dict[str, Any] = {
        "max_detections": most,
        "max_classes_per_detection": 1,
        "detections_per_class": draw.integer(1, 5),
        "use_regular_nms": draw.chance(0.5),
        "nms_score_threshold": draw.real(0.01, 0.5),
        "nms_iou_threshold": draw.real(0.2, 0.8),
        "num_classes": classes,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    given = [
        draw.value(
            dtype,
            shape,
            draw.quantization(dtype, 1 / 64, 128 if index == 0 else 0)
            if dtype.is_integer
            else None,
            low=low,
            high=high,
            constant=False,
            static=True,
        )
        for index, (shape, low, high) in enumerate(
            (
                ((1, places, 4), None, None),
                ((1, places, classes + 1), 0.0, 1.0 if dtype.is_float else 64),
            )
        )
    ]
    anchors = draw.value(
        dtype,
        (places, 4),
        draw.quantization(dtype, 1 / 128, 0) if dtype.is_integer else None,
        array=_stored(corners, dtype),
        constant=True,
    )
    count = most
    shapes = ((1, count, 4), (1, count), (1, count), (1,))
    draw.operation(
        kind,
        [*given, anchors],
        [draw.output(DType.FLOAT32, None, s) for s in shapes],
        custom_options=bytes(flexbuffers.Dumps(settings)),
    )


def _stored(real: Any, dtype: DType) -> Any:
    return real if dtype.is_float else np.rint(real * 128).astype(dtype.numpy)


@cases("CUSTOM:MaxPoolingWithArgmax2D", choices=[[DType.FLOAT32]])
def pooling(draw: Draw, kind: str) -> None:
    size, padding = draw.integer(2, 3), draw.pick(("SAME", "VALID"))
    shape = (1, *(size * draw.integer(1, 3) for _ in range(2)), draw.integer(1, 3))
    made = (1, shape[1] // size, shape[2] // size, shape[3])
    draw.operation(
        kind,
        [draw.value(DType.FLOAT32, shape, constant=False, static=True)],
        [draw.output(DType.FLOAT32, None, made) for _ in range(2)],
        custom_options=struct.pack("<6i", PADDINGS[padding], size, size, size, size, 0) + bytes(16),
    )


@cases("CUSTOM:MaxUnpooling2D", choices=[[DType.FLOAT32]])
def unpooling(draw: Draw, kind: str) -> None:
    size = draw.integer(2, 3)
    shape = (1, draw.integer(1, 3), draw.integer(1, 3), draw.integer(1, 3))
    # XNNPACK keeps the places as integers in a tensor that says it holds floats.
    places = draw.rng.integers(0, size * size, shape).astype(np.uint32).view(np.float32)
    draw.operation(
        kind,
        [
            draw.value(DType.FLOAT32, shape, constant=False, static=True),
            draw.value(DType.FLOAT32, shape, array=places, constant=False, static=True),
        ],
        [draw.output(DType.FLOAT32, None, (1, shape[1] * size, shape[2] * size, shape[3]))],
        custom_options=struct.pack("<6i", PADDINGS["VALID"], size, size, size, size, 0) + bytes(16),
    )


@cases("CUSTOM:Convolution2DTransposeBias", choices=[[DType.FLOAT32]])
def upsampling(draw: Draw, kind: str) -> None:
    stride, channels, filters = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 3)
    padding = draw.pick(("SAME", "VALID"))
    extent = draw.integer(1, 3)
    image = (1, draw.integer(1, 4), draw.integer(1, 4), channels)
    cuts = [max(extent - (d - 1) % stride - 1, 0) * (padding == "SAME") for d in image[1:3]]
    sides = (stride * (d - 1) + extent - cut for d, cut in zip(image[1:3], cuts, strict=True))
    made = (1, *sides, filters)
    given = [
        draw.value(DType.FLOAT32, image, constant=False, static=True),
        draw.value(DType.FLOAT32, (filters, extent, extent, channels), constant=True),
        draw.value(DType.FLOAT32, (filters,), constant=True),
    ]
    draw.operation(
        kind,
        given,
        [draw.output(DType.FLOAT32, None, made)],
        custom_options=struct.pack("<3i", PADDINGS[padding], stride, stride) + bytes(16),
    )
