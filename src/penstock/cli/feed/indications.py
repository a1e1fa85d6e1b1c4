"""What a file shows of its training without saying it, which excludes ways to normalise pictures.

Such evidence never decides about a detection or a segmentation, whose answers cannot be compared;
it shortens the list of schemes whose classes are compared.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.cli.feed.first_operations import FirstOperations
from penstock.cli.feed.normalization import PM1, ends, usual
from penstock.execution.inputs import dequantize
from penstock.ir import DType, Model

TF_SLIM: Final = re.compile(
    r"(^|[/;])(MobilenetV[123]|InceptionV[1234]|InceptionResnetV2)/(Conv|MobilenetV|InceptionV|InceptionResnet)"
)
"""Scopes that TF-Slim gives the tensors of networks for which its `preprocessing_factory` has the
preparation [-1, 1].
"""

BATCH_NORM: Final = re.compile(r"FusedBatchNorm|batch_normalization|BatchNorm/")
"""Names that TensorFlow's converter leaves on a convolution into which it has folded a batch
normalization.
"""

BEYOND: Final = 16.0
"""A batch normalization's outputs differ from picture to place by a factor of its gamma, which is
trained from 1.
"""

PIXEL_STD: Final = 64.0
NEIGHBOURS: Final = 0.95
CHANNELS: Final = 0.9
"""Standard deviation of 8-bit pixels in photographs, and the correlation of neighbours and of a
pixel's channels.
"""

LARGEST_KERNEL: Final = 1024
"""Elements of a kernel whose response is computed; its covariance has the square of it."""


def excluded_by_indications(model: Model, first: FirstOperations, channels: int) -> dict[str, str]:
    """The usual schemes that the network cannot have been trained with, by name, each with the
    reason.
    """
    names = _names(model, first)
    if first.is_identity and channels == 3 and TF_SLIM.search(names):
        reason = "its tensors have the names of a TF-Slim network, which is trained on pm1"
        return {s.name: reason for s in usual(channels) if s is not PM1}
    if not first.is_identity or not BATCH_NORM.search(names):
        return {}
    weights, bias = _convolution(model, first)
    if weights is None or bias is None or weights.shape[-1] != channels:
        return {}
    if weights[0].size > LARGEST_KERNEL:
        return {}
    return _beyond_batch_norm(weights, bias, channels)


def _beyond_batch_norm(
    weights: npt.NDArray[np.float64], bias: npt.NDArray[np.float64], channels: int
) -> dict[str, str]:
    typical = _response(weights)
    offset = float(np.sqrt(np.mean(bias**2)))
    excluded: dict[str, str] = {}
    for scheme in usual(channels):
        low, high = ends(scheme, channels)
        slope = (high - low) / 255
        spread = typical * float(np.sqrt(np.mean(slope**2))) * PIXEL_STD
        if min(spread, spread / offset if offset else spread) > BEYOND:
            excluded[scheme.name] = "the first batch normalization's outputs would be far too large"
        elif max(spread, spread / offset if offset else spread) < 1 / BEYOND:
            excluded[scheme.name] = "the first batch normalization would hardly see the picture"
    return excluded if len(excluded) < len(usual(channels)) else {}


def _response(weights: npt.NDArray[np.float64]) -> float:
    """The standard deviation of a convolution's outputs over photographs whose pixels have one of
    1.

    *weights*: [outputs, height, width, channels]. The root of the mean square over the outputs.
    """
    outputs, height, width, channels = weights.shape
    rows, columns = (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) for n in (height, width))
    colours = np.where(np.eye(channels, dtype=bool), 1.0, CHANNELS)
    covariance = np.kron(np.kron(NEIGHBOURS**rows, NEIGHBOURS**columns), colours)
    flat = weights.reshape(outputs, -1)
    return float(np.sqrt(np.mean(np.sum((flat @ covariance) * flat, axis=1))))


def _names(model: Model, first: FirstOperations) -> str:
    if first.operation is None:
        return ""
    numbers = (*first.operation.inputs, *first.operation.outputs)
    return ";".join(model.operands[i].name for i in numbers)


def _convolution(
    model: Model, first: FirstOperations
) -> tuple[npt.NDArray[np.float64] | None, npt.NDArray[np.float64] | None]:
    """Weights [outputs, height, width, channels] and bias of a first convolution."""
    operation = first.operation
    if operation is None or operation.type != "CONV_2D" or len(operation.inputs) < 3:
        return None, None
    found: list[npt.NDArray[np.float64]] = []
    for index in operation.inputs[1:3]:
        operand = model.operands[index]
        if not operand.is_constant or operand.dtype is DType.STRING:
            return None, None
        value = model.constant(operand)
        if operand.quantization is not None:
            value = dequantize(value, operand.quantization)
        found.append(np.asarray(value, np.float64))
    return found[0], found[1]
