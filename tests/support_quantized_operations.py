"""Single quantised operations that several drivers over an engine take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir import DType, ModelBuilder, NDArray, Quantization
from tests.support_operations import OneOperation

I8: Final = DType.INT8
IMAGE: Final = (1, 7, 6, 8)
IN: Final = Quantization((0.05,), (3,))
OTHER: Final = Quantization((0.07,), (-5,))
OUT: Final = Quantization((0.11,), (4,))
UNIT: Final = Quantization((1.0,), (0,))
UNSIGNED: Final = Quantization((0.05,), (128,))
STEPS: Final[dict[str, Any]] = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
POOL: Final = {**STEPS, "filter_height": 3, "filter_width": 3}
PADS: Final = np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)


def whole(*values: int) -> NDArray:
    return np.array(values, np.int32)


def layer(
    name: str, kind: str, image: tuple[int, ...], filters: tuple[int, ...], out: tuple[int, ...],
        axis: int, zero_point: int = -3, **attributes: object
) -> OneOperation:  # fmt: skip
    """A layer of weights quantised by channel along *axis*, and an int32 bias."""
    rng = np.random.default_rng(3)
    b = ModelBuilder()
    channels = filters[axis]
    scales = tuple(float(np.float32(0.01 + 0.002 * k)) for k in range(channels))
    weights = rng.integers(-127, 128, filters).astype(np.int8)
    biases = rng.integers(-900, 900, channels).astype(np.int32)
    real = tuple(float(np.float32(s) * np.float32(IN.scale)) for s in scales)
    spread = Quantization(
        (float(0.05 * np.sqrt(np.prod(filters) / channels) * 0.02 * 64),), (zero_point,)
    )
    x = b.input(I8, image, "x", IN)
    w = b.constant(weights, "w", Quantization(scales, (0,) * channels, axis))
    k = b.constant(biases, "b", Quantization(real, (0,) * channels, 0))
    return OneOperation(
        name, b.build(b.operation(kind, [x, w, k], [(I8, out, spread)], attributes))  # type: ignore[arg-type]  # any attributes
    )  # fmt: skip


def plain(
    name: str,
    kind: str,
    shapes: Sequence[tuple[int, ...]],
    out: tuple[int, ...],
    quantization: Quantization = OUT,
    attributes: Mapping[str, object] | None = None,
    *,
    constants: Sequence[NDArray] = (),
    dtype: DType = I8,
    given: Sequence[Quantization] = (IN, OTHER),
    first: Sequence[NDArray] = (),
) -> OneOperation:
    b = ModelBuilder()
    inputs = [b.constant(value) for value in first]
    inputs += [
        b.input(dtype, shape, f"x{i}", q)
        for i, (shape, q) in enumerate(zip(shapes, given, strict=False))
    ]
    inputs += [b.constant(value) for value in constants]
    made = b.operation(kind, inputs, [(dtype, out, quantization)], attributes)  # type: ignore[arg-type]  # any attributes
    return OneOperation(name, b.build(made))
