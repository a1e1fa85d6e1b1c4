"""The operation table as a whole: complete, consistent with TFLite's schema and with NNAPI's
list.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from penstock.errors import UnknownOperator
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE, Field, Kind
from penstock.ir import Attributes, Operation
from penstock.ir.operations import FAMILIES, OPERATIONS, AttributeSpec, OperationSpec, spec_of
from penstock.ir.operations.spec import check_attribute

ROWS: Final = [OPERATIONS[name] for name in OPERATIONS]

NOT_OPERATIONS: Final = {"PLACEHOLDER_FOR_GREATER_OP_CODES"}
"""A code that says "look at the other field"; no operator has it."""

OWN_CHOICES = {"fused_activation_function": ("SIGMOID",)}
"""Choices that NNAPI adds to TFLite's, by attribute."""

OWN_ATTRIBUTES: Final = {
    "LSTM": {"intermediate_scales", "intermediate_zero_points"},
    "UNIDIRECTIONAL_SEQUENCE_LSTM": {"intermediate_scales", "intermediate_zero_points"},
    "CUSTOM": {"custom_code", "custom_options"},
}
"""What rows have beside the fields of their options table."""

NNAPI: Final = {
    1: """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
        EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
        LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU1 RELU6
        RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH""",
    2: "BATCH_TO_SPACE_ND DIV MEAN PAD SPACE_TO_BATCH_ND SQUEEZE STRIDED_SLICE SUB TRANSPOSE",
    3: """ABS ARGMAX ARGMIN AXIS_ALIGNED_BBOX_TRANSFORM BIDIRECTIONAL_SEQUENCE_LSTM
        BIDIRECTIONAL_SEQUENCE_RNN BOX_WITH_NMS_LIMIT CAST CHANNEL_SHUFFLE DETECTION_POSTPROCESSING
        EQUAL EXP EXPAND_DIMS GATHER GENERATE_PROPOSALS GREATER GREATER_EQUAL GROUPED_CONV_2D
        HEATMAP_MAX_KEYPOINT INSTANCE_NORMALIZATION LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT
        LOGICAL_OR LOG_SOFTMAX MAXIMUM MINIMUM NEG NOT_EQUAL PAD_V2 POW PRELU QUANTIZE
        QUANTIZED_16BIT_LSTM RANDOM_MULTINOMIAL REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN
        REDUCE_PROD REDUCE_SUM ROI_ALIGN ROI_POOLING RSQRT SELECT SIN SLICE SPLIT SQRT TILE TOPK_V2
        TRANSPOSE_CONV_2D UNIDIRECTIONAL_SEQUENCE_LSTM UNIDIRECTIONAL_SEQUENCE_RNN
        RESIZE_NEAREST_NEIGHBOR""",
    4: "QUANTIZED_LSTM IF WHILE ELU HARD_SWISH FILL RANK",
    6: "BATCH_MATMUL PACK",
    7: "MIRROR_PAD REVERSE",
}
"""NNAPI's operations by the feature level that introduced them."""


def names(row: OperationSpec) -> str:
    return row.name


def test_every_code_of_tflite_has_a_row() -> None:
    codes = set(TFLITE.numbers("BuiltinOperator")) - NOT_OPERATIONS
    assert codes - set(OPERATIONS) == set()
    assert {r.name for r in ROWS if r.vocabulary == "tflite"} - codes == set()


def test_row_names_are_unique() -> None:
    every = [row.name for family in FAMILIES for row in OPERATIONS.family(family)]
    assert len(every) == len(set(every)) == len(OPERATIONS)


def test_every_operation_of_nnapi_has_a_row_of_its_level() -> None:
    own = [r for r in ROWS if r.vocabulary != "extension"]
    levels = {r.nnapi_name or r.name: r.feature_level for r in own if r.feature_level is not None}
    wanted = {name: level for level, text in NNAPI.items() for name in text.split()}
    assert len(wanted) == 106
    assert levels == wanted


def test_rows_of_other_vocabularies_are_marked() -> None:
    for row in ROWS:
        assert (row.vocabulary == "nnapi") == (
            row.name not in TFLITE.numbers("BuiltinOperator")
        ) or row.name.startswith(("CUSTOM", "EXTENSION"))
        assert (row.vocabulary == "custom") == row.name.startswith("CUSTOM")
        assert (row.vocabulary == "extension") == (row.name == "EXTENSION")


@pytest.mark.parametrize("row", [r for r in ROWS if r.vocabulary == "tflite"], ids=names)
def test_attributes_are_those_of_the_options_table(row: OperationSpec) -> None:
    table = OPTIONS_OF_OPERATOR.get(row.name)
    fields = {f.name: f for f in (TFLITE.table(table).fields if table else ())}
    own = OWN_ATTRIBUTES.get(row.name, set())
    attributes = {a.name: a for a in row.attributes}
    assert set(attributes) == set(fields) | own
    for name, field in fields.items():
        assert_same_field(attributes[name], field)


def assert_same_field(spec: AttributeSpec, field: Field) -> None:
    if field.kind is Kind.STRING:
        assert (spec.kind, spec.default) == ("str", "")
    elif field.kind is Kind.NUMBERS and field.scalar == "uint8":
        assert (spec.kind, spec.default) == ("bytes", b"")
    elif field.kind is Kind.NUMBERS:
        wanted = {"floats"} if field.scalar.startswith("float") else {"ints", "subgraphs"}
        assert spec.kind in wanted
        assert spec.default == ()
    elif field.enum:
        members = TFLITE.numbers(field.enum)
        assert spec.kind == "enum"
        assert spec.choices[: len(members)] == tuple(sorted(members, key=members.__getitem__))
        assert spec.choices[len(members) :] in {(), OWN_CHOICES.get(spec.name, ())}
        assert spec.default == TFLITE.name(field.enum, int(field.default or 0))
    else:
        kinds = {"bool": {"bool"}, "float32": {"float"}}.get(field.scalar, {"int", "subgraph"})
        assert spec.kind in kinds
        assert spec.default == field.default
        assert type(spec.default) is type(field.default)
    assert ("subgraph" in spec.kind) == (
        "subgraph" in field.name and field.kind in {Kind.SCALAR, Kind.NUMBERS}
    )


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_table_rows_are_well_formed(row: OperationSpec) -> None:
    assert row.doc.endswith((".", ")."))
    for ports in (row.inputs, row.outputs):
        assert all(not p.variadic for p in ports[:-1]), "only the last port is variadic"
        assert all(p.types is None or p.types for p in ports)
        assert all(p.types is not None for p in ports if p.var and not p.variadic)
    optional = [p.optional or p.variadic for p in row.outputs]
    assert optional == sorted(optional), "optional outputs stand at the end"
    assert len({a.name for a in row.attributes}) == len(row.attributes)
    for attribute in row.attributes:
        if attribute.default is not None:
            check_attribute(attribute, attribute.default)
        assert bool(attribute.choices) == (attribute.kind == "enum")


def test_a_custom_operator_finds_its_row_or_the_common_one() -> None:
    def custom(code: str) -> Operation:
        return Operation("CUSTOM", (), (), Attributes(custom_code=code, custom_options=b""))

    assert spec_of(custom("Mfcc")).name == "CUSTOM:Mfcc"
    assert spec_of(custom("Nobody knows")).name == "CUSTOM"


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownOperator, match="'SUPER_CONV'"):
        spec_of(Operation("SUPER_CONV", (), ()))


def test_families_are_imported_when_needed() -> None:
    program = (
        "import sys, penstock.ir\n"
        "from penstock.ir.operations import FAMILIES, OPERATIONS\n"
        "loaded = lambda: [f for f in FAMILIES if 'penstock.ir.operations.' + f in sys.modules]\n"
        "assert loaded() == [], loaded()\n"
        "assert len(list(OPERATIONS)) == len(OPERATIONS) > 200\n"
        "assert OPERATIONS.get('CUSTOM:unheard') is None\n"
        "assert loaded() == [], loaded()\n"
        "OPERATIONS['FULLY_CONNECTED']\n"
        "assert loaded() == ['layers'], loaded()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
