"""`explain_model` says of a compile with the same arguments what that then finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cache import Cache
from penstock.errors import InputError, PlacementError, UnknownSignature
from penstock.export import tflite
from penstock.ir import DType, Model, ModelBuilder, Signature
from penstock.runtime.explain import explain_model
from penstock.testing.lab import LabDevice


def build() -> Model:
    """y = tanh(relu(x + 1)) + 1, x: float32[1, 2]."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 2), "x")
    one = builder.constant(np.ones(2, np.float32), "one")
    kind = [(DType.FLOAT32, (1, 2))]
    (sum_,) = builder.operation("ADD", [x, one], kind)
    (positive,) = builder.operation("RELU", [sum_], kind)
    (bent,) = builder.operation("TANH", [positive], kind)
    (y,) = builder.operation("ADD", [bent, one], kind)
    return builder.build([y], signatures={"serve": Signature(0, (("given", x),), (("y", y),))})


CASES: list[dict[str, Any]] = [
    {},
    {"shapes": {"x": (3, 2)}},
    {"signature": "serve", "shapes": {"given": (2, 2)}},
    {"preference": "low_power"},
    {"shapes": {"x": (4, 2)}, "priority": "high"},
    {"num_threads": 5},
    {"policy": penstock.Policy(accuracy="relaxed")},
]


def devices() -> list[Any]:
    return [LabDevice(), "reference"]


def policy_for(case: dict[str, Any]) -> dict[str, Any]:
    """*case* on the lab in the first and last of three steps."""
    given = case.get("policy", penstock.Policy())
    require = {"ADD": "lab", "RELU": "lab", "TANH": "reference"}
    return {**case, "policy": penstock.Policy(accuracy=given.accuracy, require=require)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_explain_predicts_hits_of_compiled_steps_only(tmp_path: Path, case: dict[str, Any]) -> None:
    model, arguments, cache = build(), policy_for(case), Cache(tmp_path)
    plan, before = explain_model(model, cache, devices(), **arguments)
    assert not any(each.explanation.found for each in before)
    with penstock.compile(model, devices=devices(), cache=tmp_path, **arguments) as compiled:
        outcomes = [step.cache.outcome for step in compiled.receipt.steps]
        assert compiled.plan.to_json() == plan.to_json()
    after = explain_model(model, cache, devices(), **arguments)[1]
    assert [each.step.device for each in after] == [step.device for step in plan.steps]
    assert [each.explanation.found for each in after] == [outcome == "miss" for outcome in outcomes]
    assert [each.explanation.found for each in after] == [True, False, True]
    assert {each.explanation.token for each in after if each.explanation.found} == {
        entry.token for entry in cache.entries()
    }
    for other in (o for o in CASES if o != case):
        for each in explain_model(model, cache, devices(), **policy_for(other))[1]:
            assert not each.explanation.found
            assert each.explanation.reason.startswith("NoEntry: ") is each.caches


def test_explain_names_a_step_that_does_not_cache(tmp_path: Path) -> None:
    (each,) = explain_model(build(), Cache(tmp_path), ["reference"], shapes={"x": (1, 2)})[1]
    assert not each.caches
    assert each.explanation.reason == "device reference does not cache"


def test_files_and_directories_are_taken_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(tflite.write(build()))
    (before,) = explain_model(path, tmp_path / "c", ["lab"])[1]
    assert not before.explanation.found
    penstock.compile(path, ["lab"], cache=tmp_path / "c").close()
    for cache in (tmp_path / "c", str(tmp_path / "c"), Cache(tmp_path / "c")):
        (after,) = explain_model(str(path), cache, ["lab"])[1]
        assert after.explanation.found
    with penstock.knobs.override(cache_dir=str(tmp_path / "c")):
        assert explain_model(path, devices=["lab"])[1][0].explanation.found


def test_the_nearest_entry_is_the_models_own(tmp_path: Path) -> None:
    other = ModelBuilder()
    x = other.input(DType.FLOAT32, (1, 2), "x")
    near = other.build(other.operation("RELU", [x], [(DType.FLOAT32, (1, 2))]))
    far: dict[str, Any] = {
        "preference": "low_power",
        "priority": "high",
        "num_threads": 5,
        "shapes": {"x": (7, 2)},
    }
    relaxed = penstock.Policy(accuracy="relaxed")
    penstock.compile(build(), ["lab"], cache=tmp_path, policy=relaxed, **far).close()
    penstock.compile(near, ["lab"], cache=tmp_path).close()
    (each,) = explain_model(build(), Cache(tmp_path), ["lab"])[1]
    assert set(each.explanation.changed) == {"accuracy", *far}


def test_the_declared_shape_makes_no_other_key(tmp_path: Path) -> None:
    with penstock.compile(build(), devices=["lab"], cache=tmp_path, shapes={"x": (1, 2)}):
        pass
    for given in (None, {"x": (1, 2)}, {0: (1, 2)}):
        (each,) = explain_model(build(), Cache(tmp_path), ["lab"], shapes=given)[1]
        assert each.explanation.found
    with penstock.compile(build(), devices=["lab"], cache=tmp_path) as compiled:
        assert compiled.receipt.compiles == 0


def test_nothing_is_compiled_and_nothing_is_written(tmp_path: Path) -> None:
    lab = LabDevice()
    explain_model(build(), Cache(tmp_path / "none"), [lab, "reference"], **policy_for(CASES[0]))
    assert lab.compiles == 0
    assert not (tmp_path / "none").exists()


def test_wrong_arguments(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(InputError, match="must be a path"):
        explain_model(build(), 5)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        explain_model(5, cache)  # type: ignore[arg-type]
    with pytest.raises(UnknownSignature):
        explain_model(build(), cache, ["reference"], signature="none")
    for wrong in ((1, -2), (1.5,), 3):
        with pytest.raises(InputError, match="whole numbers"):
            explain_model(build(), cache, ["reference"], shapes={"x": wrong})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no input"):
        explain_model(build(), cache, ["reference"], shapes={"z": (1, 2)})
    for position in (-1, 1, True, 1.0):
        with pytest.raises(InputError, match="no input has the position"):
            explain_model(build(), cache, ["reference"], shapes={position: (1, 2)})  # type: ignore[arg-type]
    with pytest.raises(PlacementError):
        explain_model(build(), cache, ["lab"], policy=penstock.Policy(require={"ADD": "reference"}))
