"""`penstock doctor --capsule` and `--forget`, and `penstock replay`: what they print, write and
exit with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock import capsules
from penstock.cache.verdicts import DriverVerdicts
from penstock.cli.application import app
from penstock.drivers.sample import create as sample
from penstock.export import tflite
from penstock.hal import Device
from penstock.ir import DType, ModelBuilder, Operand
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import DriverEntry
from penstock.testing.doubles import WrongDevice

Run = Callable[..., Result]


class Entry:
    """An installed driver, as its distribution's metadata has it."""

    name = "liar"

    def load(self) -> Callable[[], Device]:
        return lambda: WrongDevice(sample(), "ADD", name="liar")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The program, on a machine with a driver `liar` more, and a state directory of its own."""
    from penstock.runtime import comparison, discovery, reproducing, session
    from penstock.runtime.entries import installed_entries

    def find() -> list[DriverEntry]:
        return [*installed_entries(), Entry()]

    manager = Manager(find)
    # First: what is put back is bound to the manager of the time when it is loaded.
    monkeypatch.setattr(penstock, "devices", manager.infos)
    for module in (discovery, session, comparison, reproducing):
        monkeypatch.setattr(module, "manager", manager)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, 4), "private_input")
    k = b.constant(np.array([1, 2, 3, 4], np.float32), "k")
    for index, kind in enumerate(("RELU", "ADD", "RELU")):
        given = [x, k] if kind == "ADD" else [x]
        (x,) = b.operation(kind, given, [Operand(DType.FLOAT32, (1, 4), name=f"private{index}")])
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite.write(b.build([x])))
    return path


@pytest.fixture
def written(run: Run, model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "c.capsule"
    result = run("doctor", "--capsule", path, "--model", model, "--device", "liar")
    assert result.exit_code == 0, result.output
    return path


def verify(model: Path) -> None:
    """A program that asks for shadow verification, and gets a verdict."""
    with penstock.compile(model, devices=["liar"], cache=None, policy=Policy(shadow=1)) as compiled:
        compiled(np.ones((1, 4), np.float32))
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
        assert compiled.shadow.report().departed == 1


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_failure_is_brought_about_and_repeats(
    run: Run, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = capsules.read(written)
    assert [o.type for o in found.manifest.failure.operations] == ["ADD"]
    result = run("replay", written)
    assert result.exit_code == 1
    assert "repeats on liar, version " in result.stdout
    assert result.stderr == "penstock: error: the failure repeats on liar\n"
    monkeypatch.setenv("PENSTOCK_ISOLATE", "lair")
    other = run("replay", written, "--device", "sample")
    assert other.exit_code == 0, other.output
    assert "does not repeat in 3 runs on sample" in other.stdout
    assert other.stderr.startswith("penstock: warning: knob isolate (")
    assert other.stderr.endswith("is 'liar' meant?\n")
    assert other.stderr.count("\n") == 1


def test_json_is_one_object(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "c"
    made = parsed(run("doctor", "--capsule", path, "--model", model, "--device", "liar", "--json"))
    assert made["written"] == str(path)
    assert made["failure"]["operations"] == [{"index": 1, "type": "ADD", "name": ""}]
    again = run("replay", path, "--json")
    assert again.exit_code == 1
    found = parsed(again)
    assert (found["repeats"], found["device"], found["runs"]) == (True, "liar", 1)
    assert found["distance"]["measure"] == "relative"
    assert found["capsule"]["failure"]["device"]["name"] == "liar"


def test_names_are_kept_when_asked_for(
    run: Run, model: Path, written: Path, tmp_path: Path
) -> None:
    assert b"private" not in written.read_bytes()
    path = tmp_path / "named"
    arguments = ("doctor", "--capsule", path, "--model", model, "--device", "liar", "--names")
    assert run(*arguments).exit_code == 0
    assert b"private1" in path.read_bytes()


def test_real_inputs_go_into_it(run: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.5, 2.5, 3.5, 4.5]], np.float32))
    path = tmp_path / "c"
    result = run(
        *("doctor", "--capsule", path, "--model", model, "--device", "liar"),
        *("--input", tmp_path / "x.npy"),
    )
    assert result.exit_code == 0, result.output
    assert capsules.read(path).inputs[0].tolist() == [[1.5, 2.5, 3.5, 4.5]]
    assert b"x.npy" not in path.read_bytes()


def test_doctor_writes_no_capsule_without_a_failure(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "c"
    result = run("doctor", "--capsule", path, "--model", model, "--device", "sample")
    assert result.exit_code == 1
    assert "nothing failed on sample, and no capsule was written" in result.stderr
    assert not path.exists()


def test_the_last_failure_is_written_without_input_data_and_replayed(
    run: Run, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    nothing = run("doctor", "--capsule", path)
    assert nothing.exit_code == 1
    assert "no failure of a driver was kept here" in nothing.stderr
    verify(model)
    result = run("doctor", "--capsule", path)
    assert result.exit_code == 0, result.output
    assert "kept when it happened" in result.stdout
    words = " ".join(result.stdout.split())
    assert "repeats it with inputs that it draws; the knob keep_failure_data keeps" in words
    again = run("replay", path)
    assert again.exit_code == 1, again.output
    assert "repeats with drawn inputs, since the capsule has no input data" in again.stdout
    assert json.loads(run("replay", path, "--json").stdout)["drawn"] is True


def test_the_last_failure_is_written_with_data_where_that_was_kept(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEEP_FAILURE_DATA", "1")
    verify(model)
    path = tmp_path / "c"
    assert run("doctor", "--capsule", path).exit_code == 0
    assert run("replay", path).exit_code == 1


def test_doctor_lists_verdicts_and_forgets_them(run: Run, model: Path) -> None:
    verify(model)
    (verdict,) = DriverVerdicts().every()
    shown = run("doctor", "--json")
    assert [v["key"] for v in parsed(shown)["verdicts"]] == [verdict.key]
    assert verdict.short in run("doctor").stdout
    unknown = run("doctor", "--forget", "zz")
    assert unknown.exit_code == 2
    assert "no verdict begins so" in unknown.stderr
    result = run("doctor", "--forget", verdict.short)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("forgotten: ADD on liar, version ")
    assert DriverVerdicts().every() == []
    verify(model)
    assert parsed(run("doctor", "--forget", "all", "--json")) == {"forgotten": 1}
    assert "verdicts" in parsed(run("doctor", "--json"))


def test_a_plan_says_what_is_refused_and_how_to_lift_it(run: Run, model: Path) -> None:
    verify(model)
    (verdict,) = DriverVerdicts().every()
    plan = parsed(run("plan", model, "--device", "liar", "--device", "reference", "--json"))
    reasons = plan["plan"]["operations"][1]["reasons"]["liar"]
    assert f"penstock doctor --forget {verdict.short}" in reasons


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["doctor", "--capsule", ""], 2, "needs the name of a file"),
        (["doctor", "--capsule", "{tmp}"], 1, "it is a directory"),
        (["doctor", "--capsule", "{tmp}/none/c"], 1, "there is no directory"),
        (["doctor", "--capsule", "{tmp}/c", "--model", "m"], 2, "go together"),
        (["doctor", "--capsule", "{tmp}/c", "--names"], 2, "need --model and --device"),
        (["doctor", "--model", "m"], 2, "go with --capsule"),
        (["doctor", "--seed", "1"], 2, "go with --capsule"),
        (["doctor", "--capsule", "{tmp}/c", "--seed", "1"], 2, "need --model and --device"),
        (["doctor", "--last-crash", "--capsule", "{tmp}/c"], 2, "one of --last-crash"),
        (["doctor", "--last-crash", "--forget", "all"], 2, "one of --last-crash"),
        (["doctor", "--forget", "all", "--capsule", "{tmp}/c"], 2, "one of --last-crash"),
        (["doctor", "--last-crash", "--model", "m"], 2, "go with --capsule"),
        (["doctor", "--forget", "all", "--names"], 2, "go with --capsule"),
        (["doctor", "--capsule", "{tmp}/c", "--model", "m", "--device", "x"], 2, "no device"),
        (
            ["doctor", "--capsule", "{tmp}/c", "--model", "m", "--device", "reference"],
            2,
            "what the others are compared with",
        ),
        (
            ["doctor", "--capsule", "{tmp}/c", "--model", "{tmp}/m", "--device", "liar"],
            3,
            "No such",
        ),
        (["replay"], 2, "FILE"),
        (["replay", ""], 2, "FILE is empty"),
        (["replay", "{tmp}/missing"], 3, "No such file"),
        (["replay", "{tmp}"], 3, "not a regular file"),
        (["replay", "{tmp}/net.tflite"], 3, "no capsule"),
        (["replay", "{tmp}/cut"], 3, "cut short"),
        (["replay", "{tmp}/good", "--device", "x"], 2, "no device is named 'x'"),
        (["replay", "{tmp}/good", "--runs", "0"], 2, "runs"),
    ],
)
def test_wrong_usage_and_bad_files_are_one_line(
    run: Run, model: Path, written: Path, arguments: list[str], code: int, words: str
) -> None:
    place = model.parent
    (place / "good").write_bytes(written.read_bytes())
    (place / "cut").write_bytes(written.read_bytes()[:-9])
    result = run(*(a.replace("{tmp}", str(place)) for a in arguments))
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_capsule_of_a_missing_device_is_refused(
    run: Run, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.runtime.discovery import Manager

    monkeypatch.setattr("penstock.runtime.discovery.manager", Manager())
    result = run("replay", written)
    assert result.exit_code == 2
    assert "the capsule's device is not here: no device is named 'liar'" in result.stderr
