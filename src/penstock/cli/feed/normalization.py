"""The ways in which 8-bit picture values become a model's real values.

The names are those of `--normalize`; x is a channel value, 0 to 255:

    raw, f255    x                          bgr, bgr255  x, channels in the order blue, green, red
    unit         x / 255                    m127d128     (x - 127) / 128
    pm1          x / 127.5 - 1              imagenet     (x / 255 - mean) / std, ImageNet's mean and
    std
    caffe        x - mean, channels in the order blue, green, red
    MEAN,STD     (x - MEAN) / STD; with three channels also six numbers, the means first
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.cli.failures import UsageError
from penstock.execution.inputs import quantize
from penstock.ir import DType, NDArray, Operand

if TYPE_CHECKING:
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
CAFFE_MEAN: Final = (103.939, 116.779, 123.68)
"""Blue, green, red: the means that Caffe, and Keras's ResNet and VGG, subtract."""


class Normalization(Struct, frozen=True):
    """A scheme: its name, and the function from float32 [..., channels] in 0..255 to real values.
    *bgr*: the function takes blue, green, red. *channels* is the required number, 0 for any.
    *formula* is the function in words.
    """

    name: str
    apply: Callable[[Floats], Floats]
    formula: str = ""
    bgr: bool = False
    channels: int = 0


def _floats(values: tuple[float, ...]) -> Floats:
    return np.array(values, np.float32)


def mean_std(
    name: str, mean: tuple[float, ...], std: tuple[float, ...], *, bgr: bool = False
) -> Normalization:
    """(x - mean) / std, with one value for all channels or one per channel."""

    def apply(x: Floats) -> Floats:
        # Numbers that overflow float32 become infinities or NaN, which `store` rejects by name.
        with np.errstate(all="ignore"):
            return (x - _floats(mean)) / _floats(std)

    channels = max(len(mean), len(std))
    parts = [",".join(f"{v:g}" for v in values) for values in (mean, std)]
    formula = f"(x - {parts[0]}) / {parts[1]}"
    return Normalization(name, apply, formula, bgr=bgr, channels=0 if channels == 1 else channels)


def _imagenet(x: Floats) -> Floats:
    return (x / np.float32(255) - _floats(IMAGENET_MEAN)) / _floats(IMAGENET_STD)


RAW: Final = Normalization("raw", lambda x: x, "x")
UNIT: Final = Normalization("unit", lambda x: x / np.float32(255), "x / 255")
PM1: Final = Normalization("pm1", lambda x: x / np.float32(127.5) - np.float32(1), "x / 127.5 - 1")
F255: Final = Normalization("f255", lambda x: x, "x")
IMAGENET: Final = Normalization(
    "imagenet", _imagenet, "(x / 255 - mean) / std of ImageNet", channels=3
)
CAFFE: Final = mean_std("caffe", CAFFE_MEAN, (1.0,), bgr=True)
BGR: Final = Normalization("bgr", lambda x: x, "x, blue first", bgr=True)
BGR255: Final = Normalization("bgr255", lambda x: x, "x, blue first", bgr=True)
M127D128: Final = mean_std("m127d128", (127.0,), (128.0,))

SCHEMES: Final = {
    scheme.name: scheme for scheme in (RAW, UNIT, PM1, F255, IMAGENET, CAFFE, BGR, BGR255, M127D128)
}


def usual(channels: int) -> tuple[Normalization, ...]:
    """The schemes that are usual in training. They are compared if the file does not state one."""
    return (UNIT, PM1, F255, IMAGENET, CAFFE) if channels == 3 else (UNIT, PM1, F255)


def parse_normalization(text: str) -> Normalization:
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
            f"--normalize {text!r} is neither one of {', '.join(SCHEMES)} nor MEAN,STD (2 or 6 "
            "numbers, STD not 0)"
        )
    return mean_std(text, tuple(numbers[:half]), tuple(numbers[half:]))


def ends(scheme: Normalization, channels: int) -> tuple[npt.NDArray[np.float64], ...]:
    """The scheme's values for 0 and for 255: two arrays, float64 [channels]."""
    width = scheme.channels or channels
    low, high = (
        scheme.apply(np.full(width, value, np.float32)).astype(np.float64) for value in (0, 255)
    )
    return low, high


def store(
    pixels: npt.NDArray[np.uint8], operand: Operand, scheme: Normalization, *, as_bytes: bool
) -> NDArray:
    """The input's values for *pixels*, uint8 [..., channels]: the scheme's real values, quantised.

    With raw, bgr, *as_bytes*, and for integers without quantisation, they are the 8-bit values;
    int8 has x - 128. Raises `UsageError` for a scheme with another number of channels, and for
    values that are not finite.
    """
    dtype = operand.dtype
    if scheme.channels not in {0, pixels.shape[-1]}:
        raise UsageError(
            f"normalization {scheme.name} is for {scheme.channels} channels; input "
            f"{operand.name!r} takes {pixels.shape[-1]}"
        )
    if scheme.bgr:
        pixels = pixels[..., ::-1]
    if not dtype.is_integer:
        with np.errstate(over="ignore"):
            stored: NDArray = scheme.apply(pixels.astype(np.float32)).astype(dtype.numpy)
        _check_finite(stored, scheme, operand)
        return stored
    if scheme.name in {"raw", "bgr"} or as_bytes or operand.quantization is None:
        if dtype is DType.INT8:
            return (pixels.astype(np.int16) - 128).astype(np.int8)
        return pixels.astype(dtype.numpy)
    real = scheme.apply(pixels.astype(np.float32))
    _check_finite(real, scheme, operand)
    return quantize(real, operand.quantization, dtype)


def _check_finite(values: NDArray, scheme: Normalization, operand: Operand) -> None:
    if not np.isfinite(values.astype(np.float64)).all():
        raise UsageError(
            f"normalization {scheme.name} gives values that {operand.dtype.value} does not hold "
            "(infinite, or not a number): choose a smaller MEAN or a greater STD with --normalize"
        )
