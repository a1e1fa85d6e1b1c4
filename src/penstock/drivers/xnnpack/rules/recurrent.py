"""Recurrent operations: their state comes as inputs and leaves as outputs."""

from __future__ import annotations

from penstock.driverkit.site import require
from penstock.drivers.xnnpack.rules.rule import among, rule, types_of
from penstock.drivers.xnnpack.site import EXACT, FAITHFUL, Classes, Site
from penstock.export.tflite.state import state_positions
from penstock.ir import DType


@rule("SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM")
def check_recurrent(site: Site) -> Classes:
    """LiteRT keeps state in the operation: it can be set before a run and read after it where
    nobody else in the partition does.
    """
    operation = site.operation
    positions = state_positions(operation.type, operation.attributes)
    require(operation.attributes.get("kernel_type", "FULL") == "FULL", "the older form of LSTM")
    made = operation.outputs[1:]
    require(len(made) == len(positions), "its new state is not complete")
    for position, output in zip(positions, made, strict=True):
        require(position < len(operation.inputs), "its state is omitted")
        index = operation.inputs[position]
        alone = site.is_input(index) and site.readers(index) == 1
        require(alone, "its state is made by another operation, or read by one")
        kept = site.is_output(output) and site.readers(output) == 0
        require(kept and not site.is_output(index), "its new state is read by another operation")
    first = site.input()
    among(first, types_of("float32 int8"))
    require(site.output().dtype is first.dtype, "a result of another type")
    for position, state in zip(positions, site.outputs[1:], strict=True):
        require(site.input(position).dtype is state.dtype, "new state of another type")
    weights = site.input(1) if site.has(1) else site.input(2)
    if first.dtype is DType.FLOAT32:
        among(weights, types_of("float32"), "weights")
        return FAITHFUL
    among(weights, types_of("int8"), "weights")
    return EXACT if operation.type == "SVDF" else FAITHFUL
