"""Whether an input can be a picture or a sound, and what it resembles otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.feed.preparation import range_scheme
from penstock.ir.model import show_operand, show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.feed.model_inputs import Bounds, FirstOperations, Slot
    from penstock.cli.feed.pictures import Layout
    from penstock.ir import Model, Operand, Shape

CONTENT: Final = {
    "feature": "a vector of features",
    "audio": "a sound",
    "image": "a picture",
    "bounding_box": "boxes",
}
"""The metadata's kinds of content, in words."""

CONVOLUTIONS: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"}
)
PRODUCTS: Final = frozenset(
    {"FULLY_CONNECTED", "BATCH_MATMUL", "SVDF", "RNN", "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
)
LOOKUPS: Final = frozenset({"GATHER", "GATHER_ND", "EMBEDDING_LOOKUP"})

STANDARDIZED: Final = (1.5, 8.0)
"""Least and greatest width of a range of standardised pictures."""

LOUDEST: Final = 1.2
LOUDEST_16_BIT: Final = (4000.0, 40000.0)
"""Greatest magnitudes of a quantised range: samples in [-1, 1), and 16-bit samples."""

LEAST_SWING: Final = 0.2
"""The least share of a sound range's longer side that its other side of zero must reach."""


def no_picture(slot: Slot, layout: Layout | None, first: FirstOperations, *, insist: bool) -> str:
    """Why this input is no picture, and what it resembles; "" if it may be one.

    *insist*: the user states the normalisation. Then only an input with no picture layout is
    rejected.
    """
    operand, content = slot.operand, slot.content
    here = f"input {operand.name!r} is {show_operand(operand)}"
    if not operand.dtype.is_float and not operand.dtype.is_integer:
        return f"{here}, which has no numbers for pixels"
    if layout is None:
        return f"{here}, which is not the shape of a picture{_looks(operand.shape)}"
    if insist or content == "image":
        return ""
    if content in CONTENT:
        return f"{here}, which the metadata calls {CONTENT[content]}"
    if reason := _other_than_picture(operand, layout, first, slot.model):
        return f"{here}, which is no picture: {reason}"
    if layout.channels == 1 and first.bounds is not None and not _holds_grey(first.bounds):
        return (
            f"{here}, whose range, {_span(first.bounds)}, no usual normalization of pictures gives"
            f"{_looks(operand.shape)}"
        )
    return ""


def no_sound(slot: Slot, samples: int | None, first: FirstOperations) -> str:
    """Why this input of *samples* values is no sound, and what it resembles; "" otherwise."""
    operand, content = slot.operand, slot.content
    here = f"input {operand.name!r} is {show_operand(operand)}"
    if content in CONTENT and content != "audio":
        return f"{here}, which the metadata calls {CONTENT[content]}"
    if samples is None:
        return f"{here}, which is not the shape of a sound{_looks(operand.shape)}"
    if content == "audio":
        return ""
    if reason := _other_than_waveform(first, slot.model):
        return f"{here}, which is no waveform: {reason}"
    if amplitude(first.bounds) is None and first.bounds is not None:
        return f"{here}, whose range, {_span(first.bounds)}, is not that of a waveform"
    return ""


def amplitude(bounds: Bounds | None) -> float | None:
    """The real value of full scale: 1, or 32768 for 16-bit samples; None if it is no waveform."""
    if bounds is None:
        return 1.0
    shorter, longer = sorted((-bounds.low, bounds.high))
    if shorter < LEAST_SWING * longer:
        return None
    if longer <= LOUDEST:
        return 1.0
    return 32768.0 if LOUDEST_16_BIT[0] <= longer <= LOUDEST_16_BIT[1] else None


def _other_than_picture(
    operand: Operand, layout: Layout, first: FirstOperations, model: Model
) -> str:
    """Why the first operation does not read a picture; "" if it may."""
    operation = first.operation
    if operation is None:
        return ""
    if operand.dtype.is_integer and operation.type in LOOKUPS:
        return f"{operation.type} takes its values for places in a table"
    if layout.channels == 4 and operation.type not in CONVOLUTIONS:
        return f"{operation.type} reads it, which does not read pictures of 4 channels"
    rows, columns = layout.height, layout.width
    if "C" in layout.axes or operation.type not in PRODUCTS - {"UNIDIRECTIONAL_SEQUENCE_LSTM"}:
        return ""
    if first.value.shape is None or first.value.shape[-1] != columns or rows is None:
        return ""
    weights = model.operands[operation.inputs[1]].shape or ()
    if rows * (columns or 0) in weights:
        return ""
    return (
        f"{operation.type} reads each row by itself; it looks like a sequence of {rows} vectors "
        f"of {columns} values"
    )


def _other_than_waveform(first: FirstOperations, model: Model) -> str:
    """Why the first operation does not read a waveform; "" if it may."""
    operation, shape = first.operation, first.value.shape or ()
    if operation is None:
        return ""
    # An unknown first dimension is a batch.
    long = [d for d in (shape[1:] if len(shape) > 1 and shape[0] is None else shape) if d != 1]
    if operation.type in PRODUCTS and len(long) == 1 and shape[-1] == long[0]:
        return (
            f"all of it goes into {operation.type} at once; it looks like a vector of "
            f"{long[0] or 'any number of'} features"
        )
    if operation.type not in CONVOLUTIONS or len(shape) != 4 or 1 in shape[1:3]:
        return ""
    shapes = [model.operands[i].shape for i in operation.inputs]
    if not operation.type.endswith("POOL_2D") and 1 in (shapes[1] or ())[1:3]:
        return ""
    return (
        f"the model reads it as {show_shape(shape)} with {operation.type}, in two dimensions; it "
        f"looks like a spectrogram of {shape[1]} x {shape[2]} values"
    )


def _holds_grey(bounds: Bounds) -> bool:
    """Whether a range may be that of grey pictures in some usual normalisation."""
    if not bounds.quantized or range_scheme(bounds, 1) is not None:
        return True
    mean = -bounds.low / bounds.width
    usual = STANDARDIZED[0] <= bounds.width <= STANDARDIZED[1] and 0.1 <= mean <= 0.7
    magnitudes = (1.0, 127.0, 255.0) if bounds.symmetric else ()
    return usual or any(abs(bounds.high - m) <= 0.03 * m for m in magnitudes)


def _span(bounds: Bounds) -> str:
    return f"{bounds.low:.3g} to {bounds.high:.3g}"


def _looks(shape: Shape) -> str:
    """What a shape resembles, as the end of a sentence."""
    each = shape[1:] if shape and len(shape) > 1 and shape[0] is None else shape
    long = [d for d in each or () if d != 1]
    if len(long) == 3 and long[-1] in {3, 4}:
        return f"; it looks like a picture of {_size(long[:2])}"
    if len(long) == 3 and long[0] in {3, 4}:
        return f"; it looks like a picture of {_size(long[1:])}"
    if len(long) == 2:
        return f"; it looks like a spectrogram, or a sequence, of {_size(long)} values"
    if len(long) == 1 and long[0] is not None:
        return f"; it looks like {long[0]} values in a row"
    return ""


def _size(sides: Sequence[int | None]) -> str:
    return " x ".join("?" if d is None else str(d) for d in sides)
