"""Rows of custom operators, and the row of vendors' extensions.

A row named `CUSTOM:<code>` stands for an operator that LiteRT runs without further registration:
TFLite's own, MediaPipe's three, and the attention of XNNPACK. EXTENSION stands for the operations
of NNAPI's vendors, which only their drivers compute (NNAPI section 8.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operand import EXTENSION, Operand, code_fault, name_fault
from penstock.ir.operation import Attributes, Operation
from penstock.ir.operations import rules
from penstock.ir.operations.custom_options import (
    audio_spectrogram,
    detection_post_process,
    dot_product_attention,
    hadamard_size,
    mfcc,
    numeric_verify,
    transpose_conv_bias,
    windowed_pool,
)
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import (
    AttributeSpec,
    OperationSpec,
    Requirement,
    ShapeContext,
    ShapeRule,
)
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
    boxes, scores = rules.ranked(context, 0, 3), rules.ranked(context, 1, 3)
    anchors = rules.ranked(context, 2, 2)
    rules.agree(rules.dimension(boxes, 0), 1, "number of images")
    places = rules.agree(rules.dimension(boxes, 1), rules.dimension(scores, 1), "boxes and scores")
    known = rules.dimension(anchors, 0)
    if known is not None and places is not None and known < places:
        raise ShapeMismatch(f"{places} boxes and {known} anchors; there is one a box, or more")
    options = detection_post_process(context.attributes)
    count = rules.bounded(options.max_detections * options.max_classes_per_detection)
    return rules.fill(context, (1, count, 4), (1, count), (1, count), (1,))


def _transposed(
    size: rules.Dimension, extent: rules.Dimension, stride: int, padding: str
) -> rules.Dimension:
    if size is None or extent is None:
        return None
    cut = max(extent - (size - 1) % stride - 1, 0) if padding == "SAME" else 0
    return rules.bounded(stride * (size - 1) + extent - cut)


def _transpose_conv(context: ShapeContext) -> Sequence[Shape]:
    image, filters = rules.ranked(context, 0, 4), rules.ranked(context, 1, 4)
    rules.agree(rules.dimension(image, 3), rules.dimension(filters, 3), "input and filter channels")
    outputs = rules.agree(
        rules.dimension(filters, 0),
        rules.dimension(rules.ranked(context, 2, 1), 0),
        "filters and bias length",
    )
    options = transpose_conv_bias(context.attributes)
    height = _transposed(
        rules.dimension(image, 1), rules.dimension(filters, 1), options.stride_h, options.padding
    )
    width = _transposed(
        rules.dimension(image, 2), rules.dimension(filters, 2), options.stride_w, options.padding
    )
    return ((rules.dimension(image, 0), height, width, outputs),)


def _pool_argmax(context: ShapeContext) -> Sequence[Shape]:
    image, options = rules.ranked(context, 0, 4), windowed_pool(context.attributes)
    height = rules.window(
        rules.dimension(image, 1), options.filter_height, options.stride_h, 1, options.padding
    )
    width = rules.window(
        rules.dimension(image, 2), options.filter_width, options.stride_w, 1, options.padding
    )
    return rules.fill(
        context, *[(rules.dimension(image, 0), height, width, rules.dimension(image, 3))] * 2
    )


def _unpool(context: ShapeContext) -> Sequence[Shape]:
    image = rules.agree_shapes(
        rules.ranked(context, 0, 4), rules.ranked(context, 1, 4), "values and indices"
    )
    options = windowed_pool(context.attributes)
    if image is None:
        return ((None,) * 4,)
    batch, height, width, channels = image
    height, width = (
        None if size is None else rules.bounded(size * extent)
        for size, extent in ((height, options.filter_height), (width, options.filter_width))
    )
    return ((batch, height, width, channels),)


def _spectrogram(context: ShapeContext) -> Sequence[Shape]:
    """Samples [time, channels] to power [channels, frames, frequencies]."""
    shape, options = rules.ranked(context, 0, 2), audio_spectrogram(context.attributes)
    frames = rules.positions(rules.dimension(shape, 0), options.window_size, options.stride)
    return ((rules.dimension(shape, 1), frames, options.fft_length // 2 + 1),)


def _mfcc(context: ShapeContext) -> Sequence[Shape]:
    shape, options = rules.ranked(context, 0, 3), mfcc(context.attributes)
    return ((rules.dimension(shape, 0), rules.dimension(shape, 1), options.dct_coefficient_count),)


def _attention(context: ShapeContext) -> Sequence[Shape]:
    """Query [batch, queries, heads, size], key and value [batch, keys, heads or a divisor,
    size].
    """
    query, key, value = (rules.ranked(context, i, 4) for i in range(3))
    rules.agree_shapes(key, value, "key and value")
    for axis, what in ((0, "batches"), (3, "size of a head")):
        rules.agree(rules.dimension(query, axis), rules.dimension(key, axis), what)
    heads, shared = rules.dimension(query, 2), rules.dimension(key, 2)
    if heads is not None and shared is not None and (shared == 0 or heads % shared):
        raise ShapeMismatch(f"{shared} heads of keys cannot serve {heads} heads")
    return (query,)


def _custom(
    code: str, signature: str, infer: ShapeRule, parse: Callable[[Attributes], object], doc: str
) -> OperationSpec:
    return row(
        f"CUSTOM:{code}",
        signature,
        infer,
        (CODE, OPTIONS),
        require=readable(parse),
        vocabulary="custom",
        doc=doc,
    )


CODE: Final = AttributeSpec("custom_code", "str", "")
OPTIONS: Final = AttributeSpec("custom_options", "bytes", b"")


def _require_name(operation: Operation, *_: Sequence[Operand]) -> None:
    """The attributes name an operation. Its operands are defined by its vendor."""
    attributes = operation.attributes
    fault = name_fault(attributes.text("extension")) or code_fault(
        attributes.integer("code"), "the number of an extension's operation"
    )
    if fault:
        raise InvalidAttribute(fault)


ROWS: Final = (
    row(
        "CUSTOM",
        "inputs...: any -> results...: any",
        rules.declared,
        (CODE, OPTIONS),
        vocabulary="custom",
        doc="An operator outside the vocabulary, by name; shapes are those the model declares.",
    ),
    _custom(
        "TFLite_Detection_PostProcess",
        "boxes: activation, scores: activation, anchors: activation -> "
        "detection_boxes: float32, detection_classes: float32, detection_scores: float32, "
        "detection_count: float32",
        _detections,
        detection_post_process,
        "Anchor boxes of one image decoded and suppressed to the best detections.",
    ),
    _custom(
        "Convolution2DTransposeBias",
        "input: float, filter: float, bias: float -> output: float",
        _transpose_conv,
        transpose_conv_bias,
        "TRANSPOSE_CONV with a bias, its output's shape derived from the input's (MediaPipe).",
    ),
    _custom(
        "MaxPoolingWithArgmax2D",
        "input: float32 -> output: float32, indices: float32",
        _pool_argmax,
        windowed_pool,
        "The maximum of each window and, as a float, its place in the window, row by row "
        "(MediaPipe).",
    ),
    _custom(
        "MaxUnpooling2D",
        "input: float32, indices: float32 -> output: float32",
        _unpool,
        windowed_pool,
        "Zeros with each input element at the place in its window that the indices say "
        "(MediaPipe).",
    ),
    _custom(
        "AudioSpectrogram",
        "samples: float32 -> spectrogram: float32",
        _spectrogram,
        audio_spectrogram,
        "The magnitudes, or their squares, of the windowed Fourier transforms of sound.",
    ),
    _custom(
        "Mfcc",
        "spectrogram: float32, sample_rate: int32 -> coefficients: float32",
        _mfcc,
        mfcc,
        "Mel-frequency cepstral coefficients of a squared spectrogram.",
    ),
    _custom(
        "NumericVerify",
        "quantized: quant|float16, reference: float32 -> difference?: float32",
        rules.like(0),
        numeric_verify,
        "The dequantised input less a float reference, for debugging a quantised model.",
    ),
    _custom(
        "aeq.hadamard_rotation",
        "input: float32 -> output: float32",
        rules.like(0),
        hadamard_size,
        "Groups of elements, as many as a power of two, turned by the normalised Hadamard matrix "
        "of that size.",
    ),
    _custom(
        "odml.scaled_dot_product_attention",
        "query: float32, key: float32, value: float32, mask?: float32 -> output: float32",
        _attention,
        dot_product_attention,
        "Values averaged by the softmax of scaled, capped and masked products of queries and keys "
        "(XNNPACK).",
    ),
    row(
        EXTENSION,
        "inputs...?: any -> results...: any",
        rules.declared,
        (AttributeSpec("extension", "str"), AttributeSpec("code", "int")),
        require=_require_name,
        vocabulary="extension",
        level=3,
        doc="Operation *code* of the vendor's extension of that name; shapes are those the model "
        "declares.",
    ),
)
