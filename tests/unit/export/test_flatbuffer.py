"""FlatBuffers are byte for byte those of the package `flatbuffers`."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np
import pytest
from flatbuffers import number_types

import penstock
from penstock.export.tflite import encoding, writer
from penstock.export.tflite.fields import TFLITE, Kind, Schema, Table
from tests.conftest import ROOT
from tests.unit.loaders.files import accumulator, svdf


def built(schema: Schema, root: Mapping[str, Any]) -> bytes:
    """The FlatBuffer by the package's builder."""
    builder = flatbuffers.Builder(64)
    place = table(builder, schema, schema.table(schema.root), root)
    builder.Finish(place, schema.identifier)
    return bytes(builder.Output())


def table(builder: Any, schema: Schema, kind: Table, values: Mapping[str, Any]) -> int:
    present = [field for field in kind.fields if values.get(field.name) is not None]
    places = {
        field.name: reference(builder, schema, field, values)
        for field in present
        if field.kind is not Kind.SCALAR
    }
    builder.StartObject(max((field.slot for field in kind.fields), default=-1) + 1)
    for field in present:
        if field.name in places:
            builder.PrependUOffsetTRelativeSlot(field.slot, places[field.name], 0)
        else:
            flags = getattr(number_types, f"{field.scalar.capitalize()}Flags")
            builder.PrependSlot(flags, field.slot, values[field.name], field.default)
    return int(builder.EndObject())


def reference(builder: Any, schema: Schema, field: Any, values: Mapping[str, Any]) -> int:
    value = values[field.name]
    if field.kind is Kind.NUMBERS:
        array = np.frombuffer(value, np.uint8) if field.scalar == "uint8" else value
        array = np.ascontiguousarray(array, field.dtype)
        builder.StartVector(
            array.itemsize, array.size, 16 if array.itemsize == 1 else array.itemsize
        )
        builder.head -= array.nbytes
        builder.Bytes[builder.head : builder.head + array.nbytes] = array.tobytes()
        return int(builder.EndVector())
    if field.kind is Kind.STRING:
        return int(builder.CreateString(value))
    if field.kind is Kind.TABLE:
        return table(builder, schema, schema.table(field.target), value)
    if field.kind is Kind.UNION:
        member = schema.unions[field.target][values[f"{field.name}_type"]]
        return table(builder, schema, schema.table(member), value)
    places = [
        table(builder, schema, schema.table(field.target), one)
        if field.kind is Kind.TABLES
        else int(builder.CreateString(one))
        for one in value
    ]
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())


@pytest.mark.parametrize("network", ["digits", "state", "recurrent"])
def test_networks_have_the_bytes_of_the_package(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"state": accumulator().encode, "recurrent": svdf().encode}
    source = files[network]() if network in files else ROOT / "examples/digits/digits_int8.tflite"
    roots: list[Mapping[str, Any]] = []

    def encode(schema: Schema, root: Mapping[str, Any]) -> bytes:
        roots.append(root)
        return encoding.encode(schema, root)

    monkeypatch.setattr(writer, "encode", encode)
    writer.write(penstock.load(source))
    assert len(roots) == 1
    assert encoding.encode(TFLITE, roots[0]) == built(TFLITE, roots[0])


def test_alignment_of_every_width_and_of_empty_parts() -> None:
    root = {
        "version": 3,
        "description": "",
        "subgraphs": [
            {},
            {"name": "ü", "inputs": [], "outputs": [1, 2, 3], "operators": []},
            {"operators": [{"mutating_variable_inputs": [True, False, True], "inputs": [-1]}]},
        ],
        "buffers": [{}, {"data": b""}, {"data": b"123"}, {"offset": 2**40, "size": 5}],
    }
    assert encoding.encode(TFLITE, root) == built(TFLITE, root)


@pytest.mark.parametrize(
    ("field", "value"), [("version", -1), ("version", 2**32), ("version", "text")]
)
def test_a_number_that_its_field_cannot_have_is_refused(field: str, value: object) -> None:
    with pytest.raises(TypeError):
        encoding.encode(TFLITE, {field: value})


def test_a_file_is_written_without_garbage_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(encoding, "checkpoint", lambda: seen.append(gc.isenabled()))
    encoding.encode(TFLITE, {"description": "x"})
    assert seen == [False]
    assert gc.isenabled()
