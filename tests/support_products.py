"""Random sums of products as programs of one kernel: convolutions, dense and depthwise."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from penstock.compiler.expression import Expression, Scope
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Kernel, Position, Program, Tensor, along
from penstock.driverkit.fixed_point import quantize_multipliers
from penstock.ir import DType, NDArray

CHANNELS = (1, 2, 3, 4, 7, 8, 12, 16, 24, 31, 32, 40, 64, 70, 100, 144)


def requantised(channels: int, low: int, zero: int, *, adds: bool) -> Expression:
    """clamp(rescale(sum + bias) + zero), stored as an unsigned byte; *adds*: plus another byte,
    quantised.
    """
    dtypes = [DType.INT32] * 4 + ([DType.UINT8] if adds else [])
    scope = Scope(*dtypes)
    total = scope.argument(0) + scope.argument(1)
    scaled = scope.add("rescale", total, scope.argument(2), scope.argument(3), dtype=DType.INT32)
    byte = (scaled + zero).clamp(low, 127).cast(DType.INT8)
    if adds:
        other = scope.argument(4).apply("xor", 128).cast(DType.INT8)
        whole = scope.constant(0, DType.INT32)
        for value, offset, mantissa in ((byte, zero, 1518500250), (other, -3, 1073741824)):
            shifted = (value.cast(DType.INT32) - offset).apply("shift_left", 20)
            factors = [scope.constant(v, DType.INT32) for v in (mantissa, 0)]
            whole = whole + scope.add("rescale", shifted, *factors, dtype=DType.INT32)
        factors = [scope.constant(v, DType.INT32) for v in (1932735283, -20)]
        scaled = scope.add("rescale", whole, *factors, dtype=DType.INT32)
        byte = (scaled + 5).clamp(-128, 127).cast(DType.INT8)
    return scope.finish(byte.cast(DType.UINT8).apply("xor", 128))


@st.composite
def layers(
    draw: st.DrawFn, *, depthwise: bool, is_float: bool, rare: bool | None = None
) -> Program:
    """A convolution of bytes or floats with constant weights and a stored border. *rare*: few of
    its weights do not fit the instructions (None: it is drawn).
    """
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    channels = draw(st.sampled_from(CHANNELS))
    inner = channels if depthwise else draw(st.sampled_from(CHANNELS))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (3, 3), (5, 5), (2, 3), (1, 7)]))
    stride, dilation = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 1, 2]))
    images, height, width = (
        draw(st.sampled_from([1, 1, 2])),
        *(draw(st.sampled_from([1, 2, 3, 5, 9, 17])) for _ in range(2)),
    )
    adds = draw(st.booleans())
    spans = zip((height, width), kernel, strict=True)
    sizes = [stride * (n - 1) + dilation * (k - 1) + 1 for n, k in spans]
    border = draw(st.integers(0, 1))
    stored = DType.FLOAT32 if is_float else DType.UINT8
    given = [Tensor(stored, (images, *sizes, inner))]
    zero = 0 if is_float else draw(st.integers(0, 255))
    rare = draw(st.booleans()) if rare is None else rare
    other = 0 if is_float else 3 if rare else draw(st.sampled_from([0, 0, 3]))
    least = -128 if other == 0 else 0
    shape = (*kernel, channels) if depthwise else (channels, *kernel, inner)
    tensors = [*given, Tensor(DType.FLOAT32 if is_float else DType.INT8, shape)]
    constants: dict[int, NDArray] = {}
    if is_float:
        constants[1] = rng.standard_normal(shape).astype(np.float32)
    else:
        dtype = DType.INT8 if least else DType.UINT8
        tensors[1] = Tensor(dtype, shape)
        constants[1] = rng.integers(least, least + 256, shape).astype(dtype.numpy)
        if rare:
            constants[1] >>= 1
            constants[1].reshape(-1)[rng.integers(0, constants[1].size, rng.integers(1, 4))] = 255
    place = [
        Position(0, ((loop, stride), (4 + loop - 1, dilation))) for loop in (1, 2)
    ]  # loops: image, row, column, channel, taps
    depth = Position(0, ((3, 1),)) if depthwise else Position(0, ((6, 1),))
    reads = (
        Access(0, (Position(0, ((0, 1),)), *place, depth)),
        Access(1, along(4, 5, 3) if depthwise else along(3, 4, 5, 6)),
    )
    reduced = kernel if depthwise else (*kernel, inner)
    loops = (images, height, width, channels)
    outer = (images, height + 2 * border, width + 2 * border, channels)
    axes = (
        Position(0, ((0, 1),)), Position(border, ((1, 1),)), Position(border, ((2, 1),)),
        Position(0, ((3, 1),)),
    )  # fmt: skip
    extras: list[Access] = []

    def vector(values: NDArray, dtype: DType) -> None:
        tensors.append(Tensor(dtype, values.shape))
        constants[len(tensors) - 1] = values.astype(dtype.numpy)
        extras.append(Access(len(tensors) - 1, along(3)))

    sums = DType.FLOAT32 if is_float else DType.INT32
    if is_float:
        vector(rng.standard_normal(channels), DType.FLOAT32)
        scope = Scope(*[DType.FLOAT32] * (3 if adds else 2))
        total = scope.argument(0) + scope.argument(1)
        finish = scope.finish((total + scope.argument(2) if adds else total).clamp(0.0, None))
    else:
        count = int(np.prod(reduced))
        scales = rng.uniform(0.2, 2.0, channels) / (60.0 * np.sqrt(count) * 8)
        scales[rng.random(channels) < 0.1] *= 1e-4
        mantissas, shifts = quantize_multipliers(scales)
        vector(rng.integers(-3000, 3000, channels), DType.INT32)
        vector(mantissas, DType.INT32)
        vector(shifts, DType.INT32)
        finish = requantised(
            channels, draw(st.sampled_from([-128, -20])), draw(st.integers(-128, 20)), adds=adds
        )
    inputs = [0]
    if adds:
        tensors.append(Tensor(stored, loops))
        inputs.append(len(tensors) - 1)
        extras.append(Access(len(tensors) - 1, along(0, 1, 2, 3)))
    tensors.append(Tensor(stored, outer))
    body = product(tensors[0].dtype, tensors[1].dtype, sums, (zero, other))
    write = Access(len(tensors) - 1, axes)
    layer = Kernel(
        "layer", loops, reads, body, finish, write, tuple(reduced), "sum", sums, tuple(extras)
    )
    return Program(tuple(tensors), constants, (layer,), tuple(inputs), (len(tensors) - 1,), {})
