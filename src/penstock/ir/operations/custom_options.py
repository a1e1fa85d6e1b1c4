"""Parsers for the options of custom operators.

Options are bytes of the file: a FlexBuffers map (TFLite's own operators), or the C structure of a
built-in operator (MediaPipe's three). Each function reads the options of one operator from an
operation's attributes, for shape rules and drivers. It raises `InvalidAttribute` if they cannot be
read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.errors import InvalidAttribute
from penstock.ir.operation import Attributes
from penstock.ir.operations.rules import MAX_DIMENSION
from penstock.ir.operations.signature import ACTIVATIONS

MAX_OPTIONS: Final = 1 << 16
"""Greatest length of options. Real options have some hundred bytes; longer ones are rejected."""


class DetectionPostProcess(Struct, frozen=True):
    """Options of TFLite_Detection_PostProcess (TFLite's kernel of that name)."""

    max_detections: int
    max_classes_per_detection: int
    detections_per_class: int
    use_regular_nms: bool
    nms_score_threshold: float
    nms_iou_threshold: float
    num_classes: int
    y_scale: float
    x_scale: float
    h_scale: float
    w_scale: float


class TransposeConvBias(Struct, frozen=True):
    """Options of Convolution2DTransposeBias: the structure TfLiteTransposeConvParams."""

    padding: str
    stride_w: int
    stride_h: int


class WindowedPool(Struct, frozen=True):
    """Options of MaxPoolingWithArgmax2D and MaxUnpooling2D: the structure TfLitePoolParams."""

    padding: str
    stride_w: int
    stride_h: int
    filter_width: int
    filter_height: int
    fused_activation_function: str


class AudioSpectrogram(Struct, frozen=True):
    """Options of AudioSpectrogram; *window_size* and *stride* in samples."""

    window_size: int
    stride: int
    magnitude_squared: bool

    @property
    def fft_length(self) -> int:
        """The window size rounded up to a power of two."""
        return 1 << (self.window_size - 1).bit_length()


class Mfcc(Struct, frozen=True):
    """Options of Mfcc. Frequencies are integers, in Hz."""

    upper_frequency_limit: int
    lower_frequency_limit: int
    filterbank_channel_count: int
    dct_coefficient_count: int


class NumericVerify(Struct, frozen=True):
    """Options of NumericVerify: differences beyond *tolerance* quantisation steps count as
    errors.
    """

    tolerance: float
    log_if_failed: bool


class DotProductAttention(Struct, frozen=True):
    """Options of odml.scaled_dot_product_attention. If *scale* is None, the scale is one over the
    root of a head's size. A *logit_cap* of 0 means no cap.
    """

    scale: float | None
    logit_cap: float


class _Options:
    """The map in custom options. It is read key by key, so that deeply nested hostile maps take no
    time.
    """

    def __init__(self, attributes: Attributes) -> None:
        self._code = attributes.text("custom_code")
        data = attributes.blob("custom_options")
        if len(data) > MAX_OPTIONS:
            raise InvalidAttribute(f"{self._code} has {len(data)} bytes of options")
        empty: Mapping[str, Any] = {}
        self._map: Any = (
            self._guarded("map", lambda: flexbuffers().GetRoot(data).AsMap) if data else empty
        )

    def integer(self, name: str, default: int | None = None) -> int:
        """A number from 0 on that fits in 32 bits."""
        value = self._number(name, default)
        if not 0 <= value <= MAX_DIMENSION or value != int(value):
            raise InvalidAttribute(f"option {name!r} of {self._code} cannot be {value}")
        return int(value)

    def positive(self, name: str, default: int | None = None) -> int:
        if (value := self.integer(name, default)) == 0:
            raise InvalidAttribute(f"option {name!r} of {self._code} cannot be 0")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        return float(self._number(name, default))

    def optional_real(self, name: str) -> float | None:
        value = self._guarded(name, lambda: self._read(name))
        return float(value) if isinstance(value, bool | int | float) else None

    def whole(self, name: str) -> int:
        """A number that fits in 32 bits, truncated to an integer, as TFLite's kernels read it."""
        value = self._number(name, None)
        if not abs(value) <= MAX_DIMENSION:
            raise InvalidAttribute(f"option {name!r} of {self._code} cannot be {value}")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        return bool(self._number(name, default))

    def _number(self, name: str, default: float | None) -> float:
        value = self._guarded(name, lambda: self._read(name))
        if value is None:
            value = default
        if not isinstance(value, bool | int | float):
            raise InvalidAttribute(f"options of {self._code} have no number {name!r}")
        return value

    def _read(self, name: str) -> object:
        try:
            found = self._map[name]
        except KeyError:
            return None
        return found.Value if found.IsBool or found.IsInt or found.IsFloat else None

    def _guarded(self, what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            # FlexBuffers' reader trusts its input. Any exception from it means that the file is
            # defective.
            raise InvalidAttribute(f"options of {self._code} have no readable {what}") from error


def flexbuffers() -> Any:
    from flatbuffers import flexbuffers

    return flexbuffers


class _Structure:
    """The leading int32 fields of the C structure in custom options; fields beyond the first
    *least* may be missing.
    """

    def __init__(self, attributes: Attributes, names: Sequence[str], least: int) -> None:
        data, self._code = attributes.blob("custom_options"), attributes.text("custom_code")
        count = min(len(data) // 4, len(names))
        if count < least:
            raise InvalidAttribute(
                f"options of {self._code} have {len(data)} bytes, {4 * least} are needed"
            )
        self._fields: dict[str, int] = dict(
            zip(names, struct.unpack_from(f"<{count}i", data), strict=False)
        )

    def positive(self, name: str) -> int:
        if self._fields[name] < 1:
            raise self._wrong(name, self._fields[name])
        return self._fields[name]

    def choice(self, name: str, choices: Mapping[int, str]) -> str:
        value = self._fields.get(name, 0)
        if value not in choices:
            raise self._wrong(name, value)
        return choices[value]

    def _wrong(self, name: str, value: int) -> InvalidAttribute:
        return InvalidAttribute(f"option {name!r} of {self._code} cannot be {value}")


C_PADDINGS: Final = {1: "SAME", 2: "VALID"}
"""TfLitePadding by number."""

C_ACTIVATIONS: Final = dict(enumerate((*ACTIVATIONS[:4], "TANH", "SIGN_BIT", "SIGMOID")))
"""TfLiteFusedActivation by number."""


def detection_post_process(attributes: Attributes) -> DetectionPostProcess:
    """Options of TFLite_Detection_PostProcess."""
    options = _Options(attributes)
    counts = ("max_detections", "max_classes_per_detection", "num_classes")
    thresholds = ("nms_score_threshold", "nms_iou_threshold")
    scales = ("y_scale", "x_scale", "h_scale", "w_scale")
    numbers: dict[str, Any] = {name: options.integer(name) for name in counts}
    numbers |= {name: options.real(name) for name in (*thresholds, *scales)}
    return DetectionPostProcess(
        **numbers,
        detections_per_class=options.integer("detections_per_class", 100),
        use_regular_nms=options.flag("use_regular_nms", default=False),
    )


def transpose_conv_bias(attributes: Attributes) -> TransposeConvBias:
    """Options of Convolution2DTransposeBias."""
    strides = ("stride_w", "stride_h")
    fields = _Structure(attributes, ("padding", *strides), 3)
    return TransposeConvBias(fields.choice("padding", C_PADDINGS), *map(fields.positive, strides))


def windowed_pool(attributes: Attributes) -> WindowedPool:
    """Options of MaxPoolingWithArgmax2D and MaxUnpooling2D."""
    sizes = ("stride_w", "stride_h", "filter_width", "filter_height")
    fields = _Structure(attributes, ("padding", *sizes, "activation"), 5)
    return WindowedPool(
        fields.choice("padding", C_PADDINGS),
        **{name: fields.positive(name) for name in sizes},
        fused_activation_function=fields.choice("activation", C_ACTIVATIONS),
    )


def audio_spectrogram(attributes: Attributes) -> AudioSpectrogram:
    """Options of AudioSpectrogram."""
    options = _Options(attributes)
    window_size, stride = options.positive("window_size"), options.positive("stride")
    if window_size < 2:
        raise InvalidAttribute("a spectrogram's window has two samples or more")
    return AudioSpectrogram(window_size, stride, options.flag("magnitude_squared", default=False))


def mfcc(attributes: Attributes) -> Mfcc:
    """Options of Mfcc."""
    options = _Options(attributes)
    return Mfcc(
        options.whole("upper_frequency_limit"),
        options.whole("lower_frequency_limit"),
        options.positive("filterbank_channel_count"),
        options.positive("dct_coefficient_count"),
    )


def numeric_verify(attributes: Attributes) -> NumericVerify:
    """Options of NumericVerify."""
    options = _Options(attributes)
    return NumericVerify(options.real("tolerance"), options.flag("log_if_failed", default=False))


def hadamard_size(attributes: Attributes) -> int:
    """The option of aeq.hadamard_rotation: the number of elements in a group, a power of two."""
    options = _Options(attributes)
    size = options.positive("hadamard_size")
    if size & (size - 1):
        raise InvalidAttribute(f"option 'hadamard_size' is {size}, which is no power of two")
    return size


def dot_product_attention(attributes: Attributes) -> DotProductAttention:
    """Options of odml.scaled_dot_product_attention."""
    options = _Options(attributes)
    return DotProductAttention(
        options.optional_real("scale"), options.optional_real("logit_cap") or 0.0
    )
