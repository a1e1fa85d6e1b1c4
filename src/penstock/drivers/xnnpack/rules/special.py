"""Recurrent operations with their state as inputs and outputs; transforms; custom operators."""

from __future__ import annotations

import numpy as np

from penstock.driverkit.checks import one_scale
from penstock.driverkit.site import Site, require
from penstock.drivers.xnnpack.rules.classes import EXACT, FAITHFUL, Classes
from penstock.drivers.xnnpack.rules.rule import among, rule
from penstock.export.tflite.fields import state_positions
from penstock.ir import DType
from penstock.ir.operations.custom_options import transpose_conv_bias
from penstock.ir.types import static_shape


@rule("SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM")
def check_recurrent(site: Site) -> Classes:
    """LiteRT stores the state in the operation. The driver can write it before a run and read it
    after the run, if no other operation of the partition uses it.
    """
    operation = site.operation
    positions = state_positions(operation.type, operation.attributes)
    require(operation.attributes.get("kernel_type", "FULL") == "FULL", "the older form of LSTM")
    made = operation.outputs[1:]
    require(len(made) == len(positions), "its new state is not complete")
    for position, output in zip(positions, made, strict=True):
        require(position < len(operation.inputs), "its state is omitted")
        index = operation.inputs[position]
        alone = index in site.around.inputs and site.around.readers[index] == 1
        require(alone, "its state is computed or read by another operation")
        kept = output in site.around.outputs and index not in site.around.outputs
        unread = kept and site.around.readers[output] == 0
        require(unread, "its new state is read by another operation")
    first = site.input()
    among(first, "float32 int8")
    require(site.output().dtype is first.dtype, "a result of another type")
    for position, state in zip(positions, site.outputs[1:], strict=True):
        require(site.input(position).dtype is state.dtype, "new state of another type")
    weights = site.input(1) if site.has(1) else site.input(2)
    if first.dtype is DType.FLOAT32:
        among(weights, "float32", "weights")
        return FAITHFUL
    among(weights, "int8", "weights")
    return EXACT if operation.type == "SVDF" else FAITHFUL


XNNPACK_ALONE = Classes("faithful", None)
"""Custom operators that XNNPACK has a kernel for and LiteRT does not."""


@rule("RFFT2D")
def check_rfft(site: Site) -> Classes:
    """LiteRT's transform of length 1 is wrong (docs/differences.md)."""
    among(site.input(), "float32")
    lengths = site.value(1, "its length").reshape(-1)
    require(lengths.size == 2 and lengths[1] > 1, "a transform of length 1")
    powers = all(n > 0 and n & (n - 1) == 0 for n in map(int, lengths))
    require(powers, "a length not a power of 2")
    return FAITHFUL


@rule("CUSTOM:MaxPoolingWithArgmax2D", "CUSTOM:MaxUnpooling2D", "CUSTOM:Convolution2DTransposeBias")
def check_mediapipe(site: Site) -> Classes:
    """XNNPACK supports no transposed convolution whose filter is smaller than its stride."""
    for operand in site.inputs:
        if operand is not None:
            among(operand, "float32")
            require(static_shape(operand.shape) is not None, "shapes known only when it runs")
    if site.operation.key == "CUSTOM:Convolution2DTransposeBias":
        filters = static_shape(site.input(1).shape) or ()
        options = transpose_conv_bias(site.operation.attributes)
        smaller = filters[1] < options.stride_h or filters[2] < options.stride_w
        require(not smaller, "a filter smaller than its stride")
    return XNNPACK_ALONE


@rule("CUSTOM:TFLite_Detection_PostProcess")
def check_detection(site: Site) -> Classes:
    """The driver clears memory behind the last detection, which LiteRT leaves, in outputs only."""
    among(site.input(), "float32 uint8")
    outputs, readers = site.around.outputs, site.around.readers
    unread = all(i in outputs and not readers[i] for i in site.output_indexes)
    require(unread, "its detections are read on")
    require(site.input(2).is_constant, "its anchors are known only when it runs")
    for position in range(3):
        require(site.rank(position) in {2, 3}, "operands of another rank")
        if site.input(position).dtype is DType.UINT8:
            one_scale(site.input(position))
    require(np.all(np.isfinite(site.value(2, "its anchors"))), "anchors that are not finite")
    return FAITHFUL
