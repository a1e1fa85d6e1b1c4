"""The template of sums of products against the interpreter: layers of every type and shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.compiler import interpreter
from penstock.compiler.expression import Scope
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.program import Access, Program, Tensor, along
from penstock.drivers.webgpu.compiling import lowered
from penstock.drivers.webgpu.emit.form import form_of
from penstock.drivers.webgpu.emit.module import template_of
from penstock.hal import PrepareConfig
from penstock.ir import DType, ModelBuilder, Quantization
from tests.support_webgpu import needs_webgpu, run_program

F32, F16, I8, U8 = DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.UINT8
ZERO_POINTS = {I8: (-3, 0), U8: (120, 131)}
CONV, DEPTHWISE, DENSE = "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"


def layer(
    operation: str,
    dtype: DType,
    shape: Sequence[int],
    filters: Sequence[int],
    *,
    padding: str = "SAME",
    stride: int = 1,
    dilation: int = 1,
) -> Program:
    """The program of one layer."""
    builder, rng = ModelBuilder(), np.random.default_rng(7)
    zeros = ZERO_POINTS.get(dtype)
    scales = (
        [Quantization((s,), (z,)) for s, z in zip((0.1, 0.02), zeros, strict=True)]
        if zeros
        else [None] * 2
    )
    x = builder.input(dtype, tuple(shape), "x", quantization=scales[0])
    if zeros:
        limits = np.iinfo(dtype.numpy)
        weights = rng.integers(limits.min, limits.max + 1, tuple(filters)).astype(dtype.numpy)
        channels = filters[-1] if operation == DEPTHWISE else filters[0]
        bias = builder.constant(
            rng.integers(-900, 900, channels).astype(np.int32), "b", Quantization((0.002,), (0,))
        )
    else:
        weights = rng.normal(0, 1, tuple(filters)).astype(dtype.numpy)
        bias = None
    w = builder.constant(weights, "w", scales[1])
    options: dict[str, str | int] = {}
    if operation == DENSE:
        out: tuple[int, ...] = (shape[0], filters[0])
    else:
        reach = [(f - 1) * dilation + 1 for f in filters[1:3]]
        size = [
            -(-n // stride) if padding == "SAME" else (n - r) // stride + 1
            for n, r in zip(shape[1:3], reach, strict=True)
        ]
        out = (shape[0], *size, filters[-1] if operation == DEPTHWISE else filters[0])
        options = {"padding": padding, "stride_w": stride, "stride_h": stride}
        options |= {"dilation_w_factor": dilation, "dilation_h_factor": dilation}
        if operation == DEPTHWISE:
            options["depth_multiplier"] = filters[-1] // shape[-1]
    (y,) = builder.operation(
        operation,
        [x, w, bias],
        [(dtype, out, scales[0] and Quantization((2.0,), (zeros or (0,))[:1]))],
        options,
    )
    model = builder.build([y])
    return with_own_outputs(lowered(model, PrepareConfig()))


LAYERS: dict[str, tuple[str, DType, tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "conv of words": (CONV, I8, (1, 7, 6, 8), (8, 3, 3, 8), {}, "tile of words"),
    "conv of words, unsigned": (CONV, U8, (2, 5, 5, 4), (4, 3, 3, 4), {}, "tile of words"),
    "conv 1x1": (CONV, I8, (1, 3, 5, 16), (12, 1, 1, 16), {}, "tile of words"),
    "conv with a stride": (CONV, I8, (1, 9, 9, 4), (4, 3, 3, 4), {"stride": 2}, "tile of words"),
    "conv unpadded": (CONV, U8, (1, 7, 7, 4), (4, 3, 3, 4), {"padding": "VALID"}, "tile of words"),
    "conv dilated": (CONV, I8, (1, 9, 9, 4), (4, 3, 3, 4), {"dilation": 2}, "tile of words"),
    "conv of three channels": (CONV, I8, (1, 6, 6, 3), (8, 3, 3, 3), {}, "tile"),
    "conv to three channels": (CONV, I8, (1, 4, 4, 4), (3, 3, 3, 4), {}, "nest"),
    "conv to five channels": (CONV, I8, (1, 4, 4, 4), (5, 3, 3, 4), {}, "tile of words"),
    "conv to channels of a part": (CONV, F32, (1, 5, 5, 4), (14, 3, 3, 4), {}, "tile"),
    "conv in rows": (CONV, I8, (2, 11, 13, 4), (20, 3, 3, 4), {}, "tile of words"),
    "conv in rows, of floats": (CONV, F32, (1, 13, 13, 8), (12, 3, 3, 8), {"stride": 2}, "tile"),
    "depthwise in rows": (DEPTHWISE, I8, (1, 15, 14, 8), (1, 3, 3, 8), {}, "tile of words"),
    "depthwise of six": (DEPTHWISE, U8, (1, 7, 6, 6), (1, 3, 3, 6), {}, "tile"),
    "conv of floats": (CONV, F32, (1, 7, 6, 3), (8, 3, 3, 3), {}, "tile"),
    "conv of halves": (CONV, F16, (1, 5, 5, 3), (4, 3, 3, 3), {}, "tile"),
    "depthwise": (DEPTHWISE, I8, (1, 6, 6, 8), (1, 3, 3, 8), {}, "tile of words"),
    "depthwise, U8": (DEPTHWISE, U8, (1, 6, 6, 4), (1, 3, 3, 4), {"stride": 2}, "tile of words"),
    "depthwise of floats": (DEPTHWISE, F32, (2, 6, 6, 8), (1, 5, 5, 8), {}, "tile"),
    "dense": (DENSE, U8, (1, 32), (12, 32), {}, "tile of words"),
    "dense, several rows": (DENSE, F32, (5, 9), (8, 9), {}, "tile"),
}  # fmt: skip


@needs_webgpu
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_of_the_interpreter(name: str) -> None:
    operation, dtype, shape, filters, options, template = LAYERS[name]
    program = layer(operation, dtype, shape, filters, **options)
    assert template in {template_of(k, form_of(program, k)) for k in program.kernels}
    rng = np.random.default_rng(3)
    if dtype.is_float:
        image = rng.normal(0, 1, shape).astype(dtype.numpy)
    else:
        limits = np.iinfo(dtype.numpy)
        image = rng.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)
    (got,), (want,) = run_program(program, [image]), interpreter.run(program, [image])
    if dtype.is_float:
        bound = 1e-5 if dtype is F32 else 2e-3
        assert np.abs(got.astype(np.float64) - want).max() <= bound * np.abs(want).max()
    else:
        assert np.unique(want).size > min(20, want.size // 2)
        assert np.array_equal(got, want)


@needs_webgpu
def test_value_added_to_a_sum_may_lie_outside_for_some_channels() -> None:
    """As in networks that add an image of fewer channels, padded."""
    program = layer(CONV, F32, (1, 6, 6, 4), (8, 1, 1, 4))
    (kernel,) = program.kernels
    tensors = (*program.tensors, Tensor(F32, (1, 6, 6, 6)))
    read = Access(len(tensors) - 1, along(0, 1, 2, 3), 0.0)
    scope = Scope(*kernel.finish.arguments, F32)
    given = [scope.argument(k) for k in range(len(kernel.finish.arguments))]
    finish = scope.finish(scope.inline(kernel.finish, *given) + scope.argument(len(given)))
    kernel = replace(kernel, extras=(*kernel.extras, read), finish=finish)
    inputs = (*program.inputs, read.tensor)
    program = replace(program, tensors=tensors, kernels=(kernel,), inputs=inputs)
    assert form_of(program, kernel) is not None
    rng = np.random.default_rng(4)
    images = [rng.normal(0, 1, tensors[t].shape).astype(np.float32) for t in inputs]
    (got,), (want,) = run_program(program, images), interpreter.run(program, images)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
