"""The corpus on every engine, in every accuracy class: a dozen networks, and units, these in some
classes on some engines in turn, here, the rest marked `grid`. Of the networks one pair of engines
tries the operations one by one here, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from penstock.drivers.openvino.installation import sums_exactly
from penstock.hal import AccuracyClass
from tests.conftest import corpus_parameters
from tests.golden import engine_grid
from tests.golden.cases import Entry, case_groups, entries
from tests.golden.engine_gaps import ONNX_GAPS, gap_of
from tests.golden.engine_operations import check_operations

NETWORKS_HERE: Final = 12
LARGEST_HERE: Final = 50_000_000
"""Multiply-accumulates of the largest network that is run outside the grid."""

FLOAT_SCHEMES: Final = frozenset({"float32", "float16-weights"})
QUANTIZED_SCHEMES: Final = frozenset({"int8", "uint8"})
FLOORS: Final[Mapping[str, Mapping[str, float]]] = {
    "llvm": {"faithful": 0.95, "relaxed": 0.95},
    "xnnpack": {"faithful": 0.99, "relaxed": 0.99},
    "onnxruntime-cpu": {"faithful": 0.95, "relaxed": 0.98},
    "openvino-cpu": {"faithful": 0.95, "relaxed": 0.98},
}
"""The least share of operations that an engine takes as first choice: of the float networks in
`faithful`, of the quantised ones in `relaxed`.
"""


ROUNDING: Final = ("onnxruntime-cpu", "openvino-cpu")
"""Engines that compute quantised operations otherwise where each by itself is to be within a step,
and no more.
"""


TURNS: Final = 4
"""Of as many pairs of an engine and a class, a unit goes through one outside the grid."""

PAIRS: Final = (("llvm", "onnxruntime-cpu"), ("xnnpack", "openvino-cpu"))
"""The engines that operations are tried on one by one."""


def _here() -> frozenset[str]:
    """A dozen networks: of each numeric scheme and format the smallest first, in turn."""
    piles: dict[tuple[str, str], list[Entry]] = {}
    for file_format in ("tflite", "onnx"):
        for entry in entries("network", file_format):
            if (entry.get("macs") or 0) <= LARGEST_HERE:
                piles.setdefault((file_format, entry["dtype_scheme"]), []).append(entry)
    for pile in piles.values():
        pile.sort(key=lambda entry: (-len(entry["ops"]), entry["id"]))
    chosen: list[str] = []
    while len(chosen) < NETWORKS_HERE and any(piles.values()):
        chosen += [pile.pop(0)["id"] for pile in piles.values() if pile]
    return frozenset(chosen[:NETWORKS_HERE])


HERE: Final = _here()


def _parameters(arrangement: engine_grid.Arrangement) -> Iterator[Any]:
    engines = (
        [(e,) for e in engine_grid.ENGINES] if arrangement == "first" else [engine_grid.ENGINES]
    )
    for kind in ("unit", "network"):
        for number, (entry, cases) in enumerate(engine_grid.groups_of(kind)):
            if entry["id"] in ONNX_GAPS:
                continue
            for turn, names in enumerate(engines):
                for position, accuracy in enumerate(engine_grid.ACCURACIES):
                    name = f"{entry['id']}-{cases[0]['group']}-{accuracy}-{'+'.join(names)}"
                    marks: list[pytest.MarkDecorator] = []
                    pair = turn * len(engine_grid.ACCURACIES) + position
                    is_turn = (number + pair) % TURNS == 0
                    if not (is_turn if kind == "unit" else entry["id"] in HERE):
                        marks.append(pytest.mark.grid)
                    group = f"{entry['id']}-{cases[0]['group']}"
                    reason = gap_of(arrangement, group, names, accuracy)
                    if reason is not None:
                        marks.append(pytest.mark.xfail(strict=True, reason=reason))
                    yield pytest.param(entry, cases, names, accuracy, id=name, marks=marks)


@pytest.mark.parametrize(
    ("entry", "cases", "engines", "accuracy"), corpus_parameters(_parameters("first"), arguments=4)
)
def test_engine_as_first_choice(
    entry: Entry, cases: list[dict[str, Any]], engines: tuple[str, ...], accuracy: AccuracyClass
) -> None:
    engine_grid.needs(*engines)
    engine_grid.check(entry, cases, engine_grid.arranged("first", engines), accuracy)


@pytest.mark.parametrize(
    ("entry", "cases", "engines", "accuracy"),
    corpus_parameters(_parameters("together"), arguments=4),
)
def test_engines_together(
    entry: Entry, cases: list[dict[str, Any]], engines: tuple[str, ...], accuracy: AccuracyClass
) -> None:
    engine_grid.needs(*engines)
    engine_grid.check(entry, cases, engine_grid.arranged("together", engines), accuracy)


def _networks() -> Iterator[Any]:
    for file_format in ("tflite", "onnx"):
        for entry in entries("network", file_format):
            if entry["id"] not in ONNX_GAPS:
                marks = [] if entry["id"] in HERE else [pytest.mark.grid]
                yield pytest.param(entry, id=entry["id"], marks=marks)


def _networks_on_pairs() -> Iterator[Any]:
    """Each network with each of `PAIRS`; outside the grid with one of them, in turn."""
    for number, parameter in enumerate(_networks()):
        for position, pair in enumerate(PAIRS):
            (entry,), marks = parameter.values, list(parameter.marks)
            if position != number % len(PAIRS) and not marks:
                marks = [pytest.mark.grid]
            yield pytest.param(entry, pair, id=f"{entry['id']}-{'+'.join(pair)}", marks=marks)


@pytest.mark.parametrize(("entry", "engines"), corpus_parameters(_networks_on_pairs(), arguments=2))
def test_every_operation_alone_is_within_a_step(entry: Entry, engines: tuple[str, ...]) -> None:
    engine_grid.needs(*engines)
    outcomes = check_operations(entry, engines)
    assert [line for outcome in outcomes.values() for line in outcome.departures] == []
    assert any(o.taken for o in outcomes.values()) or "CONTROL" in entry["task"].upper()


@pytest.mark.parametrize(
    "entry",
    corpus_parameters(p for p in _networks() if p.values[0]["dtype_scheme"] in QUANTIZED_SCHEMES),
)
def test_every_quantised_operation_that_claims_no_more_is_within_a_step(entry: Entry) -> None:
    engine_grid.needs(*ROUNDING)
    outcomes = check_operations(entry, ROUNDING, "stepwise")
    assert [line for outcome in outcomes.values() for line in outcome.departures] == []
    # OpenVINO declares `relaxed` for all of them on a processor without VNNI.
    taking = [engine for engine in ROUNDING if engine != "openvino-cpu" or sums_exactly()]
    assert all(outcomes[engine].taken for engine in taking)


@pytest.mark.parametrize("engine", engine_grid.ENGINES)
@pytest.mark.parametrize(
    ("accuracy", "schemes"), [("faithful", FLOAT_SCHEMES), ("relaxed", QUANTIZED_SCHEMES)]
)
def test_share_of_operations(
    engine: str, accuracy: AccuracyClass, schemes: frozenset[str], record_property: Any
) -> None:
    engine_grid.needs(engine)
    found = [entry for entry in entries("network") if entry["dtype_scheme"] in schemes]
    if not found:
        pytest.skip("no test corpus (PENSTOCK_CORPUS)")
    total = sum((engine_grid.shares(entry, engine, accuracy) for entry in found), Counter[str]())
    share = total["taken"] / total["all"]
    # The figure is the result.
    print(f"{engine} takes {share:.1%} of {total['all']} operations in {accuracy}")  # noqa: T201
    record_property("share", share)
    assert share >= FLOORS[engine][accuracy]


def test_a_dozen_networks_are_run_here() -> None:
    if not entries("network"):
        pytest.skip("no test corpus (PENSTOCK_CORPUS)")
    assert len(HERE) == NETWORKS_HERE
    assert all(case_groups(entry) for entry in entries("network"))
