"""Rows of custom operators, and the row of vendors' extensions.

A row named `CUSTOM:<code>` stands for an operator that LiteRT runs without further registration:
TFLite's own, MediaPipe's three, and the attention of XNNPACK. EXTENSION stands for the operations
of NNAPI's vendors, which only their drivers compute (NNAPI section 8.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operand import Operand, code_fault, name_fault
from penstock.ir.operation import Attributes, Operation
from penstock.ir.operations import custom_options as options, rules
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import Requirement, ShapeContext
from penstock.ir.types import Shape


def readable(parse: Callable[[Attributes], object]) -> Requirement:
    """The requirement that *parse* accepts the options."""

    def require(operation: Operation, *_: Sequence[Operand]) -> None:
        parse(operation.attributes)

    return require


def _detections(context: ShapeContext) -> Sequence[Shape]:
    """The batch is one image. The outputs have room for the greatest number of detections, times
    the number of best classes of each.
    """
    (batch, boxes, _), (_, scores, _) = (rules.dimensions(context, i, 3) for i in (0, 1))
    anchors, _ = rules.dimensions(context, 2, 2)
    rules.agree(batch, 1, "number of images")
    count = rules.agree(boxes, scores, "boxes and scores")
    if anchors is not None and count is not None and anchors < count:
        raise ShapeMismatch(f"{count} boxes and {anchors} anchors; there is one a box, or more")
    given = options.detection_post_process(context.attributes)
    most = rules.bounded(given.max_detections * given.max_classes_per_detection)
    return rules.fill(context, (1, most, 4), (1, most), (1, most), (1,))


def _transposed(
    size: rules.Dimension, extent: rules.Dimension, stride: int, padding: str
) -> rules.Dimension:
    if size is None or extent is None:
        return None
    cut = max(extent - (size - 1) % stride - 1, 0) if padding == "SAME" else 0
    return rules.bounded(stride * (size - 1) + extent - cut)


def _transpose_conv(context: ShapeContext) -> Sequence[Shape]:
    batch, height, width, channels = rules.dimensions(context, 0, 4)
    outputs, rows, columns, depth = rules.dimensions(context, 1, 4)
    rules.agree(channels, depth, "input and filter channels")
    outputs = rules.agree(outputs, rules.vector(context, 2), "filters and bias length")
    given = options.transpose_conv_bias(context.attributes)
    height = _transposed(height, rows, given.stride_h, given.padding)
    return ((batch, height, _transposed(width, columns, given.stride_w, given.padding), outputs),)


def _pool_argmax(context: ShapeContext) -> Sequence[Shape]:
    batch, height, width, channels = rules.dimensions(context, 0, 4)
    given = options.windowed_pool(context.attributes)
    height = rules.window(height, given.filter_height, given.stride_h, 1, given.padding)
    width = rules.window(width, given.filter_width, given.stride_w, 1, given.padding)
    return rules.fill(context, *[(batch, height, width, channels)] * 2)


def _unpool(context: ShapeContext) -> Sequence[Shape]:
    values, indices = (rules.dimensions(context, i, 4) for i in (0, 1))
    batch, height, width, channels = (
        rules.agree(a, b, "values and indices") for a, b in zip(values, indices, strict=True)
    )
    given = options.windowed_pool(context.attributes)
    size = rules.scaled(height, given.filter_height), rules.scaled(width, given.filter_width)
    return ((batch, *size, channels),)


def _spectrogram(context: ShapeContext) -> Sequence[Shape]:
    """Samples [time, channels] to power [channels, frames, frequencies]."""
    time, channels = rules.dimensions(context, 0, 2)
    given = options.audio_spectrogram(context.attributes)
    frames = rules.positions(time, given.window_size, given.stride)
    return ((channels, frames, given.fft_length // 2 + 1),)


def _mfcc(context: ShapeContext) -> Sequence[Shape]:
    channels, frames, _ = rules.dimensions(context, 0, 3)
    return ((channels, frames, options.mfcc(context.attributes).dct_coefficient_count),)


def _attention(context: ShapeContext) -> Sequence[Shape]:
    """Query [batch, queries, heads, size], key and value [batch, keys, heads or a divisor,
    size].
    """
    query, key, value = (rules.ranked(context, i, 4) for i in range(3))
    rules.agree_shapes(key, value, "key and value")
    for axis, what in ((0, "batches"), (3, "size of a head")):
        rules.agree(rules.dimension(query, axis), rules.dimension(key, axis), what)
    heads, shared = rules.dimension(query, 2), rules.dimension(key, 2)
    rules.quotient(heads, shared, "heads of the query", "the keys'")
    return (query,)


def _require_name(operation: Operation, *_: Sequence[Operand]) -> None:
    """The attributes name an operation. Its operands are defined by its vendor."""
    attributes = operation.attributes
    fault = name_fault(attributes.text("extension")) or code_fault(
        attributes.integer("code"), "the number of an extension's operation"
    )
    if fault:
        raise InvalidAttribute(fault)


ROWS: Final = (
    row("""CUSTOM(inputs...: any; custom_code, custom_options) -> results...: any
        # An operator outside the vocabulary, by name; shapes are those the model declares.
        """)(rules.declared),
    row("""CUSTOM:TFLite_Detection_PostProcess(boxes: activation, scores: activation,
        anchors: activation; custom_code, custom_options) -> detection_boxes: float32,
        detection_classes: float32, detection_scores: float32, detection_count: float32
        # Anchor boxes of one image decoded and suppressed to the best detections.
        """)(_detections, require=readable(options.detection_post_process)),
    row("""CUSTOM:Convolution2DTransposeBias(input: float, filter: float, bias: float; custom_code,
        custom_options) -> output: float
        # TRANSPOSE_CONV with a bias, its output's shape derived from the input's (MediaPipe).
        """)(_transpose_conv, require=readable(options.transpose_conv_bias)),
    row("""CUSTOM:MaxPoolingWithArgmax2D(input: float32; custom_code, custom_options)
        -> output: float32, indices: float32
        # The maximum of each window and, as a float, its place in the window, row by row
        (MediaPipe).""")(_pool_argmax, require=readable(options.windowed_pool)),
    row("""CUSTOM:MaxUnpooling2D(input: float32, indices: float32; custom_code, custom_options)
        -> output: float32
        # Zeros with each input element at the place in its window that the indices say (MediaPipe).
        """)(_unpool, require=readable(options.windowed_pool)),
    row("""CUSTOM:AudioSpectrogram(samples: float32; custom_code, custom_options)
        -> spectrogram: float32
        # The magnitudes, or their squares, of the windowed Fourier transforms of sound.
        """)(_spectrogram, require=readable(options.audio_spectrogram)),
    row("""CUSTOM:Mfcc(spectrogram: float32, sample_rate: int32; custom_code, custom_options)
        -> coefficients: float32
        # Mel-frequency cepstral coefficients of a squared spectrogram.
        """)(_mfcc, require=readable(options.mfcc)),
    row("""CUSTOM:NumericVerify(quantized: quant|float16, reference: float32; custom_code,
        custom_options) -> difference?: float32
        # The dequantised input less a float reference, for debugging a quantised model.
        """)(rules.like(0), require=readable(options.numeric_verify)),
    row("""CUSTOM:aeq.hadamard_rotation(input: float32; custom_code, custom_options)
        -> output: float32
        # Groups of elements, as many as a power of two, turned by the normalised Hadamard matrix of
        that size.""")(rules.like(0), require=readable(options.hadamard_size)),
    row("""CUSTOM:odml.scaled_dot_product_attention(query: float32, key: float32, value: float32,
        mask?: float32; custom_code, custom_options) -> output: float32
        # Values averaged by the softmax of scaled, capped and masked products of queries and keys
        (XNNPACK).""")(_attention, require=readable(options.dot_product_attention)),
    row("""EXTENSION(inputs...?: any; extension: str!, code: int!) -> results...: any; NNAPI 3
        # Operation *code* of the vendor's extension of that name; shapes are those the model
        declares.""")(rules.declared, require=_require_name),
)
