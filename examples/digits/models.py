"""The trained network as `penstock.ir` models: float32, and int8 by post-training quantisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from examples.digits.network import CHANNELS, CLASSES, SIDE, Floats, Forward, Parameters
from penstock.export.tflite.encoding import encode
from penstock.export.tflite.metadata_schema import METADATA
from penstock.ir import (
    DType,
    Metadata,
    Model,
    ModelBuilder,
    NDArray,
    Operand,
    Quantization,
    Signature,
)
from penstock.ir.operation import AttributeValue

LABELS: Final = tuple(str(digit) for digit in range(10))
LABEL_FILE: Final = "labels.txt"
LABEL_TEXT: Final = "".join(f"{label}\n" for label in LABELS)

PIXELS: Final = Quantization((float(np.float32(1 / 255)),), (-128,))
"""Stored = 8-bit grey level - 128, real = grey level / 255."""

SHARES: Final = Quantization((1 / 256,), (-128,))
"""The quantisation that TFLite requires of an int8 softmax output."""

CONSTANT_NAMES: Final = (
    "first/filters",
    "first/bias",
    "second/filters",
    "second/bias",
    "dense/weights",
    "dense/bias",
)
CONVOLUTION: Final[Mapping[str, AttributeValue]] = {
    "padding": "SAME",
    "stride_h": 1,
    "stride_w": 1,
    "fused_activation_function": "RELU",
}
WINDOW: Final[Mapping[str, AttributeValue]] = {
    "padding": "VALID",
    "stride_h": 2,
    "stride_w": 2,
    "filter_height": 2,
    "filter_width": 2,
}

Constant: TypeAlias = "tuple[NDArray, Quantization | None]"


def float_model(parameters: Parameters) -> Model:
    """The network in float32; input [1, 8, 8, 1], grey levels / 255."""
    constants: list[Constant] = [
        (np.asarray(a, np.float32), None)
        for pair in zip((*parameters.filters, parameters.dense), parameters.biases, strict=True)
        for a in pair
    ]
    return _assemble(
        DType.FLOAT32,
        constants,
        dict.fromkeys(("image", "first", "second", "logits", "probabilities")),
    )


def int8_model(parameters: Parameters, seen: Forward) -> Model:
    """The network in int8, with activation ranges from *seen*.

    Filters are quantised per channel, the dense weights per tensor.
    """
    activations = {
        "image": PIXELS,
        "first": activation_range(seen.convolved[0]),
        "second": activation_range(seen.convolved[1]),
        "logits": activation_range(seen.logits),
        "probabilities": SHARES,
    }
    constants: list[Constant] = []
    layers = zip(
        (*parameters.filters, parameters.dense),
        parameters.biases,
        ("image", "first", "second"),
        strict=True,
    )
    for weights, bias, source in layers:
        stored, quantization = quantised_weights(weights, per_channel=weights.ndim == 4)
        scales = tuple(
            float(np.float32(activations[source].scale * s)) for s in quantization.scales
        )
        dimension = quantization.dimension
        bias_quantization = Quantization(scales, (0,) * len(scales), dimension)
        constants.append((stored, quantization))
        constants.append((np.round(bias / np.array(scales)).astype(np.int32), bias_quantization))
    return _assemble(DType.INT8, constants, activations)


def activation_range(values: Floats) -> Quantization:
    """The int8 quantisation whose range includes 0 and every one of *values*."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = float(np.float32((high - low) / 255))
    return Quantization((scale,), (int(np.clip(round(-128 - low / scale), -128, 127)),))


def quantised_weights(
    weights: Floats, *, per_channel: bool
) -> tuple[npt.NDArray[np.int8], Quantization]:
    """Symmetric int8 weights in -127..127, with one scale per output channel or one for all."""
    largest = np.abs(weights.reshape(len(weights), -1)).max(axis=1)
    if not per_channel:
        largest = largest.max(keepdims=True)
    scales = tuple(float(np.float32(v / 127)) for v in np.maximum(largest, 1e-6))
    divisor = np.array(scales).reshape(-1, *[1] * (weights.ndim - 1))
    stored = np.clip(np.round(weights / divisor), -127, 127).astype(np.int8)
    return stored, Quantization(scales, (0,) * len(scales), 0 if per_channel else None)


def _assemble(
    dtype: DType, constants: Sequence[Constant], activations: Mapping[str, Quantization | None]
) -> Model:
    """Two convolutions with ReLU and pooling, a dense layer, softmax."""
    builder = ModelBuilder()
    filters1, bias1, filters2, bias2, weights, bias = (
        builder.constant(array, name, quantization)
        for (array, quantization), name in zip(constants, CONSTANT_NAMES, strict=True)
    )
    image = builder.input(dtype, (1, SIDE, SIDE, 1), "image", activations["image"])

    def add(
        kind: str,
        inputs: list[int],
        result: tuple[str, tuple[int, ...]],
        attributes: Mapping[str, AttributeValue],
    ) -> int:
        name, shape = result
        quantization = activations[name.partition("/")[0]]
        return builder.operation(
            kind, inputs, [Operand(dtype, shape, name=name, quantization=quantization)], attributes
        )[0]

    first, second = CHANNELS
    half, quarter = SIDE // 2, SIDE // 4
    x = add("CONV_2D", [image, filters1, bias1], ("first", (1, SIDE, SIDE, first)), CONVOLUTION)
    x = add("MAX_POOL_2D", [x], ("first/pooled", (1, half, half, first)), WINDOW)
    x = add("CONV_2D", [x, filters2, bias2], ("second", (1, half, half, second)), CONVOLUTION)
    x = add("MAX_POOL_2D", [x], ("second/pooled", (1, quarter, quarter, second)), WINDOW)
    x = add("FULLY_CONNECTED", [x, weights, bias], ("logits", (1, CLASSES)), {})
    x = add("SOFTMAX", [x], ("probabilities", (1, CLASSES)), {"beta": 1.0})
    signature = Signature(0, (("image", image),), (("probabilities", x),))
    return builder.build([x], {"serving_default": signature}, metadata())


def metadata() -> Metadata:
    """TFLite metadata: what the input means, and the labels of the output."""
    described = {
        "name": "Penstock digits",
        "description": "Handwritten digits, 8 x 8 grey levels, white on black.",
        "version": "1",
        "license": "Apache-2.0",
        "subgraph_metadata": [
            {
                "input_tensor_metadata": [
                    {
                        "name": "image",
                        "content": {
                            "content_properties_type": METADATA.unions["ContentProperties"].index(
                                "ImageProperties"
                            ),
                            "content_properties": {"color_space": 2},
                        },
                        "process_units": [
                            {
                                "options_type": METADATA.unions["ProcessUnitOptions"].index(
                                    "NormalizationOptions"
                                ),
                                "options": {"mean": [0.0], "std": [255.0]},
                            }
                        ],
                    }
                ],
                "output_tensor_metadata": [
                    {
                        "name": "probabilities",
                        "associated_files": [{"name": LABEL_FILE, "type": 2}],
                    }
                ],
            }
        ],
    }
    return Metadata(
        entries={"TFLITE_METADATA": encode(METADATA, described)},
        files={LABEL_FILE: LABEL_TEXT.encode()},
    )
