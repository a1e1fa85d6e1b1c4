from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import TFLITE, Field, Kind
from penstock.loaders.flatbuffer import Blob, Reader


def scalars(scalar: str) -> st.SearchStrategy[Any]:
    if scalar == "bool":
        return st.booleans()
    if scalar.startswith("float"):
        return st.floats(width=32 if scalar == "float32" else 64, allow_nan=False)
    info = np.iinfo(scalar)
    return st.integers(int(info.min), int(info.max))


@st.composite
def tables(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Random values for a few fields of a table."""
    table = TFLITE.table(name)
    values: dict[str, Any] = {}
    for field in table.fields:
        if field.name.endswith("_type") and field.name[:-5] in table.by_name:
            continue
        if draw(st.integers(0, 3)):
            continue
        if field.kind is Kind.UNION:
            members = TFLITE.unions[field.target]
            which = draw(st.integers(1, len(members) - 1))
            values[f"{field.name}_type"] = which
            values[field.name] = draw(tables(members[which]))
        else:
            values[field.name] = draw(field_values(field))
    return values


def field_values(field: Field) -> st.SearchStrategy[Any]:
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    match field.kind:
        case Kind.SCALAR:
            return scalars(field.scalar)
        case Kind.NUMBERS:
            return (
                st.binary(max_size=40)
                if field.scalar == "uint8"
                else st.lists(scalars(field.scalar), max_size=5)
            )
        case Kind.STRING:
            return text
        case Kind.STRINGS:
            return st.lists(text, max_size=3)
        case Kind.TABLE:
            return tables(field.target)
        case _:
            return st.lists(tables(field.target), max_size=3)


def plain(reader: Reader, value: Any) -> Any:
    if isinstance(value, Blob):
        return reader.bytes_of(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [plain(reader, v) for v in value]
    if isinstance(value, dict):
        return {k: plain(reader, v) for k, v in value.items()}
    return value


def complete(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """What the reader must give for *values*: every field, absent ones with their defaults."""
    result = dict(TFLITE.table(name).defaults)
    for field in TFLITE.table(name).fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.kind is Kind.TABLE:
            value = complete(field.target, value)
        elif field.kind is Kind.TABLES:
            value = [complete(field.target, v) for v in value]
        elif field.kind is Kind.UNION:
            value = complete(TFLITE.unions[field.target][values[f"{field.name}_type"]], value)
        result[field.name] = value
    return result


@given(tables("Model"))
def test_encoded_table_reads_back(values: dict[str, Any]) -> None:
    content = encode(TFLITE, values)
    reader = Reader(memoryview(content), TFLITE)
    assert plain(reader, reader.root()) == complete("Model", values)
    assert encode(TFLITE, values) == content


def test_bytes_are_aligned_to_sixteen() -> None:
    content = encode(TFLITE, {"buffers": [{"data": bytes([i]) * (i + 1)} for i in range(40)]})
    reader = Reader(memoryview(content), TFLITE)
    assert [b["data"].offset % 16 for b in reader.root()["buffers"]] == [0] * 40


def test_an_unknown_field_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError, match="no field colour"):
        encode(TFLITE, {"colour": 1})


def test_the_generated_module_reads_the_same() -> None:
    generated = pytest.importorskip("ai_edge_litert.schema_py_generated")
    content = encode(
        TFLITE, {"version": 3, "description": "d", "buffers": [{}, {"data": b"abc", "size": 7}]}
    )
    root = generated.Model.GetRootAs(content, 0)
    assert (root.Version(), root.Description(), root.BuffersLength()) == (3, b"d", 2)
    assert root.Buffers(1).DataAsNumpy().tobytes() == b"abc"
    assert root.Buffers(1).Size() == 7
