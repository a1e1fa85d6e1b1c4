"""`penstock compare`: what it prints and writes where a result departs, and where none does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

import penstock
from penstock.cli.application import app
from penstock.drivers.sample import create as sample
from penstock.export import tflite
from penstock.hal import Device
from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.runtime.discovery import Manager
from penstock.runtime.distance import Distance
from penstock.runtime.entries import DriverEntry
from penstock.testing.contract.cases import state
from penstock.testing.doubles import LyingDevice, SubsetDevice

Run = Callable[..., Result]


class Liar(LyingDevice):
    """Wrong in what ADD gives, right in all else."""

    def __init__(self) -> None:
        def supports(model: Model, index: int) -> bool:
            return model.operations[index].type == "ADD"

        super().__init__(SubsetDevice(sample(), "liar", supports), "values")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program, on a machine with a driver `liar` more."""
    from penstock.runtime import comparison, discovery, session
    from penstock.runtime.entries import installed_entries

    def find() -> list[DriverEntry]:
        return [*installed_entries(), Entry()]

    manager = Manager(find)
    # First: what is put back is bound to the manager of the time when it is loaded.
    monkeypatch.setattr(penstock, "devices", manager.infos)
    for module in (discovery, session, comparison):
        monkeypatch.setattr(module, "manager", manager)
    monkeypatch.setenv("TERM", "dumb")
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


class Entry:
    """An installed driver, as its distribution's metadata has it."""

    name = "liar"

    def load(self) -> Callable[[], Device]:
        return Liar


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, 4), "x")
    k = b.constant(np.array([1, 2, 3, 4], np.float32), "k")
    for index, kind in enumerate(("RELU", "TANH", "ADD", "RELU", "ADD")):
        given = [x, k] if kind == "ADD" else [x]
        (x,) = b.operation(kind, given, [Operand(DType.FLOAT32, (1, 4), name=f"op{index}")])
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite.write(b.build([x])))
    return path


def test_ok_where_nothing_departs(run: Run, model: Path) -> None:
    result = run("compare", model, "--device", "sample", "--against", "reference")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "OK: sample took 4 of 5 operations, and no result departs from reference's (faithful)"
    ]


def test_accumulated_rounding_is_a_note_and_no_failure(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.runtime import comparison

    measured = comparison.compare

    def drifting(*args: Any, **kwargs: Any) -> comparison.Comparison:
        found = measured(*args, **kwargs)
        return replace(found, outputs=Distance("relative", 1.35, 2e-4, output=9))

    monkeypatch.setattr(comparison, "compare", drifting)
    result = run("compare", model, "-d", "sample")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    verdict, _ = result.stdout.splitlines()
    assert verdict.startswith("each operation agrees, the whole model does not: sample took 4 of 5")
    assert "output 9 is off by 1.35 of the largest value (0.0002 allowed)" in verdict
    found = parsed(run("compare", model, "-d", "sample", "--json"))
    assert found["departs"] is False
    assert found["devices"][0]["outputs"]["departs"] is True


def test_the_first_operation_that_departs_is_named_and_written(
    run: Run, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cut.tflite"
    result = run("compare", model, "-d", "liar", "--out", out, "--seed", 3)
    assert result.exit_code == 1
    first, second, third = result.stdout.splitlines()
    assert first.startswith("operation 2 (ADD, 'op2') departs on liar: output 0 is off by ")
    assert second.startswith("(liar took 2 of 5 operations; found in ")
    assert third == f"written: {out}, {out.with_suffix('.npz')}"
    assert result.stderr == "penstock: error: a result departs on liar\n"
    with np.load(out.with_suffix(".npz")) as arrays:
        (given,) = (o.name for o in penstock.load(out).inputs)
        (wanted,) = (o.name for o in penstock.load(out).outputs)
        assert sorted(arrays) == sorted([given, f"expected/{wanted}"])
        with penstock.compile(out, devices=["reference"], cache=None) as compiled:
            assert compiled.plan.operations[0].type == "ADD"
            assert compiled(arrays[given])[0].tobytes() == arrays[f"expected/{wanted}"].tobytes()
    again = run("run", out, out.with_suffix(".npz"), "-d", "reference", "--json")
    assert again.exit_code == 0, again.output
    assert [i["name"] for i in parsed(again)["inputs"]] == [given]


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_json_is_one_object(run: Run, model: Path) -> None:
    result = run("compare", model, "-d", "sample", "-d", "liar", "--json")
    assert result.exit_code == 1
    found = parsed(result)
    assert found["departs"] is True
    assert [d["device"] for d in found["devices"]] == ["sample", "liar"]
    assert [d["departs"] for d in found["devices"]] == [False, True]
    departure = found["devices"][1]["departure"]
    assert (departure["index"], departure["type"], departure["name"]) == (2, "ADD", "op2")
    assert departure["distance"]["measure"] == "relative"
    assert list(found["devices"][0]["refused"]) == ["1"]
    assert found["inputs"][0]["source"] == "random, seed 0"
    assert found["written"] == []


def test_real_inputs_are_taken_as_by_run(run: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3, 4]], np.float32))
    found = parsed(run("compare", model, tmp_path / "x.npy", "-d", "sample", "--json"))
    assert found["inputs"][0]["source"] == str(tmp_path / "x.npy")
    assert found["departs"] is False


def test_state_and_the_class_exact(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "state.tflite"
    path.write_bytes(tflite.write(state().model))
    arguments = ("compare", path, "--accuracy", "exact")
    result = run(*arguments, "-d", "reference", "--against", "sample")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("no result departs from sample's (exact)\n")
    result = run(*arguments, "-d", "sample")
    assert result.stdout == "sample took 0 of 2 operations: there is nothing to compare\n"
    assert result.exit_code == 1
    assert result.stderr == (
        "penstock: error: there is nothing to compare: no device took an operation\n"
    )


@pytest.fixture
def open_batch(tmp_path: Path) -> Path:
    """Two inputs of an unknown batch, side by side; what shape that gives is for inference."""
    b = ModelBuilder()
    x, y = (b.input(DType.FLOAT32, (None, 4), name) for name in "xy")
    path = tmp_path / "open.tflite"
    both = b.operation("CONCATENATION", [x, y], [(DType.FLOAT32, None)], {"axis": 1})
    path.write_bytes(tflite.write(b.build(both)))
    return path


def test_an_unknown_dimension_is_that_of_the_input_or_of_the_option_or_one(
    run: Run, open_batch: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 4), np.float32), y=np.ones((3, 4), np.float32))
    for arguments, batch in (
        ((), 1),
        (("--shape", "x=2,4", "--shape", "y=2,4"), 2),
        ((tmp_path / "in.npz",), 3),
    ):
        found = parsed(run("compare", open_batch, *arguments, "-d", "xnnpack", "--json"))
        assert [i["shape"] for i in found["inputs"]] == [[batch, 4], [batch, 4]]
        assert (found["devices"][0]["supported"], found["devices"][0]["refused"]) == (1, {})


@pytest.mark.parametrize(
    ("shapes", "code", "complaint"),
    [
        (["x=2,4", "y=3,4"], 3, "operation 0 (CONCATENATION)"),
        (["y=3,4"], 3, "(taken for x=1,4; --shape gives another shape)"),
        (["x=2,5"], 2, "--shape x=2,5: the input is float32"),
        (["z=1"], 2, "no input is named 'z'"),
    ],
)
def test_shapes_that_do_not_fit_are_one_line(
    run: Run, open_batch: Path, shapes: list[str], code: int, complaint: str
) -> None:
    options = [text for shape in shapes for text in ("--shape", shape)]
    result = run("compare", open_batch, *options, "-d", "sample")
    assert result.exit_code == code, result.output
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["-d", "reference"], 2, "--device reference would be compared with itself"),
        (["-d", "nope"], 2, "no device is named 'nope'"),
        (["--against", "nope"], 2, "no device is named 'nope'"),
        (["-d", "sample", "--out", "x.txt"], 2, "the name must end in .tflite"),
        (["-d", "sample", "--out", "no_such_directory/x.tflite"], 1, "there is no directory"),
        (["-d", "sample", "--accuracy", "perfect"], 2, "--accuracy 'perfect' is not one of"),
        (["random", "random", "-d", "sample"], 2, "2 inputs given"),
    ],
)
def test_impossible_comparison_is_one_error_line(
    run: Run, model: Path, arguments: list[str], code: int, complaint: str
) -> None:
    result = run("compare", model, *arguments)
    assert result.exit_code == code, result.output
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_model_is_a_bad_file(run: Run, tmp_path: Path) -> None:
    result = run("compare", tmp_path / "missing.tflite", "-d", "sample")
    assert result.exit_code == 3
    assert "No such file" in result.stderr
