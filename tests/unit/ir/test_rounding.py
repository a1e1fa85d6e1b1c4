"""The orders of sums that values need which are rounded later, within a step and beyond it."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder, Quantization
from penstock.ir.operation import AttributeValue
from penstock.ir.rounding import rounded, sums_of, sums_of_options, sums_options

F32 = DType.FLOAT32
SHAPE = (2, 3)


def chain(*kinds: str) -> Model:
    b = ModelBuilder()
    x = b.input(F32, SHAPE, "x")
    for kind in kinds:
        if kind == "QUANTIZE":
            (x,) = b.operation(kind, [x], [(DType.INT8, SHAPE, Quantization((0.1,), (0,)))])
        else:
            (x,) = b.operation(kind, [x], [(F32, SHAPE)])
    return b.build([x])


def test_everything_before_a_quantisation_is_summed_in_order() -> None:
    entry = chain("RELU", "TANH", "QUANTIZE").entry
    assert set(sums_of(entry)) == {entry.inputs[0], *(o.outputs[0] for o in entry.operations[:2])}
    assert set(sums_of(entry).values()) == {"ordered"}


def test_nothing_is_asked_where_nothing_is_rounded() -> None:
    assert sums_of(chain("RELU", "TANH").entry) == {}


def test_rounding_outside_a_model_reaches_back() -> None:
    entry = chain("RELU", "TANH").entry
    found = sums_of(entry, {entry.outputs[0]: "fused"})
    assert found == dict.fromkeys((entry.inputs[0], entry.operations[0].outputs[0],
        entry.outputs[0]), "fused")  # fmt: skip


def test_sums_survive_their_options() -> None:
    assert sums_options({}) == ()
    assert sums_of_options(sums_options({2: "ordered", 0: "fused"})) == {0: "fused", 2: "ordered"}


@pytest.mark.parametrize(
    "text", ["", "x", "1", "-1=ordered", "1=sideways", "1=ordered=2", "=fused"]
)
def test_malformed_rounding_option_is_ignored(text: str) -> None:
    assert sums_of_options((("sums", text), ("other", "1=ordered"))) == {}


def test_a_filter_of_one_signal_is_fused_whatever_is_before_and_behind_it() -> None:
    b = ModelBuilder()
    x = b.input(F32, (1, 1, 20, 1), "x")
    steps: dict[str, AttributeValue] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    made = [b.operation("RELU", [x], [(F32, (1, 1, 20, 1))])[0]]
    for channels in (1, 2):
        weights = b.constant(np.ones((channels, 1, 5, 1), np.float32))
        shape = (1, 1, 20, channels)
        made += b.operation("CONV_2D", [made[-1], weights, None], [(F32, shape)], steps)
    entry = b.build([made[-1]]).entry
    (_, signal, _) = (o.outputs[0] for o in entry.operations)
    assert sums_of(entry) == {signal: "fused"}
    assert rounded(entry) == {}
