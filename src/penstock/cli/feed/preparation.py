"""Determines how a picture becomes the values of an input: the schemes that are stated or possible.

Indirect evidence from training can only exclude schemes. It never decides about a detection or a
segmentation, because their answers cannot be compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct, field

from penstock.cli.failures import UsageError
from penstock.cli.feed import normalization
from penstock.cli.feed.model_inputs import Bounds, FirstOperations, constant_input
from penstock.cli.feed.normalization import F255, IMAGENET, PM1, UNIT, Normalization, ends, usual
from penstock.ir import DType, Model, Operand, TensorMetadata

if TYPE_CHECKING:
    import numpy.typing as npt

Source = Literal["option", "metadata", "quantization", "arithmetic", "type", "indications", ""]

Statement: TypeAlias = tuple[Normalization, Source, str]
"""A scheme, what states it, and why in words."""

TOLERANCE: Final = 0.02
"""How far a range may differ from a usual one, as a share of its width."""

CLIPPED: Final = 0.25
"""A scheme is excluded if a quantised input would clip a larger share of its range at one end."""

LEAST_COVERED: Final = 0.2
"""A scheme is excluded if its values fill a smaller share of a quantised input's range."""

OTHER_RANGES: Final = (
    normalization.mean_std("128,1", (128.0,), (1.0,)),
    normalization.mean_std("127.5,255", (127.5,), (255.0,)),
)
"""Rare schemes with an unmistakable range: [-128, 127] and [-0.5, 0.5]."""

SUBTRACTED: Final = (
    normalization.mean_std(
        "123.68,116.779,103.939,1,1,1", (123.68, 116.779, 103.939), (1.0, 1.0, 1.0)
    ),
)
"""The means that TF-Slim's VGG and ResNet subtract, red first."""


class Preparation(Struct, frozen=True):
    """The possible schemes of one input.

    *source* names the origin of a single scheme: the user's option, or a statement of the file. It
    is "indications" if all others were excluded, and "" for several schemes. *because* is the
    reason in words. *excluded* has the excluded usual schemes, each with its reason. *as_bytes*:
    the input stores the picture's bytes.
    """

    schemes: tuple[Normalization, ...]
    source: Source
    because: str = ""
    excluded: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    as_bytes: bool = False

    @property
    def is_stated(self) -> bool:
        """Whether the user or the file states the scheme."""
        return self.source not in {"", "indications"}


def prepare(
    operand: Operand,
    channels: int,
    metadata: TensorMetadata | None,
    first: FirstOperations,
    model: Model,
    requested: Normalization | None,
) -> Preparation:
    """How a picture of *channels* (1 or 3) becomes the values of *operand*.

    The user's option has priority. An integer input takes the scheme of its quantised range,
    otherwise of the metadata; without quantisation it takes bytes. A float input takes the scheme
    on which the metadata, the first quantisation and the leading arithmetic agree. Raises
    `UsageError` for a scheme that the input cannot take.
    """
    plain = operand.dtype.is_integer and operand.quantization is None
    if requested is not None:
        if plain and requested.name not in {"raw", "bgr"}:
            raise UsageError(
                f"--normalize {requested.name}: the input is {operand.dtype.value} without "
                "quantisation and takes raw or bgr only"
            )
        return Preparation((requested,), "option")
    if plain:
        return Preparation(
            (normalization.RAW,), "type", f"{operand.dtype.value} without quantization"
        )
    stated = _statements(operand, channels, metadata, first)
    if not stated:
        return _unstated(operand, channels, first, model)
    if operand.dtype.is_float:
        stated += _objections(stated, channels, first, model)
    schemes = [scheme for scheme, _, _ in stated]
    if all(_alike(schemes[0], other, channels) for other in schemes[1:]):
        scheme, source, because = stated[0]
        as_bytes = source == "quantization" and operand.dtype is DType.UINT8
        return Preparation((scheme,), source, because, as_bytes=as_bytes)
    distinct = {s.name: s for s in schemes}
    said = ", but ".join(dict.fromkeys(f"{because}" for _, _, because in stated))
    return Preparation(tuple(distinct.values()), "", f"the file contradicts itself: {said}")


def _statements(
    operand: Operand, channels: int, metadata: TensorMetadata | None, first: FirstOperations
) -> list[Statement]:
    """The statements of the file, each with its source and in words. The first has priority."""
    found: list[Statement] = []
    said = metadata_scheme(metadata, channels)
    if said is not None:
        found.append((said, "metadata", f"the metadata says {said.formula}"))
    meant = range_scheme(first.bounds, channels)
    if meant is not None and first.bounds is not None:
        where = "the input" if operand.dtype.is_integer else "the first quantization"
        if not first.bounds.quantized:
            where = "the first operation, which clips,"
        low, high = first.bounds.low, first.bounds.high
        found.append((meant, "quantization", f"{where} holds {low:.3g} to {high:.3g}"))
    if operand.dtype.is_integer:
        return found[-1:]
    expected = arithmetic_scheme(first, channels)
    if expected is not None:
        scale, offset = (",".join(f"{v:.4g}" for v in n) for n in (first.scale, first.offset))
        found.append((expected, "arithmetic", f"the graph begins with {scale} * input + {offset}"))
    return found


def _objections(
    stated: Sequence[Statement],
    channels: int,
    first: FirstOperations,
    model: Model,
) -> list[Statement]:
    """The schemes that the file allows, if they exclude that of a first quantisation alone."""
    if [source for _, source, _ in stated] != ["quantization"]:
        return []
    excluded = excluded_by_indications(model, first, channels)
    if stated[0][0].name not in excluded:
        return []
    reason = excluded[stated[0][0].name]
    return [(s, "indications", reason) for s in usual(channels) if s.name not in excluded]


def metadata_scheme(metadata: TensorMetadata | None, channels: int) -> Normalization | None:
    """The metadata's normalisation, named as in `--normalize`; None if there is no usable one."""
    if metadata is None or metadata.normalization is None:
        return None
    mean, std = metadata.normalization
    if not mean or not std or {len(mean), len(std)} - {1, channels}:
        return None
    if not all(map(math.isfinite, (*mean, *std))) or not all(std):
        return None
    width = max(len(mean), len(std))
    numbers = [*(mean * width)[:width], *(std * width)[:width]]
    return normalization.mean_std(",".join(f"{n:.9g}" for n in numbers), mean, std)


def range_scheme(bounds: Bounds | None, channels: int) -> Normalization | None:
    """The scheme whose values span *bounds*, within 2 % of its width; None for none or several."""
    if bounds is None or bounds.symmetric:
        return None
    known: list[Normalization] = [PM1, UNIT, F255, *OTHER_RANGES]
    if channels == 3:
        known.append(IMAGENET)
    for scheme in known:
        low, high = _range(scheme, channels)
        margin = TOLERANCE * (high - low)
        if abs(bounds.low - low) <= margin and abs(bounds.high - high) <= margin:
            return scheme
    return None


def arithmetic_scheme(first: FirstOperations, channels: int) -> Normalization | None:
    """The scheme that gives a usual range after the graph's leading arithmetic; None for none or
    several.

    A usual range is that of a usual scheme. Otherwise 0 must be a plausible mean of pictures, and 1
    must be a plausible standard deviation.
    """
    if first.is_identity or first.scale.size not in {1, channels} or bool(np.any(first.scale <= 0)):
        return None
    meant = [s for s in (UNIT, PM1, F255) if _gives_usual_range(s, first, channels)]
    if len(meant) == 1:
        return meant[0]
    if channels == 3 and _subtracts_caffe_means(first):
        return normalization.BGR255
    meant = [s for s in (UNIT, PM1, F255) if _standardizes(s, first, channels)]
    return meant[0] if len(meant) == 1 else None


def _gives_usual_range(scheme: Normalization, first: FirstOperations, channels: int) -> bool:
    begins, finishes = (first.scale * e + first.offset for e in ends(scheme, channels))
    others = (UNIT, PM1, F255, *OTHER_RANGES, *((IMAGENET, *SUBTRACTED) if channels == 3 else ()))
    for other in others:
        if other is scheme:
            continue
        low, high = ends(other, channels)
        margin = TOLERANCE * (high - low)
        if np.all(np.abs(begins - low) <= margin) and np.all(np.abs(finishes - high) <= margin):
            return True
    return False


def _subtracts_caffe_means(first: FirstOperations) -> bool:
    offset = np.broadcast_to(first.offset, 3)
    return bool(
        np.all(np.abs(first.scale - 1) < TOLERANCE)
        and np.all(np.abs(offset - ends(normalization.CAFFE, 3)[0]) < 255 * TOLERANCE)
        and np.all(np.diff(offset) < 0)
    )


def _standardizes(scheme: Normalization, first: FirstOperations, channels: int) -> bool:
    if np.all(np.abs(first.offset) < TOLERANCE):
        return False
    low, high = ends(scheme, channels)
    mean = (-first.offset / first.scale - low) / (high - low)
    std = 1 / first.scale / (high - low)
    plausible = np.all((std >= 0.15) & (std <= 0.5)) or np.all(np.abs(first.scale - 1) < 0.02)
    return bool(plausible and np.all((mean >= 0.1) & (mean <= 0.7)))


def _range(scheme: Normalization, channels: int) -> tuple[float, float]:
    low, high = ends(scheme, channels)
    return float(low.min()), float(high.max())


def _alike(one: Normalization, other: Normalization, channels: int) -> bool:
    """Whether two schemes give the same values, within 2 % of their range."""
    if one.bgr != other.bgr:
        return False
    (low, high), (other_low, other_high) = ends(one, channels), ends(other, channels)
    margin = TOLERANCE * np.maximum(high - low, other_high - other_low)
    return bool(
        np.all(np.abs(low - other_low) <= margin) and np.all(np.abs(high - other_high) <= margin)
    )


def _unstated(operand: Operand, channels: int, first: FirstOperations, model: Model) -> Preparation:
    """The usual schemes, without those that other evidence in the file excludes."""
    schemes: Sequence[Normalization] = usual(channels)
    because = "the file does not say how pictures are normalized"
    bounds = first.bounds
    excluded: dict[str, str] = {}
    if bounds is not None and bounds.quantized:
        because = (
            f"the quantized range {bounds.low:.3g} to {bounds.high:.3g} does not say how pictures "
            "are normalized"
        )
        reason = f"does not fit the quantized range {bounds.low:.3g} to {bounds.high:.3g}"
        excluded |= {s.name: reason for s in schemes if not _fits(s, bounds, channels)}
        if operand.dtype.is_integer:
            schemes = (normalization.RAW, *schemes)
    excluded |= excluded_by_indications(model, first, channels)
    left = tuple(s for s in schemes if s.name not in excluded)
    if not left:
        return Preparation(tuple(schemes), "", because)
    source: Source = "indications" if len(left) == 1 else ""
    if source:
        reasons = dict.fromkeys(r for n, r in excluded.items() if n != left[0].name)
        because = f"{because}, but {'; '.join(reasons)}"
    return Preparation(left, source, because, MappingProxyType(excluded))


def _fits(scheme: Normalization, bounds: Bounds, channels: int) -> bool:
    low, high = _range(scheme, channels)
    most = CLIPPED * (high - low)
    covered = min(high, bounds.high) - max(low, bounds.low)
    width = bounds.high if bounds.symmetric and low >= 0 else bounds.width
    return (
        low >= bounds.low - most and high <= bounds.high + most and covered >= LEAST_COVERED * width
    )


TF_SLIM: Final = re.compile(
    r"(^|[/;])(MobilenetV[123]|InceptionV[1234]|InceptionResnetV2)"
    r"/(Conv|MobilenetV|InceptionV|InceptionResnet)"
)
"""TF-Slim's tensor names in networks for which its `preprocessing_factory` prepares [-1, 1]."""

BATCH_NORM: Final = re.compile(r"FusedBatchNorm|batch_normalization|BatchNorm/")
"""Names that TensorFlow's converter gives to a convolution with a folded batch normalisation."""

BEYOND: Final = 16.0
"""Standard deviation of a batch normalisation's outputs: gamma, 1 before training."""

PIXEL_STD: Final = 64.0
NEIGHBOURS: Final = 0.95
CHANNELS: Final = 0.9
"""Standard deviation of photographs' pixels, and correlation of neighbours and channels."""

LARGEST_KERNEL: Final = 1024
"""Larger kernels' responses are not computed: the covariance has the square of their elements."""


def excluded_by_indications(model: Model, first: FirstOperations, channels: int) -> dict[str, str]:
    """The usual schemes that cannot have been used in training, by name, each with the reason."""
    indexes = () if first.operation is None else (*first.operation.inputs, *first.operation.outputs)
    names = ";".join(model.operands[i].name for i in indexes)
    if first.is_identity and channels == 3 and TF_SLIM.search(names):
        reason = "its tensors have the names of a TF-Slim network, which is trained on pm1"
        return {s.name: reason for s in usual(channels) if s is not PM1}
    if not first.is_identity or not BATCH_NORM.search(names):
        return {}
    operation = first.operation
    if operation is None or operation.type != "CONV_2D":
        return {}
    weights, bias = (constant_input(model, operation, position) for position in (1, 2))
    if weights is None or bias is None or weights.shape[-1] != channels:
        return {}
    if weights[0].size > LARGEST_KERNEL:
        return {}
    typical = _response(weights)
    offset = float(np.sqrt(np.mean(bias**2)))
    excluded: dict[str, str] = {}
    for scheme in usual(channels):
        low, high = ends(scheme, channels)
        slope = (high - low) / 255
        spread = typical * float(np.sqrt(np.mean(slope**2))) * PIXEL_STD
        ratio = spread / offset if offset else spread
        if min(spread, ratio) > BEYOND:
            excluded[scheme.name] = "the first batch normalization's outputs would be far too large"
        elif max(spread, ratio) < 1 / BEYOND:
            excluded[scheme.name] = "the first batch normalization would hardly see the picture"
    return excluded if len(excluded) < len(usual(channels)) else {}


def _response(weights: npt.NDArray[np.float64]) -> float:
    """The root mean square, over the outputs, of a convolution's standard deviation for photographs
    with a pixel deviation of 1. *weights*: [outputs, height, width, channels].
    """
    outputs, height, width, channels = weights.shape
    rows, columns = (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) for n in (height, width))
    colours = np.where(np.eye(channels, dtype=bool), 1.0, CHANNELS)
    covariance = np.kron(np.kron(NEIGHBOURS**rows, NEIGHBOURS**columns), colours)
    flat = weights.reshape(outputs, -1)
    return float(np.sqrt(np.mean(np.sum((flat @ covariance) * flat, axis=1))))
