"""Checks that the rules of any engine share: types, scales, axes, bounds, windows, layers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from penstock.driverkit.site import ACTIVATION, QUANTIZED, Refused, Site, require
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray, Operand, Quantization
from penstock.ir.operations.custom_options import transpose_conv_bias

F32: Final = DType.FLOAT32

CLAMPS: Final = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}
ACTIVATIONS: Final = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
"""The fused activations that engines support."""

LEAST_SCALE: Final = 1e-9
GREATEST_SCALE: Final = 1e4
"""The range of scales in real networks, with a margin. Beyond it kernels overflow or crash."""

GREATEST_RATIO: Final = 2.0**20
"""Greatest ratio of input scale to output scale. Up to it, products of 8-bit values fit in 32 bits.
"""


def one_scale(operand: Operand) -> tuple[float, int]:
    """Scale and zero point of an activation quantised per tensor. Refuses any other operand."""
    quantization = operand.quantization
    if quantization is None:
        raise Refused(f"{operand.dtype.value} values without a scale are not computed here")
    require(not quantization.per_channel, "activations quantised by channel are not computed here")
    is_usual = LEAST_SCALE <= quantization.scale <= GREATEST_SCALE
    require(is_usual, f"values of the scale {quantization.scale:g}, which no network has")
    return quantization.scale, quantization.zero_point


SHARES: Final = {
    DType.INT8: (1 / 256, -128),
    DType.UINT8: (1 / 256, 0),
    DType.INT16: (1 / 32768, 0),
}
"""The scale and zero point that TFLite's SOFTMAX assumes for its quantised output, by element type.
"""


def require_shares(output: Operand) -> None:
    """Refuses a quantised SOFTMAX whose output has another scale or zero point than `SHARES`."""
    expected = one_scale(output) == SHARES.get(output.dtype)
    require(expected, "shares that are not in the scale TFLite has for them")


def _check_multiplier(given: Sequence[Operand], made: Sequence[Operand]) -> None:
    """Refuses scales so far apart that TFLite's fixed-point arithmetic overflows. Engines do not
    overflow there, so their results would differ.
    """
    scales = [one_scale(o)[0] for o in given]
    greatest = max([math.prod(scales), *scales])
    for operand in made:
        ratio = greatest / one_scale(operand)[0]
        require(ratio < GREATEST_RATIO, "scales so far apart that TFLite's arithmetic overflows")


def weight_scales(site: Site) -> NDArray:
    """The scales of the filter at input 1: one scale, or one for each channel. float32."""
    quantization = site.input(1).quantization
    return np.array(quantization.scales if quantization else (1.0,), np.float32)


def filter_scales(
    quantization: Quantization, channels: Sequence[int], rank: int
) -> tuple[NDArray, NDArray]:
    """Scales and zero points, float32, that broadcast over a filter of *rank* dimensions, in which
    the scales of several channels have the shape *channels*.
    """
    places = tuple(channels) if quantization.per_channel else (1,) * rank
    pair = (quantization.scales, quantization.zero_points)
    scales, zeros = (np.array(values, np.float32).reshape(places) for values in pair)
    return scales, zeros


def layer_inputs(site: Site) -> tuple[int, int]:
    """The positions of a layer's image and bias. Its filter is input 1."""
    return (2, 3) if site.operation.type == "TRANSPOSE_CONV" else (0, 2)


def product_scales(site: Site) -> NDArray:
    """The scales of a layer's sums and integer bias: its image's scale times its filter's."""
    data, _ = layer_inputs(site)
    return weight_scales(site) * np.float32(one_scale(site.input(data))[0])


def activation(site: Site, known: Iterable[str] = ACTIVATIONS) -> str:
    """The fused activation, which must be one of *known*."""
    fused = site.attributes.text("fused_activation_function")
    require(fused in known, f"no fused activation {fused}")
    return fused


def activations(
    site: Site, positions: Collection[int] | None = None, quantized: AccuracyClass = "stepwise"
) -> AccuracyClass:
    """The accuracy class of an operation whose inputs at *positions* (None: all) and outputs are
    all float32, or all quantised in 8 bits per tensor.

    Float32 is faithful. Quantised operations are of the class *quantized*. It is stepwise if the
    engine rounds more than single values differently, because such steps add up through a network.
    """
    given = site.inputs if positions is None else [site.input(p) for p in positions]
    operands = [o for o in (*given, *site.outputs) if o is not None]
    if all(o.dtype is F32 for o in operands):
        return "faithful"
    if any(o.dtype not in QUANTIZED for o in operands):
        families = frozenset({F32}), QUANTIZED
        fitting = [family for family in families if site.output().dtype in family] or families
        site.refuse_types(frozenset().union(*fitting), positions)
    _check_multiplier([o for o in given if o is not None], site.outputs)
    return quantized


def numbers(
    site: Site, whole: Collection[DType], quantized: AccuracyClass = "stepwise"
) -> AccuracyClass:
    """As `activations`, for all operands. Exact if every operand has one of the types *whole*."""
    operands = [o for o in (*site.inputs, *site.outputs) if o is not None]
    if len({o.dtype for o in operands}) == 1 and operands[0].dtype in whole:
        return "exact"
    made = site.output().dtype
    if made in whole and made is not F32 and made not in QUANTIZED:
        site.refuse_types({made})
    return activations(site, quantized=quantized)


FLOAT_ONLY: Final = frozenset(
    {"NEG", "SQUARE", "LOG", "SIN", "COS", "SIGN", "FLOOR", "CEIL", "ROUND", "POW", "GELU"}
)
"""Operations that engines compute on float32 alone, apart from integers."""


def check_pair(site: Site, whole: Collection[DType]) -> None:
    """Refuses two operands of unknown shapes or wrong types, and fused activations of *whole*."""
    site.shapes()
    if site.operation.type in FLOAT_ONLY:
        require_float(site)
    if ACTIVATION in site.attributes:
        fused = activation(site)
        is_plain = fused == "NONE" or site.input().dtype not in whole
        require(is_plain, "whole numbers with a fused activation")


LEAST_LENGTH: Final = 1e-6
"""The least divisor of L2_NORMALIZATION."""


def require_float(site: Site, what: str = "only float32 values are computed here") -> None:
    """Refuses an operation whose input 0 is not float32."""
    require(site.input().dtype is F32, what)


def check_logic(site: Site) -> AccuracyClass:
    """The accuracy class of an operation on booleans."""
    for position, _ in enumerate(site.shapes()):
        require(site.input(position).dtype is DType.BOOL, "only truth values are combined here")
    return "exact"


def check_softmax(site: Site) -> AccuracyClass:
    """The accuracy class of a SOFTMAX. A quantised result must have TFLite's scale (`SHARES`)."""
    require(len(site.shape()) >= 1, "a scalar has no axis")
    if site.is_quantized:
        require_shares(site.output())
    return activations(site, quantized="faithful")


def check_prelu(site: Site) -> AccuracyClass:
    """The accuracy class of a PRELU, whose slope must be constant."""
    site.shapes(), site.value(1, "alpha")
    return activations(site)


def check_shape(site: Site, given: Collection[DType], made: Collection[DType]) -> AccuracyClass:
    """The accuracy class of a SHAPE of an operand of a type *given*, as one of the types *made*."""
    site.shape()
    if site.input().dtype not in given:
        site.refuse_types()
    require(site.output().dtype in made, "a shape of another type")
    return "exact"


def check_bilinear(site: Site) -> AccuracyClass:
    """The accuracy class of a RESIZE_BILINEAR."""
    require_resizable(site)
    return activations(site, [0])


def require_choice(site: Site) -> None:
    """Refuses a SELECT that broadcasts. A condition vector that selects whole rows is accepted."""
    shapes = site.shapes()
    site.output_shape()
    if site.operation.type == "SELECT":
        vector = len(shapes[0]) == 1 and len(shapes[1]) > 1
        require(vector or shapes[0] == shapes[1] == shapes[2], "a choice that broadcasts")


def reduced_axes(site: Site) -> list[int]:
    """The constant axes of a reduction: sorted, unique, not negative."""
    rank = len(site.shape())
    axes = [a + rank if a < 0 else a for a in site.integers(1, "its axes")]
    require(all(0 <= a < rank for a in axes), f"axes {axes} of {rank} dimensions")
    return sorted(set(axes))


def require_rows(site: Site) -> None:
    """Refuses a FULLY_CONNECTED unless its shapes are known, its weights plain [units, depth]."""
    attributes = site.attributes
    require(attributes.text("weights_format") == "DEFAULT", "shuffled weights are not read")
    require(not site.has(3) and len(site.outputs) == 1, "weights scaled by blocks are not read")
    site.shape(), site.output_shape()
    require(len(site.shape(1)) == 2, "weights of another rank than 2")


def check_layer(site: Site, quantized: AccuracyClass) -> AccuracyClass:
    """The accuracy class of a CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV or FULLY_CONNECTED.

    Three kinds are supported. All float32. 8-bit data with constant 8-bit weights and a constant
    int32 bias: the class is *quantized*. Float32 data with constant 8-bit weights: TFLite quantises
    the data at run time, and engines do not.
    """
    known = {"TRANSPOSE_CONV": check_transposed, "FULLY_CONNECTED": require_rows}
    known.get(site.operation.type, conv_windows)(site)
    activation(site)
    data, bias = layer_inputs(site)
    weights = site.input(1)
    accuracy = activations(site, [data], quantized)
    is_quantized = site.input(data).dtype is not F32
    if not is_quantized:
        is_real = not site.has(bias) or site.input(bias).dtype is F32
        require(is_real, "a bias that is not float32")
        if weights.dtype is F32:
            return accuracy
    site.value(1, "its quantised filter")
    if weights.dtype not in QUANTIZED:
        site.refuse_types()
    if weights.quantization is None:
        raise Refused("quantised weights without a scale")
    count = len(weights.quantization.scales)
    require(count in {1, site.output_shape()[-1]}, f"{count} scales of weights")
    if is_quantized and site.has(bias):
        site.value(bias, "its quantised bias")
        require(site.input(bias).dtype is DType.INT32, "a bias that is not int32")
    return accuracy if is_quantized else "relaxed"


def check_transposed(site: Site) -> None:
    """Refuses a TRANSPOSE_CONV whose filter does not fit its image."""
    site.integers(0, "its output shape")
    windows(site, site.output_shape()[1:3], site.shape(1)[1:3])
    require(site.shape(1)[3] == site.shape(2)[3], "filter and image of different channels")


def require_floats(site: Site) -> None:
    """Refuses an operation with an operand that is not float32."""
    require(all(o.dtype is F32 for o in (*site.inputs, *site.outputs) if o), "only float32")


def check_l2(site: Site) -> AccuracyClass:
    """The accuracy class of an L2_NORMALIZATION."""
    require(len(site.shape()) >= 1, "a scalar has no axis")
    activation(site, ["NONE"])
    require_float(site)
    return "faithful"


def check_local(site: Site) -> AccuracyClass:
    """The accuracy class of a LOCAL_RESPONSE_NORMALIZATION."""
    require(len(site.shape()) == 4, "an image of another rank")
    require(site.attributes.integer("radius") >= 0, "a negative radius")
    require_float(site)
    return "faithful"


def axis_of(axis: int, rank: int) -> int:
    """*axis* of *rank* dimensions, as a number from 0."""
    require(-rank <= axis < rank, f"axis {axis} of {rank} dimensions")
    return axis % rank


def one_axis(site: Site, position: int = 1, data: int = 0) -> int:
    """The constant axis at input *position*, one axis of input *data*, as a number from 0."""
    axes = site.integers(position, "its axis")
    require(len(axes) == 1, f"{len(axes)} axes")
    return axis_of(axes[0], len(site.shape(data)))


def require_resizable(site: Site) -> None:
    """Refuses a resize of unknown shape, or with a coordinate mode that TFLite does not have."""
    attributes = site.attributes
    site.shape()
    both = attributes.flag("align_corners") and attributes.flag("half_pixel_centers")
    require(not both, "corners aligned and pixel centres halved at once")
    require(min(site.integers(1, "its size")) >= 1, "a picture of no size")


def coordinates(site: Site) -> str:
    """The coordinate transformation of a resize, by the name that both ONNX and OpenVINO use."""
    attributes = site.attributes
    if attributes.flag("align_corners"):
        return "align_corners"
    return "half_pixel" if attributes.flag("half_pixel_centers") else "asymmetric"


def nearest_positions(site: Site) -> list[NDArray]:
    """The rows and the columns that a RESIZE_NEAREST_NEIGHBOR reads for its result: int64."""
    align, half = (site.attributes.flag(f) for f in ("align_corners", "half_pixel_centers"))
    found: list[NDArray] = []
    for size, out in zip(site.shape()[1:3], site.integers(1, "its size"), strict=True):
        scale = np.float32(size) / np.float32(out)
        if align and out > 1:
            scale = np.float32(size - 1) / np.float32(out - 1)
        at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
        # TFLite rounds halves away from zero; positions are not negative.
        whole = np.floor(at + np.float32(0.5)) if align else np.floor(at)
        found.append(np.minimum(whole.astype(np.int64), size - 1))
    return found


class Windows(msgspec.Struct, frozen=True):
    """Extents, strides, dilations and padding of windows over height and width."""

    extents: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]


def windows(site: Site, sizes: Sequence[int], extents: Sequence[int], axes: str = "hw") -> Windows:
    """The windows of *extents* over an image of *sizes* (height, width), by the attributes of
    *site*.

    SAME pads to ceil(size / stride) positions, the odd element at the end; VALID does not pad
    (NNAPI section 8.1).
    """
    attributes = site.attributes
    fits = len(sizes) == len(extents) == len(axes)
    require(fits, "an image or a window whose shape lacks an axis that the window slides along")
    strides = [attributes.integer(f"stride_{a}") for a in axes]
    dilations = [int(str(attributes.get(f"dilation_{a}_factor", 1))) for a in axes]
    least = min(*strides, *dilations, *extents)
    require(least >= 1, "a window of no size, or one that stands still")
    same = attributes.text("padding") == "SAME"
    before, after = [], []
    for size, extent, stride, dilation in zip(sizes, extents, strides, dilations, strict=True):
        reach = (extent - 1) * dilation + 1
        total = max(0, (-(-size // stride) - 1) * stride + reach - size) if same else 0
        before.append(total // 2)
        after.append(total - total // 2)
        require(size + total >= reach, "a window larger than the image")
    return Windows(list(extents), strides, dilations, before, after)


def conv_windows(site: Site) -> Windows:
    """The windows of the filter [_, height, width, _] at input 1 over the image at input 0."""
    return windows(site, site.shape()[1:3], site.shape(1)[1:3])


def pool_windows(site: Site) -> Windows:
    """The windows of a pool."""
    extents = [site.attributes.integer(f"filter_{side}") for side in ("height", "width")]
    return windows(site, site.shape()[1:3], extents)


def transposed_windows(site: Site) -> tuple[Windows, list[int]]:
    """The windows of a TRANSPOSE_CONV of the image at input 2 and the filter [out, height, width,
    in] at input 1, and the output padding.
    """
    output = site.output_shape()[1:3]
    w = windows(site, output, site.shape(1)[1:3])
    sides = zip(_spread(site, 2, w.strides), w.before, output, strict=True)
    behind = [spread - before - size for spread, before, size in sides]
    after, beyond = [max(0, n) for n in behind], [max(0, -n) for n in behind]
    return Windows(w.extents, w.strides, [1, 1], w.before, after), beyond


def _spread(site: Site, data: int, strides: Sequence[int]) -> list[int]:
    """Height and width that the filter at input 1 reaches, spread from the image at *data*."""
    sides = zip(site.shape(data)[1:3], site.shape(1)[1:3], strides, strict=True)
    return [(size - 1) * stride + extent for size, extent, stride in sides]


def cut_windows(site: Site) -> Windows:
    """The windows of MediaPipe's Convolution2DTransposeBias, which crops its output."""
    options, output = transpose_conv_bias(site.attributes), site.output_shape()[1:3]
    strides = [options.stride_h, options.stride_w]
    cut = [a - b for a, b in zip(_spread(site, 0, strides), output, strict=True)]
    before, after = [n // 2 for n in cut], [n - n // 2 for n in cut]
    return Windows(list(site.shape(1)[1:3]), strides, [1, 1], before, after)
