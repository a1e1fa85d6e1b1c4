"""Signals, composites and custom operators."""

from __future__ import annotations

import numpy as np

from penstock.driverkit.site import require
from penstock.driverkit.types import one_scale
from penstock.drivers.xnnpack.rules.rule import among, rule, types_of
from penstock.drivers.xnnpack.site import FAITHFUL, Classes, Site
from penstock.ir import DType
from penstock.ir.operations.custom_options import transpose_conv_bias
from penstock.ir.types import static_shape

XNNPACK_ALONE = Classes("faithful", None)
"""Custom operators that LiteRT has no kernel for, and XNNPACK has."""


@rule("RFFT2D")
def check_rfft(site: Site) -> Classes:
    """Of length 1 LiteRT's transform is wrong (docs/differences.md)."""
    among(site.input(), types_of("float32"))
    lengths = site.constant(1, "its length").reshape(-1)
    require(lengths.size == 2 and lengths[1] > 1, "a transform of length 1")
    require(
        all(n > 0 and n & (n - 1) == 0 for n in map(int, lengths)), "a length that is no power of 2"
    )
    return FAITHFUL


@rule("CUSTOM:MaxPoolingWithArgmax2D", "CUSTOM:MaxUnpooling2D", "CUSTOM:Convolution2DTransposeBias")
def check_mediapipe(site: Site) -> Classes:
    """XNNPACK has no transposed convolution whose filter is smaller than its stride."""
    for operand in site.inputs:
        if operand is not None:
            among(operand, types_of("float32"))
            require(static_shape(operand.shape) is not None, "shapes known only when it runs")
    if site.operation.key == "CUSTOM:Convolution2DTransposeBias":
        filters = static_shape(site.input(1).shape) or ()
        options = transpose_conv_bias(site.operation.attributes)
        smaller = filters[1] < options.stride_h or filters[2] < options.stride_w
        require(not smaller, "a filter smaller than its stride")
    return XNNPACK_ALONE


@rule("CUSTOM:TFLite_Detection_PostProcess")
def check_detection(site: Site) -> Classes:
    """LiteRT leaves what lay in memory behind the last detection; the driver clears it, of outputs
    alone.
    """
    among(site.input(), types_of("float32 uint8"))
    outputs = site.operation.outputs
    require(
        all(site.is_output(i) and not site.readers(i) for i in outputs),
        "its detections are read on",
    )
    require(site.input(2).is_constant, "its anchors are known only when it runs")
    for position in range(3):
        require(site.rank(position) in {2, 3}, "operands of another rank")
        if site.input(position).dtype is DType.UINT8:
            one_scale(site.input(position))
    require(np.all(np.isfinite(site.constant(2, "its anchors"))), "anchors that are no numbers")
    return FAITHFUL
