"""From 8-bit picture values to what a model's input stores.

The schemes have the names of the corpus's pre-processing table; x is a channel value, 0 to 255:

    raw, f255    x                          bgr, bgr255  x, channels in the order blue, green, red
    unit         x / 255                    m127d128     (x - 127) / 128
    pm1          x / 127.5 - 1              imagenet     (x / 255 - mean) / std, ImageNet's mean and std
    MEAN,STD     (x - MEAN) / STD; with three channels also six numbers, the means first
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.cli.failures import UsageError
from penstock.execution.inputs import quantize
from penstock.ir import DType, NDArray, Operand, TensorMetadata

Floats: TypeAlias = npt.NDArray[np.float32]

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

RANGE_TOLERANCE: Final = 0.02
"""How far, as a share of the range, a quantised range may lie from [-1, 1] or [0, 1] and still mean it."""


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A scheme: its name, and the function from float32 [..., channels] in 0..255 to real values.

    *channels* is how many the picture must have, 0 where any number will do.
    """

    name: str
    apply: Callable[[Floats], Floats]
    bgr: bool = False
    channels: int = 0


def _floats(values: tuple[float, ...]) -> Floats:
    return np.array(values, np.float32)


def _same(x: Floats) -> Floats:
    return x


def _unit(x: Floats) -> Floats:
    return x / np.float32(255)


def _pm1(x: Floats) -> Floats:
    return x / np.float32(127.5) - np.float32(1)


def _imagenet(x: Floats) -> Floats:
    unit = x / np.float32(255)
    return (unit - _floats(IMAGENET_MEAN)) / _floats(IMAGENET_STD)


def mean_std(name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalisation:
    """(x - mean) / std, one value for all channels or one a channel."""
    channels = max(len(mean), len(std))
    return Normalisation(
        name,
        lambda x: (x - _floats(mean)) / _floats(std),
        channels=0 if channels == 1 else channels,
    )


RAW: Final = Normalisation("raw", _same)
UNIT: Final = Normalisation("unit", _unit)
PM1: Final = Normalisation("pm1", _pm1)
F255: Final = Normalisation("f255", _same)

SCHEMES: Final = {
    scheme.name: scheme
    for scheme in (
        RAW,
        UNIT,
        PM1,
        F255,
        Normalisation("bgr", _same, bgr=True),
        Normalisation("bgr255", _same, bgr=True),
        mean_std("m127d128", (127.0,), (128.0,)),
        Normalisation("imagenet", _imagenet, channels=3),
    )
}


def parse_normalisation(text: str) -> Normalisation:
    """The scheme that *text* names. Raises `UsageError`."""
    if text in SCHEMES:
        return SCHEMES[text]
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    half = len(numbers) // 2
    usable = all(map(math.isfinite, numbers)) and all(numbers[half:])
    if len(numbers) not in {2, 6} or not usable:
        raise UsageError(
            f"--normalise {text!r} is neither one of {', '.join(SCHEMES)} nor MEAN,STD (2 or 6 numbers, STD not 0)"
        )
    return mean_std(text, tuple(numbers[:half]), tuple(numbers[half:]))


def choose(
    operand: Operand, metadata: TensorMetadata | None, requested: Normalisation | None
) -> tuple[Normalisation, str]:
    """The scheme for a picture input, and what was assumed for want of knowledge ("" when nothing was).

    What the caller asks for comes first. An integer input then takes what its quantised range means:
    [-1, 1] is pm1, [0, 1] unit, [0, 255] f255, and 8-bit values without quantisation go in raw. Then
    speaks the model's metadata, and where that is silent too a float input gets pm1, any other raw.
    """
    if requested is not None:
        if (
            operand.dtype.is_integer
            and operand.quantization is None
            and requested.name not in {"raw", "bgr"}
        ):
            raise UsageError(
                f"--normalise {requested.name}: the input is {operand.dtype.value} without quantisation and takes "
                "raw or bgr only"
            )
        return requested, ""
    stated = metadata.normalization if metadata is not None else None
    if operand.dtype.is_integer:
        meant = quantised_range(operand)
        if meant is not None:
            return meant, ""
        if operand.quantization is None:
            return RAW, ""
        if stated is None:
            low, high = real_limits(operand)
            return (
                RAW,
                f"the quantised range [{low:.3g}, {high:.3g}] of the input has no usual meaning; raw assumed",
            )
    if stated is not None:
        return mean_std("metadata", *stated), ""
    return (
        PM1,
        "the model does not say how pictures are normalised: pm1 (x / 127.5 - 1) assumed, see --normalise",
    )


def real_limits(operand: Operand) -> tuple[float, float]:
    """The real values of the least and the greatest 8-bit stored value of a quantised operand."""
    quantization = operand.quantization
    if quantization is None:
        raise UsageError(f"input {operand.name!r} is not quantised")
    least = -128 if operand.dtype is DType.INT8 else 0
    scale, zero_point = quantization.scale, quantization.zero_point
    return scale * (least - zero_point), scale * (least + 255 - zero_point)


def quantised_range(operand: Operand) -> Normalisation | None:
    """The scheme whose range an 8-bit quantised input stores, or None."""
    if operand.quantization is None or operand.dtype not in {DType.UINT8, DType.INT8}:
        return None
    low, high = real_limits(operand)
    for scheme, expected_low, expected_high in (
        (PM1, -1.0, 1.0),
        (UNIT, 0.0, 1.0),
        (F255, 0.0, 255.0),
    ):
        margin = RANGE_TOLERANCE * (expected_high - expected_low)
        if abs(low - expected_low) <= margin and abs(high - expected_high) <= margin:
            return scheme
    return None


def store(
    pixels: npt.NDArray[np.uint8], operand: Operand, scheme: Normalisation, *, explicit: bool
) -> NDArray:
    """What the input stores for *pixels*, uint8 [..., channels]: the scheme's real values, quantised.

    raw, and for uint8 any scheme that its range already means, leaves the 8-bit values as they are; an
    int8 input without more to go by holds x - 128. *explicit*: the caller named the scheme. Raises
    `UsageError` for a scheme of another number of channels.
    """
    dtype = operand.dtype
    if scheme.channels not in {0, pixels.shape[-1]}:
        raise UsageError(
            f"normalisation {scheme.name} is for {scheme.channels} channels; input {operand.name!r} takes "
            f"{pixels.shape[-1]}"
        )
    if scheme.bgr:
        pixels = pixels[..., ::-1]
    if not dtype.is_integer:
        real = scheme.apply(pixels.astype(np.float32))
        return real.astype(dtype.numpy)
    identity = scheme.name in {"raw", "bgr"} or (
        dtype is DType.UINT8 and not explicit and scheme.name != "metadata"
    )
    if identity or operand.quantization is None:
        return (
            (pixels.astype(np.int16) - 128).astype(np.int8)
            if dtype is DType.INT8
            else pixels.astype(dtype.numpy)
        )
    return quantize(scheme.apply(pixels.astype(np.float32)), operand.quantization, dtype)
