from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock.export.tflite import metadata_schema, schema
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE, Kind, Schema
from penstock.export.tflite.metadata_schema import METADATA

ROOT = Path(__file__).resolve().parents[3]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_schema", ROOT / "tools" / "generate_schema.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schema_and_operator_codes_are_what_the_generator_derives() -> None:
    generated = pytest.importorskip("ai_edge_litert.schema_py_generated")
    assert Path(schema.__file__).read_text() == generator().generate(generated)
    assert generator().CODES.read_text() == generator().codes(generated)


@pytest.mark.parametrize("source", [schema, metadata_schema])
def test_every_name_a_table_uses_exists(source: ModuleType) -> None:
    tables: Schema = TFLITE if source is schema else METADATA
    for name in source.TABLES:
        for field in tables.table(name).fields:
            if field.kind in {Kind.TABLE, Kind.TABLES}:
                assert field.target in source.TABLES
            if field.enum:
                assert field.enum in source.ENUMS
    for members in tables.unions.values():
        assert members[0] == "NONE"
        assert set(members[1:]) <= set(source.TABLES)


def test_slots_and_defaults_are_as_in_the_format() -> None:
    tensor = TFLITE.table("Tensor").by_name
    assert {n: tensor[n].slot for n in ("shape", "is_variable", "has_rank", "external_buffer")} == {
        "shape": 0,
        "is_variable": 5,
        "has_rank": 8,
        "external_buffer": 10,
    }
    operator = TFLITE.table("Operator").by_name
    assert operator["builtin_options_type"].slot == 3
    assert operator["builtin_options"].slot == 4
    assert operator["builtin_options2"].slot == 12
    assert TFLITE.table("SignatureDef").by_name["subgraph_index"].slot == 4
    assert TFLITE.table("Conv2DOptions").defaults["dilation_w_factor"] == 1
    assert TFLITE.table("AddOptions").defaults["pot_scale_int16"] is True
    assert TFLITE.table("UniqueOptions").defaults["idx_out_type"] == TFLITE.number(
        "TensorType", "INT32"
    )


def test_options_belong_to_exactly_one_union() -> None:
    first, second = TFLITE.unions["BuiltinOptions"], TFLITE.unions["BuiltinOptions2"]
    for operator, table in OPTIONS_OF_OPERATOR.items():
        assert operator in TFLITE.numbers("BuiltinOperator")
        assert (table in first) != (table in second)
    assert set(first[1:] + second[1:]) == set(OPTIONS_OF_OPERATOR.values())


def test_the_table_loads_no_generated_module() -> None:
    assert "ai_edge_litert" not in Path(schema.__file__).read_text().replace(
        "tools/generate_schema", ""
    )
    assert "penstock.export.tflite.schema" in sys.modules
