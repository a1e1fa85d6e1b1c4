"""Every TFLite file of the corpus: it loads as the manifest describes it, or is refused by name."""

from __future__ import annotations

import pytest

from penstock import loaders
from penstock.errors import ModelError
from penstock.ir import Model, Operand, infer_shapes
from penstock.loaders import flatbuffer
from tests.checked import does_not_raise
from tests.unit.loaders.corpus import Entry, entries, parameters, path_of, stops_at

STATE = {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "DENSIFY"}
"""Operators that loading lowers away."""

STALE = {"yunet_int8_float_io": {"serving_default"}}
"""Signatures left out: a tool gave the graph new ends and left the signature at the old ones."""

LATER = {"micro_speech__flip0"}
"""Damaged files that are well-formed as files and that the reference runtime refuses when it
allocates: their shapes contradict what an operation needs, which shape inference finds.
"""


@pytest.mark.parametrize("entry", parameters("network", "unit"))
def test_corpus_file_loads_as_its_manifest_describes(entry: Entry) -> None:
    model = loaders.load(path_of(entry))
    for described, operands in ((entry["inputs"], model.inputs), (entry["outputs"], model.outputs)):
        assert [d["dtype"].lower() for d in described] == [o.dtype.value for o in operands]
        for item, operand in zip(described, operands, strict=True):
            assert_described(item, operand)
    assert set(model.signatures) == {s["key"] for s in entry.get("signatures", ())} - STALE.get(
        entry["id"], set()
    )
    assert histogram(model) == {k: n for k, n in entry["ops"].items() if k not in STATE}
    assert bool(model.variables) == bool(entry["stateful"])


def assert_described(described: Entry, operand: Operand) -> None:
    assert described["name"] == operand.name
    if described.get("shape_signature"):
        assert operand.shape == tuple(None if d < 0 else d for d in described["shape_signature"])
    quantization = described.get("quant")
    if quantization and operand.quantization is not None:
        assert operand.quantization.scale == pytest.approx(quantization["scale"], rel=1e-6)
        assert operand.quantization.zero_point == quantization["zero_point"]


def histogram(model: Model) -> dict[str, int]:
    found: dict[str, int] = {}
    for subgraph in model.subgraphs:
        for operation in subgraph.operations:
            name = operation.key
            found[name] = found.get(name, 0) + 1
    return found


STRICTER = {"hello_int8__badzp", "hello_int8__word1", "lstm_int8__cycle", "lstm_int8__word1"}
"""Damaged files that LiteRT runs and Penstock refuses (docs/differences.md)."""


def defect_of(entry: Entry) -> ModelError | None:
    """The error that loading raises, or None."""
    try:
        loaders.load(path_of(entry))
    except ModelError as error:
        return error
    return None


@pytest.mark.parametrize("entry", parameters("rejected"))
def test_a_rejected_file_is_refused_where_it_must_be(entry: Entry) -> None:
    defect = defect_of(entry)
    if defect is None:
        assert stops_at(entry) not in {"load", "crash"}
    else:
        assert stops_at(entry) != "runs", defect


@pytest.mark.parametrize("entry", parameters("corrupted"))
def test_a_damaged_file_is_refused_by_name_or_runs(entry: Entry) -> None:
    if entry["id"] in LATER:
        model = loaders.load(path_of(entry))
        with pytest.raises(ModelError, match="operation"):
            infer_shapes(model)
    elif stops_at(entry) != "runs":
        assert defect_of(entry) is not None
    else:
        # What those that load answer is compared in tests/golden/test_refusals.py.
        assert (defect_of(entry) is not None) == (entry["id"] in STRICTER)


@pytest.mark.parametrize("entry", parameters("network", "unit"))
def test_an_honest_file_loads_in_three_quarters_of_the_memory(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEMORY_PER_BYTE", "MEMORY_ALLOWANCE"):
        monkeypatch.setattr(flatbuffer, name, 3 * getattr(flatbuffer, name) // 4)
    with does_not_raise():
        loaders.load(path_of(entry))


def test_the_corpus_is_whole() -> None:
    if entries("network"):
        assert len(entries("network", "unit")) > 200
        assert {e["id"] for e in entries("corrupted")} >= LATER
