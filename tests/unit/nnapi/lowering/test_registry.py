from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelError, UnknownOperator
from penstock.ir.operations import OPERATIONS
from penstock.nnapi.codes import EXPERIMENTAL
from penstock.nnapi.lowering import OperationLowering, lower, rules
from penstock.nnapi.lowering.registry import lowers, rule_of
from tests.unit.nnapi.lowering.one import lowered, model_of, run, t
from tests.unit.nnapi.lowering.samples import SAMPLES

ROOT = Path(__file__).resolve().parents[4]

LEVELS = {
    1: """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
    EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
    LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU1 RELU6
    RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH""",
    2: "BATCH_TO_SPACE_ND DIV MEAN PAD SPACE_TO_BATCH_ND SQUEEZE STRIDED_SLICE SUB TRANSPOSE",
    3: """ABS ARGMAX ARGMIN AXIS_ALIGNED_BBOX_TRANSFORM BIDIRECTIONAL_SEQUENCE_LSTM
    BIDIRECTIONAL_SEQUENCE_RNN BOX_WITH_NMS_LIMIT CAST CHANNEL_SHUFFLE
    DETECTION_POSTPROCESSING EQUAL EXP EXPAND_DIMS GATHER GENERATE_PROPOSALS GREATER
    GREATER_EQUAL GROUPED_CONV_2D HEATMAP_MAX_KEYPOINT INSTANCE_NORMALIZATION LESS LESS_EQUAL
    LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOG_SOFTMAX MAXIMUM MINIMUM NEG NOT_EQUAL PAD_V2
    POW PRELU QUANTIZE QUANTIZED_16BIT_LSTM RANDOM_MULTINOMIAL REDUCE_ALL REDUCE_ANY
    REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM ROI_ALIGN ROI_POOLING RSQRT SELECT SIN SLICE
    SPLIT SQRT TILE TOPK_V2 TRANSPOSE_CONV_2D UNIDIRECTIONAL_SEQUENCE_LSTM
    UNIDIRECTIONAL_SEQUENCE_RNN RESIZE_NEAREST_NEIGHBOR""",
    4: "QUANTIZED_LSTM IF WHILE ELU HARD_SWISH FILL RANK",
    6: "BATCH_MATMUL PACK",
    7: "MIRROR_PAD REVERSE",
    EXPERIMENTAL: "DENSIFY",
}


def test_every_operation_of_nnapi_has_a_rule_of_its_level() -> None:
    wanted = {name: level for level, names in LEVELS.items() for name in names.split()}
    assert len(wanted) == 107
    assert {name: rule.level for name, rule in rules().items()} == wanted


def test_levels_are_those_of_the_operation_table() -> None:
    for key in OPERATIONS:
        row = OPERATIONS[key]
        if row.feature_level is not None:
            name = "EXTENSION:com.example.a:0" if key == "EXTENSION" else row.nnapi_name or row.name
            assert rule_of(name).level == row.feature_level, key


def test_every_operation_is_on_the_page_once() -> None:
    page = (ROOT / "docs" / "nnapi.md").read_text("utf-8")
    section = page.partition("### Operation by operation\n")[2].partition("\n### ")[0]
    listed = re.findall(r"`([A-Z0-9_]+)`", section.partition("\n\n")[0])
    listed += re.findall(r"^\| `([A-Z0-9_]+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(rules())


def test_the_example_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "nnapi.md").read_text("utf-8")
    (code,) = re.findall(
        r"```python\n(.*?)```", page.split("## NNAPI's operations\n")[1], re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(code, names)  # the page is ours
    assert [o.type for o in names["model"].operations] == ["ABS"]


def _nothing(op: OperationLowering) -> None:
    """Lowers to nothing."""


def test_no_operation_has_two_rules() -> None:
    with pytest.raises(ValueError, match="ADD has a lowering already"):
        lowers("ADD", "a:f32 -> b:f32")(_nothing)


def test_unknown_operations_are_named() -> None:
    with pytest.raises(UnknownOperator, match="'GELU' is not an operation of NNAPI"):
        lowered("GELU", [t("f32", 2)], [t("f32", 2)])


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_lowered_and_run(name: str) -> None:
    inputs, outputs = SAMPLES[name]
    model = lowered(name, inputs, outputs)
    fed = [model.entry.operands[i] for i in model.entry.inputs]
    arrays = [np.ones(tuple(d or 0 for d in o.shape or ()), o.dtype.numpy) for o in fed]
    found = run(model, arrays)
    assert [a.shape for a in found] == [o.dimensions for o in outputs]
    assert [a.dtype for a in found] == [o.type.dtype.numpy for o in outputs]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_refused_below_their_level(name: str) -> None:
    level = rule_of(name).level
    with pytest.raises(ModelError, match="feature level"):
        lower(model_of(name, *SAMPLES[name]), level - 1)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_with_an_operand_too_many_or_too_few_are_refused(name: str) -> None:
    inputs, outputs = SAMPLES[name]
    for changed in (inputs[1:], [*inputs, t("f32", 1, 1, 1, 1, 1)]):
        if changed:
            with pytest.raises(ModelError):
                lowered(name, changed, outputs)
    with pytest.raises(ModelError):
        lowered(name, inputs, [*outputs, t("b8", 7)])
