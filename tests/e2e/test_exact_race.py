"""The race of the class `exact`: classes of networks, aims, and its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import engine_table, engines
from benchmarks.exact_race import (
    AIMS,
    BYTES,
    REAL,
    SMALL,
    WITH_AMX,
    WORDS,
    aims,
    best_ratio,
    class_of,
    layer_of,
    speed_up,
)
from penstock.ir import DType, Model, ModelBuilder, Quantization

Q = Quantization((0.1,), (0,))


def dense(dtype: DType, weights: DType, rows: int = 2000) -> Model:
    """A fully connected layer of rows * 32 * 32 multiply-accumulates."""
    builder = ModelBuilder()
    x = builder.input(dtype, (rows, 32), "x", quantization=None if dtype.is_float else Q)
    quantization = None if weights.is_float else Q
    w = builder.constant(np.ones((32, 32), weights.numpy), "w", quantization)
    out = (dtype, (rows, 32)) if dtype.is_float else (dtype, (rows, 32), Q)
    (y,) = builder.operation("FULLY_CONNECTED", [x, w, None], [out])
    return builder.build([y])


@pytest.mark.parametrize(
    ("data", "weights", "wanted"),
    [
        (DType.INT8, DType.INT8, BYTES),
        (DType.INT16, DType.INT8, WORDS),
        (DType.FLOAT32, DType.FLOAT32, REAL),
        (DType.FLOAT32, DType.INT8, REAL),
    ],
)
def test_network_is_in_the_class_of_the_data_of_its_layers(
    data: DType, weights: DType, wanted: str
) -> None:
    model = dense(data, weights)
    assert class_of(model, None) == wanted
    assert class_of(model, 2_048_000) == wanted
    assert class_of(model, 900_000) == SMALL
    assert class_of(dense(data, weights, 10), None) == SMALL
    assert layer_of(model, model.operations[0]) == "fully connected"


def test_aims_depend_on_amx() -> None:
    assert aims("avx2 avx512_vnni") == AIMS
    assert aims("avx512_vnni amx_int8 amx_tile") == WITH_AMX
    assert WITH_AMX[BYTES].mean > AIMS[BYTES].mean


def race(name: str, kind: str, ours: float, litert: float, **more: Any) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "in_class": True,
        "in_outputs": True,
        "outputs": None,
        "departures": [],
        "cases": 1,
    }
    return {
        "accuracy": "exact", "threads": 1, "id": name, "macs": 2_000_000, "native": "litert",
        "class": kind, "load": 0.1, "plan": [["llvm", 3]], "refused": {}, "at": "now",
        "times": {
            "penstock": [ours, ours * 1.1, ours * 0.9],
            "penstock (burst)": [ours] * 3,
            "litert": [litert, litert * 1.1, litert * 0.9],
            "openvino": [litert / 2] * 3,
        },
        "verdicts": dict.fromkeys(("penstock", "litert", "openvino"), verdict),
        "layers": [["3x3", 3000, 80], ["3x3", 1000, 40], ["others", 1000, None]],
        **more,
    }  # fmt: skip


RACES = [
    race("quick", BYTES, 1e-3, 4e-3),
    race("slow", BYTES, 1e-3, 1e-3),
    race("real", REAL, 1e-3, 1.5e-3),
]


def test_ratio_is_the_native_time_over_ours() -> None:
    assert speed_up(RACES[0]) == pytest.approx(4)
    assert best_ratio(RACES[0]) == pytest.approx(2)


def test_table_has_means_worst_networks_and_shares_of_peak() -> None:
    text = "\n".join(engine_table.exact(1, RACES, "avx512_vnni"))
    assert "## exact, 1 thread\n" in text
    assert f"### {BYTES}: 2 networks" in text
    assert "Geometric mean 2.00x, aim 2.5x; least 1.00x (slow), aim 1.25x." in text
    assert text.index("| slow |") < text.index("| quick |")
    assert "| slow | 2,000,000 | 1 (0.9-1.1) llvm | 1 (0.9-1.1) litert | 1.00 |" in text
    assert "| real |" in text
    assert f"| {REAL} | 3x3 | 80 % | 70 % |" in text


def test_race_that_failed_or_has_no_rival_is_named() -> None:
    alone = race("alone", REAL, 1e-3, 1e-3)
    del alone["times"]["litert"]
    broken = {"id": "broken", "failed": "exit code 1", "native": "litert", "class": BYTES}
    text = "\n".join(engine_table.exact(1, [*RACES, alone, broken], ""))
    assert "- broken: no race: exit code 1" in text
    assert "- alone: the native engine does not run it" in text


def test_rows_have_the_limits_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "instruction_sets", lambda: "avx512_vnni")
    assert engines.judged_exact(RACES[0]).met is True
    assert engines.judged_exact(RACES[1]).met is False
    wrong = race("wrong", BYTES, 1e-3, 1e-2)
    wrong["verdicts"]["penstock"] = {**wrong["verdicts"]["litert"], "in_outputs": False,
                                     "outputs": "off by 3"}  # fmt: skip
    assert engines.judged_exact(wrong).met is False
    small = race("small", SMALL, 1e-3, 1e-3)
    assert engines.judged_exact(small).met is None
    means = {row.measure.rpartition(", ")[2]: row for row in engines.compared_exact(1, RACES)}
    assert means[BYTES].value == pytest.approx(0.5)
    assert means[BYTES].met is False
