"""MobileNetV2 1.0, 224 x 224 pixels, float32, random weights (Sandler et al., 2018, table 2)."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.export.tflite import write
from penstock.ir import DType, ModelBuilder, infer_shapes

BLOCKS: Final = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""One row per stage: expansion, channels, repeats, and the stride of the first block."""

CLASSES: Final = 1000


class _Network:
    def __init__(self) -> None:
        self.builder = ModelBuilder()
        self.rng = np.random.default_rng(7)

    def constant(self, *shape: int, fan_in: int) -> int:
        """Random weights that preserve magnitudes, or a bias of zeros if *fan_in* is 0."""
        if not fan_in:
            return self.builder.constant(np.zeros(shape, np.float32))
        scale = np.sqrt(2.0 / fan_in)
        return self.builder.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def operation(self, kind: str, inputs: list[int], **attributes: str | int) -> int:
        return self.builder.operation(kind, inputs, [(DType.FLOAT32, None)], attributes)[0]

    def convolution(
        self, x: int, given: int, made: int, size: int = 1, stride: int = 1, relu: str = "RELU6"
    ) -> int:
        weights = self.constant(made, size, size, given, fan_in=size * size * given)
        return self.operation(
            "CONV_2D",
            [x, weights, self.constant(made, fan_in=0)],
            stride_w=stride,
            stride_h=stride,
            fused_activation_function=relu,
        )

    def depthwise(self, x: int, channels: int, stride: int) -> int:
        return self.operation(
            "DEPTHWISE_CONV_2D",
            [x, self.constant(1, 3, 3, channels, fan_in=9), self.constant(channels, fan_in=0)],
            stride_w=stride,
            stride_h=stride,
            depth_multiplier=1,
            fused_activation_function="RELU6",
        )


def mobilenet_v2() -> bytes:
    """The network as a `.tflite` file of 14 MB: float32[1, 224, 224, 3] to float32[1, 1000]."""
    net = _Network()
    image = net.builder.input(DType.FLOAT32, (1, 224, 224, 3), "image")
    x, channels = net.convolution(image, 3, 32, size=3, stride=2), 32
    for expansion, made, repeats, first_stride in BLOCKS:
        for repeat in range(repeats):
            before, wide = x, channels * expansion
            if expansion != 1:
                x = net.convolution(x, channels, wide)
            x = net.depthwise(x, wide, 1 if repeat else first_stride)
            x = net.convolution(x, wide, made, relu="NONE")
            if repeat:
                x = net.operation("ADD", [before, x])
            channels = made
    x = net.convolution(x, channels, 1280)
    x = net.operation("MEAN", [x, net.builder.constant(np.array([1, 2], np.int32))])
    weights = net.constant(CLASSES, 1280, fan_in=1280)
    x = net.operation("FULLY_CONNECTED", [x, weights, net.constant(CLASSES, fan_in=0)])
    model = infer_shapes(net.builder.build([net.operation("SOFTMAX", [x])]))
    # OpenVINO's reader rejects tensors without names.
    operands = tuple(replace(o, name=o.name or f"t{i}") for i, o in enumerate(model.operands))
    return write(replace(model, subgraphs=(replace(model.entry, operands=operands),)))
