"""What tests of running generated code share: a network that is worth several threads."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, Model, ModelBuilder, NDArray

F32: Final = DType.FLOAT32
ROWS, COLUMNS, CHANNELS = 37, 61, 24
SIZE: Final = (1, ROWS, COLUMNS, CHANNELS)
CLASSES: Final = 33


def image(seed: int = 5) -> NDArray:
    """An input of `network`."""
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def network(layers: int = 2) -> Model:
    """Convolutions of odd sizes and depthwise ones, *layers* times, each added to what it was made
    of; then a mean, a classifier and a softmax: kernels for all threads, and for one.
    """
    rng = np.random.default_rng(7)
    builder = ModelBuilder()

    def filters(*shape: int) -> int:
        return builder.constant((rng.standard_normal(shape) / 12).astype(np.float32))

    def add(
        kind: str, inputs: list[int | None], shape: tuple[int, ...], **attributes: object
    ) -> int:
        (made,) = builder.operation(kind, inputs, [(F32, shape)], attributes)  # type: ignore[arg-type]  # any attributes
        return made

    window: dict[str, object] = {
        "padding": "SAME", "stride_w": 1, "stride_h": 1, "fused_activation_function": "RELU6",
    }  # fmt: skip
    value = builder.input(F32, SIZE, "x")
    for _ in range(layers):
        c = CHANNELS
        wide = add("CONV_2D", [value, filters(c, 3, 3, c), filters(c)], SIZE, **window)
        deep = add(
            "DEPTHWISE_CONV_2D", [wide, filters(1, 3, 3, c), filters(c)], SIZE,
            depth_multiplier=1, **window,
        )  # fmt: skip
        value = add("ADD", [value, deep], SIZE)
    axes = builder.constant(np.array([1, 2], np.int32))
    mean = add("MEAN", [value, axes], (1, CHANNELS), keep_dims=False)
    scores = add("FULLY_CONNECTED", [mean, filters(CLASSES, CHANNELS), None], (1, CLASSES))
    return builder.build([add("SOFTMAX", [scores], (1, CLASSES), beta=1.0)])
