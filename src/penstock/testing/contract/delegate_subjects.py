"""Small networks on which a delegate that does not look at a node's options or types is wrong.
Experimental until 1.0.

for subject in standard_subjects(MyDelegate):
    for result in run_delegate_contract(subject): print(result.check, result.outcome,
    result.message)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.delegates import Delegate
from penstock.export.tflite import write
from penstock.ir import DType, ModelBuilder, NDArray, Quantization
from penstock.testing.contract.delegates import Subject

LAYER: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}


def standard_subjects(
    make: Callable[[], Delegate], *, rtol: float = 1e-4, atol: float = 1e-5
) -> dict[str, Subject]:
    """Subjects by name, for every option that a delegate may ignore.

    Convolutions, depthwise and plain, with every fused activation, padding, stride and dilation, in
    float32 and int8, without bias and grouped; fully connected layers, pools, sums and means with
    their options. Networks whose nodes *make*'s delegate does not take are not covered. int8
    results may differ by one quantisation step.
    """
    return {
        name: Subject(make, content, rtol=rtol, atol=1.0 if "int8" in name else atol)
        for name, content in _files()
    }


def _files() -> Iterator[tuple[str, bytes]]:
    for activation in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1"):
        fused: dict[str, Any] = {"fused_activation_function": activation}
        yield f"CONV_2D {activation}", _layer(**fused)
        yield f"DEPTHWISE_CONV_2D {activation}", _layer("DEPTHWISE_CONV_2D", **fused)
        yield f"FULLY_CONNECTED {activation}", _connected(**fused)
        yield f"ADD {activation}", _sum(**fused)
    for kind in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        yield f"{kind} VALID", _layer(kind, padding="VALID")
        for axis in ("h", "w"):
            apart: dict[str, Any] = {f"dilation_{axis}_factor": 2}
            yield f"{kind} dilation_{axis}", _layer(kind, **apart)
        yield f"{kind} strides", _layer(kind, stride_h=2, stride_w=2)
        yield f"{kind} int8", _layer(kind, quantized=True)
    yield "CONV_2D unequal strides", _layer(stride_h=2, stride_w=1)
    yield "CONV_2D groups", _layer(depth=1)
    yield "CONV_2D without bias", _layer(bias=False)
    for keep in (False, True):
        yield f"MEAN keep_dims {keep}", _mean(keep_dims=keep)
        yield f"FULLY_CONNECTED keep_num_dims {keep}", _connected(keep_num_dims=keep)
    yield "MEAN int8", _mean(quantized=True, keep_dims=False)
    for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        for padding in ("SAME", "VALID"):
            yield f"{kind} {padding}", _pool(kind, padding)


def _values(*shape: int) -> NDArray:
    """Values of both signs, up to 12, so that activations clip."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 % 25) - 12).astype(np.float32).reshape(shape)


GRID = Quantization((0.25,), (3,))


def _layer(
    kind: str = "CONV_2D",
    *,
    depth: int = 2,
    bias: bool = True,
    quantized: bool = False,
    **options: Any,
) -> bytes:
    """A 3x2 window over [1, 6, 5, 2], to 4 channels (depthwise: 2)."""
    attributes, shape, units = LAYER | options, (4, 3, 2, depth), 4
    if kind == "DEPTHWISE_CONV_2D":
        attributes["depth_multiplier"], shape, units = 1, (1, 3, 2, 2), 2
    dtype, grid = (DType.INT8, GRID) if quantized else (DType.FLOAT32, None)
    b = ModelBuilder()
    x = b.input(dtype, (1, 6, 5, 2), "x", grid)
    if quantized:
        even = Quantization((0.5,), (0,))
        filters = b.constant(_values(*shape).astype(np.int8), "filters", even)
        offset = b.constant(np.arange(units, dtype=np.int32), "bias", Quantization((0.125,), (0,)))
    else:
        filters, offset = b.constant(_values(*shape), "filters"), b.constant(_values(units), "bias")
    size = [_size(n, k, axis, attributes) for n, k, axis in ((6, 3, "h"), (5, 2, "w"))]
    out = (dtype, (1, *size, units), Quantization((8.0,), (3,)) if quantized else None)
    inputs = [x, filters, offset if bias else None]
    return write(b.build(b.operation(kind, inputs, [out], attributes)))


def _size(length: int, window: int, axis: str, options: dict[str, Any]) -> int:
    reach = (window - 1) * options.get(f"dilation_{axis}_factor", 1) + 1
    room = length if options["padding"] == "SAME" else length - reach + 1
    return int(-(-room // options[f"stride_{axis}"]))


def _connected(**options: Any) -> bytes:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2, 3, 4), "x")
    given = [x, b.constant(_values(5, 4), "weights"), b.constant(_values(5), "bias")]
    shape = (2, 3, 5) if options.get("keep_num_dims") else (6, 5)
    return write(b.build(b.operation("FULLY_CONNECTED", given, [(DType.FLOAT32, shape)], options)))


def _sum(**options: Any) -> bytes:
    b = ModelBuilder()
    x, y = b.input(DType.FLOAT32, (2, 9), "x"), b.constant(_values(9), "y")
    return write(b.build(b.operation("ADD", [x, y], [(DType.FLOAT32, (2, 9))], options)))


def _mean(*, keep_dims: bool, quantized: bool = False) -> bytes:
    dtype, grid = (DType.INT8, GRID) if quantized else (DType.FLOAT32, None)
    b = ModelBuilder()
    x = b.input(dtype, (1, 4, 3, 2), "x", grid)
    axes = b.constant(np.array([1, -2], np.int32), "axes")
    shape = (1, 1, 1, 2) if keep_dims else (1, 2)
    options = {"keep_dims": keep_dims}
    return write(b.build(b.operation("MEAN", [x, axes], [(dtype, shape, grid)], options)))


def _pool(kind: str, padding: str) -> bytes:
    options: dict[str, Any] = {"padding": padding, "stride_h": 2, "stride_w": 2}
    options |= {"filter_height": 3, "filter_width": 2}
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, 6, 5, 2), "x")
    size = [_size(n, k, axis, options) for n, k, axis in ((6, 3, "h"), (5, 2, "w"))]
    return write(b.build(b.operation(kind, [x], [(DType.FLOAT32, (1, *size, 2))], options)))
