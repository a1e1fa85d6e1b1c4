"""Layers with weights, products, pooling and resizing."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.driverkit.checks import F32, layer_inputs, one_scale
from penstock.driverkit.site import QUANTIZED, Refused, Site, require
from penstock.drivers.xnnpack.hybrid_layers import can_expand
from penstock.drivers.xnnpack.rules.classes import EXACT, EXACT_BUILTIN, FAITHFUL, Classes
from penstock.drivers.xnnpack.rules.rule import among, clamped, rule, same_scale, scales_of
from penstock.ir import DType, Operand

HYBRID: Final = Classes("relaxed", "faithful")
"""Float activations and int8 weights. LiteRT's kernels quantise each row as TFLite does. XNNPACK's
results differ by up to 3 % of the largest result.
"""

HYBRID_OR_EXPANDED: Final = Classes("relaxed", "faithful", "faithful")
"""The same layers, if XNNPACK computes the reference's results in the expanded form."""

SLOW_HYBRID: Final = Classes("faithful", "faithful")
EXPANDED: Final = Classes(None, "faithful", "faithful")
"""Float activations and int8 weights in a layer that XNNPACK leaves to LiteRT's kernels; and the
same layer if XNNPACK computes the expanded form, which takes half the time.
"""


@rule("CONV_2D")
def check_conv(site: Site) -> Classes:
    _check_bias(site)
    classes = _check_layer(site)
    if classes is HYBRID:
        # LiteRT's kernel needs one scale for each filter.
        _scale_for_each(site, 0)
    image, filters = site.input(0).shape, site.input(1).shape
    depths = (image[3], filters[3]) if image and filters else (None, None)
    require(None not in depths, "its channels are not known")
    if depths[0] != depths[1]:
        require(classes is not HYBRID, "float activations with int8 weights in groups")
    return _or_expanded(site, classes)


@rule("DEPTHWISE_CONV_2D")
def check_depthwise(site: Site) -> Classes:
    _check_bias(site)
    require((site.input(1).shape or (None,) * 4)[3] is not None, "its channels are not known")
    classes = _check_layer(site)
    if classes is not HYBRID:
        return classes
    _scale_for_each(site, 3)
    return EXPANDED if can_expand(site) else SLOW_HYBRID


@rule("TRANSPOSE_CONV")
def check_transpose_conv(site: Site) -> Classes:
    site.value(0, "its output shape")
    classes = _check_layer(site)
    require(classes is not HYBRID, "float activations, int8 weights in a transposed convolution")
    return classes


@rule("FULLY_CONNECTED")
def check_fully_connected(site: Site) -> Classes:
    require(len(site.inputs) <= 3, "scales of blocks")
    layout = site.operation.attributes.get("weights_format", "DEFAULT")
    require(layout == "DEFAULT", "weights in another order")
    require(site.rank(1) == 2, "weights that are not a matrix")
    return _or_expanded(site, _check_layer(site))


def _or_expanded(site: Site, classes: Classes) -> Classes:
    return HYBRID_OR_EXPANDED if classes is HYBRID and can_expand(site) else classes


def _check_layer(site: Site) -> Classes:
    """The classes of a layer: float32, with float32 or int8 weights, or quantised."""
    clamped(site)
    data, bias = layer_inputs(site)
    given, matrix = site.input(data), site.input(1)
    among(given, "float32 int8 uint8 int16")
    require(site.output().dtype is given.dtype, "a result of another type")
    if given.dtype is not F32:
        _check_quantized(site, given, data, bias)
        return FAITHFUL
    require(not site.has(bias) or site.input(bias).dtype is F32, "a bias that is not float32")
    if matrix.dtype is F32:
        return FAITHFUL
    among(matrix, "int8", "weights")
    site.value(1, "its quantised weights")
    require(matrix.quantization is not None, "int8 weights without a scale")
    return HYBRID


def _check_quantized(site: Site, given: Operand, data: int, bias: int) -> None:
    matrix = site.input(1)
    expected = DType.UINT8 if given.dtype is DType.UINT8 else DType.INT8
    pair = f"{matrix.dtype.value} weights beside {given.dtype.value} values"
    require(matrix.dtype is expected, pair)
    site.value(1, "its quantised weights")
    quantization = matrix.quantization
    if quantization is None or not all(1e-37 < s < 1e37 for s in quantization.scales):
        raise Refused("quantised weights without a scale")
    bare = expected is not DType.INT8 or not any(quantization.zero_points)
    require(bare, "int8 weights with a zero point")
    for _, zero in scales_of(site, [data]):
        require(given.dtype in QUANTIZED or zero == 0, "int16 values with a zero point")
    if site.has(bias):
        site.value(bias, "its quantised bias")
        wide = given.dtype is DType.INT16
        among(site.input(bias), "int32 int64" if wide else "int32", "biases")
        if wide and site.input(bias).dtype is DType.INT32:
            named = site.attributes.get("quantized_bias_type") == "INT32"
            require(named, "an int32 bias that its options do not name")


def _check_bias(site: Site) -> None:
    """Checks that a bias exists, or can be added: LiteRT's kernels need one."""
    if not site.has(2):
        require(site.input().dtype is not DType.INT16, "int16 values without a bias")
        require((site.input(1).shape or (None,))[0] is not None, "its channels are not known")


def _scale_for_each(site: Site, dimension: int) -> None:
    quantization, shape = site.input(1).quantization, site.input(1).shape
    count = None if shape is None else shape[dimension]
    scales = 0 if quantization is None else len(quantization.scales)
    require(scales == count, "int8 weights without a scale for each channel")


@rule("BATCH_MATMUL")
def check_batch_matmul(site: Site) -> Classes:
    first, second = site.input(0), site.input(1)
    among(first, "float32 int8 int16")
    require(max(site.rank(0), site.rank(1)) <= 5, "operands of more than 5 dimensions")
    require(min(site.rank(0), site.rank(1)) >= 2, "operands that are not matrices")
    if first.dtype is F32:
        require(second.dtype is F32, "float values by int8 values")
        return FAITHFUL
    require(second.dtype in {first.dtype, DType.INT8}, "operands of two types")
    require(site.output().dtype is first.dtype, "a result of another type")
    positions = [0, 1]
    if first.dtype is DType.INT16 and second.is_constant and second.quantization is not None:
        bare = not any(second.quantization.zero_points)
        require(bare, "int16 values by others with a zero point")
        positions = [0]
    for _, zero in scales_of(site, positions):
        require(first.dtype is DType.INT8 or zero == 0, "int16 values with a zero point")
    return FAITHFUL if first.dtype is DType.INT8 else EXACT


@rule("AVERAGE_POOL_2D", "MAX_POOL_2D")
def check_pool(site: Site) -> Classes:
    first = site.input()
    among(first, "float32 int8 uint8 int16")
    clamped(site)
    if first.dtype is F32:
        return EXACT if site.operation.type == "MAX_POOL_2D" else FAITHFUL
    same_scale(first, site.output())
    one_scale(first)
    return EXACT_BUILTIN


@rule("L2_POOL_2D")
def check_l2_pool(site: Site) -> Classes:
    among(site.input(), "float32")
    clamped(site)
    return FAITHFUL


@rule("RESIZE_BILINEAR")
def check_bilinear(site: Site) -> Classes:
    first = site.input()
    among(first, "float32 int8 uint8")
    size = site.value(1, "its size")
    require(size.size == 2 and np.all(size > 0), "its size")
    if first.dtype is F32:
        return FAITHFUL
    same_scale(first, site.output())
    one_scale(first)
    return FAITHFUL
