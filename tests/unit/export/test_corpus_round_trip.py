"""Every loadable TFLite file of the corpus, written and loaded again; LiteRT runs both alike."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import loaders
from penstock.export.tflite import write
from tests.golden.arrays import golden
from tests.golden.cases import case_groups, invoke
from tests.unit.loaders.corpus import Entry, entries, parameters, path_of, stops_at

litert = pytest.importorskip("ai_edge_litert.interpreter")

HEAVY_MACS = 1_000_000_000
MISSING_KERNELS = {"hair_segmentation_float"}
"""Networks whose custom operators LiteRT's Python package does not have."""


@pytest.mark.parametrize("entry", parameters("network", "unit"))
def test_the_digest_survives_the_writer(entry: Entry) -> None:
    model = loaders.load(path_of(entry))
    again = loaders.load(write(model))
    assert again.digest == model.digest
    assert set(again.signatures) == set(model.signatures)
    assert again.metadata == model.metadata


@pytest.mark.parametrize("entry", parameters("rejected"))
def test_accepted_damaged_files_survive_a_round_trip(entry: Entry) -> None:
    if stops_at(entry) not in {"runs", "invoke"}:
        pytest.skip("the reference runtime refuses it")
    try:
        model = loaders.load(path_of(entry))
    except ValueError:
        pytest.skip("refused at load")
    assert loaders.load(write(model)).digest == model.digest


def run_cases(content: bytes, entry: Entry, arrays: Any) -> list[Any]:
    """Outputs of the recorded cases in their order, one interpreter a group."""
    outputs: list[Any] = []
    for cases in case_groups(entry).values():
        runner = litert.Interpreter(
            model_content=content,
            num_threads=1,
            experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        for position, case in enumerate(cases):
            outputs += invoke(runner, case, arrays, first=position == 0)
    return outputs


def runnable() -> list[Any]:
    found = []
    for entry in entries("network", "unit"):
        if "golden" in entry and entry["id"] not in MISSING_KERNELS:
            heavy = (entry.get("macs") or 0) > HEAVY_MACS
            found.append(
                pytest.param(entry, id=entry["id"], marks=pytest.mark.slow if heavy else ())
            )
    return found or parameters("network")


@pytest.mark.parametrize("entry", runnable())
def test_litert_runs_the_written_file_like_the_original(entry: Entry) -> None:
    original = path_of(entry).read_bytes()
    arrays = golden(path_of(entry).parents[1] / entry["golden"]["file"])
    heavy = (entry.get("macs") or 0) > HEAVY_MACS / 5
    cases = {**entry, "golden": {"cases": entry["golden"]["cases"][: 1 if heavy else None]}}
    expected = run_cases(original, cases, arrays)
    found = run_cases(write(loaders.load(original)), cases, arrays)
    assert expected
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert (
            ours.tobytes() == theirs.tobytes()
            if ours.dtype != object
            else ours.tolist() == theirs.tolist()
        )
