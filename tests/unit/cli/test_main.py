"""The application: options anywhere, errors as one line, exit codes, and the commands on a small
model.
"""

from __future__ import annotations

import errno
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock import errors
from penstock.cli.application import app
from penstock.cli.failures import FileError, UsageError, exit_code, message
from penstock.cli.plan import short
from penstock.cli.program import hoist
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from penstock.knobs import KNOBS
from tests.support_programs import run_python

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TERM", "dumb")
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x + [1, 2]), x: float32[1, 2]."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 2), "x")
    one = builder.constant(np.array([1, 2], np.float32), "one")
    (sum_,) = builder.operation("ADD", [x, one], [(DType.FLOAT32, (1, 2))])
    (y,) = builder.operation("RELU", [sum_], [(DType.FLOAT32, (1, 2))])
    path = tmp_path / "add.tflite"
    path.write_bytes(tflite.write(builder.build([y])))
    return path


def one_line(result: Result, code: int) -> str:
    """The error line of a failed command, which must be all there is."""
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("penstock: error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr


def parsed(result: Result) -> Any:
    """The one JSON object of a `--json` command."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_options_of_the_root_may_stand_anywhere() -> None:
    assert hoist(["run", "m", "--json", "x", "--debug", "--json"]) == [
        "--json",
        "--debug",
        "run",
        "m",
        "x",
    ]


@pytest.mark.parametrize("more", [(), ("--json",), ("--debug",)])
def test_an_interruption_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(penstock, "devices", interrupted)
    result = run("devices", *more)
    assert result.exit_code == 130
    assert result.stderr.endswith("penstock: error: interrupted\n")
    assert ("Traceback" in result.stderr) is ("--debug" in more)
    if "--json" in more:
        assert json.loads(result.stdout)["error"]["message"] == "interrupted"


def test_arguments_behind_two_dashes_are_not_hoisted() -> None:
    assert hoist(["run", "--", "--json"]) == ["run", "--", "--json"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (errors.NotAvailable("x"), 2),
        (errors.UnknownSignature("x"), 2),
        (FileError("f", "x"), 3),
        (errors.TruncatedModel("x"), 3),
        (errors.InputError("x"), 1),
        (errors.PlacementError("x"), 1),
        (errors.GeneralFailure("x"), 1),
        (ZeroDivisionError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_messages_are_one_line_and_bugs_are_named() -> None:
    assert (
        message(errors.PlacementError("no device", {"a": "broken", "b": "gone"}))
        == "no device; a: broken; b: gone"
    )
    assert message(ZeroDivisionError("x\ny")) == "internal error: ZeroDivisionError: x; y"
    assert message(errors.InputError()) == "InputError"


def test_without_arguments_help_is_printed(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert "Exit codes" in result.stdout
    for command in (
        "run",
        "inspect",
        "plan",
        "dump",
        "bench",
        "devices",
        "doctor",
        "knobs",
        "cache",
    ):
        assert command in result.stdout


def test_version(run: Run) -> None:
    assert run("--version").stdout.startswith("penstock ")
    assert set(parsed(run("--version", "--json"))) == {"version"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run"],
        ["run", "m.tflite", "--top", "0"],
        ["run", "m.tflite", "--task", "guess"],
        ["plan", "m.tflite", "--accuracy"],
        ["run", "m.tflite", "--normalize", "guess"],
        ["plan", "m.tflite", "--dot", "-", "--svg", "-"],
        ["plan", "m.tflite", "--svg", "b.png"],
        ["plan", "m.tflite", "--shape", "x=two"],
        ["dump", "m.tflite"],
        ["dump", "m.tflite", "--after", "lunch"],
        ["inspect", "m.tflite", "--nonsense"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run: Run, arguments: list[str]) -> None:
    one_line(run(*arguments), 2)


@pytest.mark.parametrize("command", ["run", "inspect", "plan", "bench"])
def test_a_missing_model_is_a_bad_file(run: Run, tmp_path: Path, command: str) -> None:
    assert "missing.tflite: No such file" in one_line(run(command, tmp_path / "missing.tflite"), 3)


@pytest.mark.parametrize("command", ["run", "inspect", "plan", "bench"])
def test_a_file_that_is_no_model_is_a_bad_file(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "x.tflite").write_bytes(b"this is not a model")
    line = one_line(run(command, tmp_path / "x.tflite"), 3)
    assert "x.tflite" in line


def test_a_directory_is_a_bad_file(run: Run, tmp_path: Path) -> None:
    assert "directory" in one_line(run("inspect", tmp_path), 3)


def test_debug_adds_the_traceback_and_keeps_the_line(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ["--debug", "inspect", tmp_path / "x"],
        ["inspect", tmp_path / "x", "--debug"],
    ):
        result = run(*arguments)
        assert result.exit_code == 3
        assert "Traceback (most recent call last)" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("penstock: error: ")


def test_json_error_is_one_object(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tflite").write_bytes(b"")
    result = run("inspect", tmp_path / "x.tflite", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["type"] == "NotAModel"
    assert result.stderr.count("\n") == 1


def test_an_unexpected_error_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(penstock, "devices", explode)
    assert "internal error: RuntimeError: boom" in one_line(run("devices"), 1)


def test_knobs_lists_every_knob(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", "3")
    every = {k["name"]: k for k in parsed(run("knobs", "--json"))["knobs"]}
    assert set(every) == set(KNOBS)
    assert every["num_threads"]["value"] == 3
    assert every["num_threads"]["source"] == "environment PENSTOCK_NUM_THREADS"
    assert "num_threads" in run("knobs").stdout


@pytest.mark.parametrize(
    ("value", "words"),
    [("many", "must be a whole number, not 'many'"), ("-1", "must be 0 or more, not -1")],
)
def test_a_bad_knob_is_a_problem_among_the_good_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", value)
    data = parsed(run("knobs", "--json"))
    every = {k["name"]: k for k in data["knobs"]}
    assert every["num_threads"]["value"] is None
    assert words in every["num_threads"]["problem"]
    assert every["allow_fallback"]["problem"] is None
    assert words in run("knobs").stdout
    doctor = run("doctor")
    assert doctor.exit_code == 1
    assert words in doctor.stdout
    assert words in doctor.stderr
    assert "numpy" in doctor.stdout
    as_json = run("doctor", "--json")
    assert as_json.exit_code == 1
    assert words in json.loads(as_json.stdout)["problems"][0]


def test_a_settings_file_that_is_no_toml_is_one_problem(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "knobs.toml").write_text("num_threads = = 2", "utf-8")
    monkeypatch.setattr("penstock.knobs.settings_path", lambda: tmp_path / "knobs.toml")
    problems = parsed(run("knobs", "--json"))["problems"]
    assert len(problems) == 1
    assert "not valid TOML" in problems[0]
    assert run("doctor").exit_code == 1


def test_names_that_are_no_knobs_and_devices_that_are_not_there_are_mentioned(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "knobs.toml").write_text("threads = 2", "utf-8")
    monkeypatch.setattr("penstock.knobs.settings_path", lambda: tmp_path / "knobs.toml")
    monkeypatch.setenv("PENSTOCK_THREADS", "2")
    noted = run("doctor")
    assert noted.exit_code == 0
    assert "environment variable PENSTOCK_THREADS is no knob's" in noted.stdout
    assert "settings file names 'threads'" in noted.stdout
    monkeypatch.setenv("PENSTOCK_DEVICES", "reference, quantum")
    refused = run("doctor")
    assert refused.exit_code == 1
    assert "names 'quantum'" in refused.stdout


def test_nonsense_of_isolation_is_a_problem_beneath_the_whole_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value, words in (
        ("PENSTOCK_ISOLATE", "reference=perhaps", "has 'reference=perhaps'"),
        ("PENSTOCK_ISOLATE", "referense", "is 'reference' meant?"),
        ("PENSTOCK_SERVICES", "reference", "has 'reference'"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            report = run("doctor", "--json")
            assert report.exit_code == 1
            data = json.loads(report.stdout)
            assert [words in problem for problem in data["problems"]] == [True]
            assert any(d["name"] == "reference" and d["usable"] for d in data["devices"])


def test_a_device_that_the_environment_misspells_is_wrong_usage(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DEVICES", "reference,nope")
    for command in (("run", model, "random"), ("plan", model)):
        line = one_line(run(*command), 2)
        assert "the knob devices (PENSTOCK_DEVICES) is 'reference,nope': no device is named" in line


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("KEEP_FAILURES", "maybe", "must be true or false, not 'maybe'"),
        ("DRIVER_SETTINGS", "later", "must be NAME=VALUE, ..., not 'later'"),
        ("STATE_DIR", "state", "must be an absolute path, not 'state'"),
        ("TENSOR_LIMIT_MIB", "-1", "must be a whole number, 0 or more, not '-1'"),
        ("DEVICES", ",,", "is ',,', which names no device: give names with commas between them"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_whatever_compiles(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"PENSTOCK_{variable}", value)
    line = one_line(run("run", model, "random"), 2)
    assert f"knob {variable.lower()}" in line
    assert words in line
    with pytest.raises(errors.InputError, match=re.escape(words)):
        penstock.compile(str(model))
    assert run("doctor").exit_code == 1


def test_devices_have_a_reason_when_they_are_not_usable(run: Run) -> None:
    found = {d["name"]: d for d in parsed(run("devices", "--json"))["devices"]}
    assert {"null", "sample", "reference"} <= set(found)
    assert all(d["usable"] or d["reason"] for d in found.values())
    assert "reference" in run("devices").stdout


def test_doctor_lists_packages_devices_limits_and_changed_knobs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_FALLBACK", "off")
    data = parsed(run("doctor", "--json"))
    assert data["packages"]["numpy"] == np.__version__
    assert data["limits"]["threads"] >= 1
    changed = {k["name"]: k["value"] for k in data["knobs"]}
    assert set(changed) == {"allow_fallback", "cache_dir", "calibrate", "key_store", "state_dir"}
    assert changed["allow_fallback"] is False
    text = run("doctor").stdout
    assert "numpy" in text
    assert "allow_fallback" in text


def test_doctor_reports_another_project_s_distribution_of_the_same_import_name(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert parsed(run("doctor", "--json"))["problems"] == []
    metadata = tmp_path / "penstock-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 0.1.0\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem.startswith("the distribution 'penstock' 0.1.0 of another project is installed")
    assert "pip uninstall penstock penstock-nn" in problem


def test_doctor_names_the_delegate_that_fits_and_why_others_do_not(run: Run) -> None:
    data = parsed(run("doctor", "--json"))
    told = {d["name"]: d for d in data["delegates"]}
    assert list(told) == ["CoreMLDelegate", "GpuDelegate", "HexagonDelegate", "NnapiDelegate"]
    assert all(d["why"] for d in told.values())
    assert data["delegate"] == next((n for n, d in told.items() if d["fits"]), None)
    text = " ".join(run("doctor").stdout.split())
    best = data["delegate"]
    assert (f"delegate for this machine: {best}" if best else "no built-in delegate fits") in text


def test_doctor_says_where_the_cache_its_registries_and_its_key_are(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for knob in ("CACHE_DIR", "STATE_DIR"):
        monkeypatch.delenv(f"PENSTOCK_{knob}")
    monkeypatch.setattr(
        "penstock.knobs.user_directory", lambda kind: tmp_path / str(kind) / "penstock"
    )
    state = tmp_path / "state" / "penstock"
    assert parsed(run("doctor", "--json"))["places"] == {
        "cache_directory": str(tmp_path / "cache" / "penstock" / "compiled"),
        "state_directory": str(state),
        "key_store": "file",
        "key": str(state / "seals" / "key"),
    }
    assert str(state / "seals" / "key") in run("doctor").stdout
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "auto")
    monkeypatch.setattr("penstock.sealed.keys.quiet_backend", object)
    held = parsed(run("doctor", "--json"))["places"]
    assert (held["key_store"], held["key"]) == ("keyring", "the system's key store")
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "drawer")
    wrong = run("doctor", "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["places"]["key"] is None
    assert list(tmp_path.rglob("*")) == []


def test_inspect_describes_the_model(run: Run, model: Path) -> None:
    data = parsed(run("inspect", model, "--json"))
    assert [i["shape"] for i in data["inputs"]] == [[1, 2]]
    assert data["operations"] == {"ADD": 1, "RELU": 1}
    assert data["nbytes"] == model.stat().st_size
    text = run("inspect", model).stdout
    assert "float32[1, 2]" in text
    assert "RELU" in text


def test_plan_shows_where_each_operation_runs_and_why_not_elsewhere(run: Run, model: Path) -> None:
    plan = parsed(run("plan", model, "--device", "sample", "--json"))["plan"]
    assert [o["device"] for o in plan["operations"]] == ["sample", "sample"]
    assert "sample" in run("plan", model, "--device", "sample").stdout


def test_plan_compiles_and_shows_what_failed(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))

    def full(*_: Any) -> None:
        raise errors.GeneralFailure("no room")

    monkeypatch.setattr("penstock.drivers.sample.SampleDevice.prepare_model", full)
    plan = parsed(run("plan", model, "--device", "sample", "--json"))["plan"]
    assert {o["device"] for o in plan["operations"]} == {"reference"}
    reasons = {o["reasons"]["sample"] for o in plan["operations"]}
    assert reasons == {"failed to compile: GeneralFailure: no room"}
    told = " ".join(run("plan", "--help").stdout.replace("│", " ").split())
    assert "If a device fails to compile a step, the plan shows the device that took it" in told


def test_an_unknown_device_fails_with_the_known_names(run: Run, model: Path) -> None:
    line = one_line(run("plan", model, "--device", "quantum"), 2)
    assert "quantum" in line
    assert "reference" in line


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """relu(x) and round(x), of which the sample device knows only the first."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    (middle,) = builder.operation("RELU", [x], [(DType.FLOAT32, (2,))])
    (y,) = builder.operation("ROUND", [middle], [(DType.FLOAT32, (2,))])
    path = tmp_path / "half.tflite"
    path.write_bytes(tflite.write(builder.build([y])))
    return path


def test_failed_plan_shows_reasons_of_each_device(run: Run, half: Path) -> None:
    result = run("plan", half, "-d", "sample")
    assert result.exit_code == 1
    assert result.stderr == "penstock: error: no plan: 1 of 2 operations has no device (ROUND)\n"
    relu, round_ = result.stdout.splitlines()[-2:]
    assert "RELU" in relu
    assert relu.rstrip().endswith("sample")
    assert "no device" in round_
    assert "sample: " in round_


def test_failed_plan_has_reasons_in_json(run: Run, half: Path) -> None:
    result = run("plan", half, "-d", "sample", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["plan"] is None
    assert [o["devices"] for o in data["operations"]] == [["sample"], []]
    assert data["operations"][1]["reasons"]["sample"]
    assert data["error"]["type"] == "PlacementError"


@pytest.mark.parametrize(("option", "beginning"), [("--dot", "digraph"), ("--svg", "<svg")])
def test_a_plan_written_to_a_dash_is_all_there_is_on_stdout(
    run: Run,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    beginning: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("plan", model, option, "-")
    assert result.exit_code == 0
    assert result.stdout.startswith(beginning)
    assert "plan:" not in result.stdout.splitlines()[-1]
    assert not (tmp_path / "-").exists()
    assert run("plan", model, option, "-", "--json").exit_code == 2


def test_plan_writes_dot_and_svg(run: Run, model: Path, tmp_path: Path) -> None:
    dot, svg = tmp_path / "plan.dot", tmp_path / "plan.svg"
    result = run("plan", model, "--device", "sample", "--dot", dot, "--svg", svg)
    assert result.exit_code == 0, result.output
    assert dot.read_text("utf-8").startswith("digraph")
    assert svg.read_text("utf-8").startswith("<svg")
    dot.unlink()
    result = run("plan", model, "--device", "sample", "--dot", dot, "--svg", "-")
    assert result.stdout.startswith("<svg")
    assert dot.exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [("plan", "--dot"), ("plan", "--svg"), ("run", "--trace"), ("run", "--out")],
)
def test_unwritable_output_is_refused_before_the_run(
    run: Run, tmp_path: Path, command: str, option: str
) -> None:
    missing = tmp_path / "no such model"
    ending = ".svg" if option == "--svg" else ".npz"
    line = one_line(run(command, missing, option, tmp_path / "nowhere" / f"y{ending}"), 1)
    assert "cannot write" in line
    assert "there is no directory" in line
    (tmp_path / f"directory{ending}").mkdir()
    assert "it is a directory" in one_line(
        run(command, missing, option, tmp_path / f"directory{ending}"), 1
    )


@pytest.mark.parametrize("name", ["y.gif", "y.pdf", "y", ""])
def test_a_kind_of_file_that_out_does_not_write_is_wrong_usage(run: Run, name: str) -> None:
    assert "--out" in one_line(run("run", "no such model", "random", "--out", name), 2)


def test_an_answer_that_cannot_be_written_is_printed_all_the_same(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    arguments = ("run", model, "random", "--device", "sample", "--out", tmp_path / "y.npz")
    people = run(*arguments)
    assert people.exit_code == 1
    assert "plan: 1 step" in people.stdout
    assert "cannot write" in people.stderr
    programs = run(*arguments, "--json")
    assert programs.exit_code == 1
    data = json.loads(programs.stdout)
    assert data["task"] == "outputs"
    assert "No space left" in data["error"]["message"]


@pytest.mark.parametrize("score", ["nan", "-0.1", "1.5"])
def test_a_score_outside_0_to_1_is_wrong_usage(run: Run, model: Path, score: str) -> None:
    assert "--min-score" in one_line(run("run", model, "random", f"--min-score={score}"), 2)


def test_empty_names_are_wrong_usage(run: Run, model: Path) -> None:
    assert "MODEL is empty" in one_line(run("run", ""), 2)
    assert "INPUT 1 is empty" in one_line(run("run", model, ""), 2)


@pytest.mark.parametrize("name", ["a.png", "a.npy", "a.npz", "a.wav", "a"])
def test_an_empty_file_is_said_to_be_empty(
    run: Run, model: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).touch()
    assert f"{name}: the file is empty" in one_line(run("run", model, tmp_path / name), 3)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["nosuch"], "penstock"),
        (["cache", "rm"], "penstock cache"),
        (["run", "--nosuch"], "penstock run"),
    ],
)
def test_unknown_command_or_option_names_the_help(
    run: Run, arguments: list[str], where: str
) -> None:
    line = one_line(run(*arguments), 2)
    assert "No such " in line
    assert line.endswith(f"; '{where} --help' lists what there is\n")


def test_a_device_named_twice_is_wrong_usage(run: Run, model: Path) -> None:
    line = one_line(run("run", model, "random", "-d", "sample", "-d", "sample"), 2)
    assert "device 'sample' is named twice; once is enough" in line


def test_a_device_that_computes_nothing_is_noted(run: Run, model: Path) -> None:
    assert "the outputs mean nothing" in run("run", model, "random", "-d", "null").stdout
    data = parsed(run("run", model, "random", "-d", "null", "--json"))
    assert any("null computes nothing" in note for note in data["notes"])
    assert "mean nothing" not in run("run", model, "random", "-d", "sample").stdout


@pytest.mark.parametrize("stage", ["load", "partition", "compile"])
def test_dump_prints_the_value_of_each_stage(run: Run, model: Path, stage: str) -> None:
    text = run("dump", model, "--after", stage, "--device", "sample").stdout
    assert ("ADD" if stage == "load" else "sample") in text
    data = parsed(run("dump", model, "--after", stage, "--device", "sample", "--json"))
    assert data["stage"] == stage
    assert data[stage]


def test_run_answers_and_says_how(run: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[-5, 3]], np.float32))
    data = parsed(
        run(
            "run",
            model,
            tmp_path / "x.npy",
            "--device",
            "sample",
            "--json",
            "--out",
            tmp_path / "y.npz",
        )
    )
    assert data["task"] == "outputs"
    assert (data["values"][0]["min"], data["values"][0]["max"]) == (0.0, 5.0)
    assert data["outputs"] == [
        {"name": data["outputs"][0]["name"], "dtype": "float32", "shape": [1, 2]}
    ]
    assert data["receipt"]["steps"][0]["device"] == "sample"
    assert data["plan"]["devices"] == ["sample"]
    assert set(data["seconds"]) == {"load", "input", "compile", "run", "start", "other"}
    with np.load(tmp_path / "y.npz", allow_pickle=False) as written:
        assert [written[k].tolist() for k in written.files] == [[[0.0, 5.0]]]


def test_times_add_up_to_the_time_since_the_process_began(run: Run, model: Path) -> None:
    before = time.perf_counter()
    seconds = parsed(run("run", model, "random", "--device", "sample", "--json"))["seconds"]
    assert 0 < sum(seconds.values()) < time.perf_counter() - before
    assert all(value >= 0 for value in seconds.values())
    text = run("run", model, "random", "--device", "sample").stdout
    (line,) = re.findall(r"^time: .*$", text, re.MULTILINE)
    units = {"ms": 1e-3, "s": 1.0}
    *stages, total = [float(n) * units[unit] for n, unit in re.findall(r"([\d.]+) (m?s)\b", line)]
    assert len(stages) == len(seconds)
    assert sum(stages) == pytest.approx(total, rel=0.02, abs=5e-4)


COLLECTIONS = """
import gc, sys
from penstock.cli.main import main
sys.argv = ["penstock", "knobs"]
def collections(): return sum(each["collections"] for each in gc.get_stats())
before = collections()
try:
    main()
except SystemExit:
    pass
print(collections() - before, gc.get_freeze_count() > 0)
"""


def test_program_looks_for_no_cycles_when_it_starts_and_ends() -> None:
    printed = run_python("-c", COLLECTIONS, check=True).stdout
    assert printed.splitlines()[-1] == "0 True"


def test_age_of_a_process_is_its_time_since_its_creation() -> None:
    code = "import time; time.sleep(0.2); from penstock.cli.main import age_ns; print(age_ns())"
    before = time.perf_counter_ns()
    age = int(run_python("-c", code, check=True).stdout)
    assert age < time.perf_counter_ns() - before
    if sys.platform == "linux":
        assert age > 200_000_000 - 10_000_000


def test_run_prints_the_plan_and_the_time(run: Run, model: Path) -> None:
    text = run("run", model, "random", "--device", "sample").stdout
    assert "plan: 1 step, 2 operations (sample 2)" in text
    assert "time: load " in text


def test_run_writes_a_chrome_trace(run: Run, model: Path, tmp_path: Path) -> None:
    arguments = ("random", "--device", "sample", "--no-cache", "--trace", tmp_path / "t.json")
    result = run("run", model, *arguments)
    assert result.exit_code == 0, result.output
    events = json.loads((tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    names = {e["name"] for e in events}
    assert {f"load {model.name}", "partition", "compile", "run", "execute step 0"} <= names


def test_a_wrong_shape_and_a_wrong_dtype_are_bad_files(
    run: Run, model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "shape.npy", np.zeros((1, 3), np.float32))
    np.save(tmp_path / "dtype.npy", np.zeros((1, 2), np.float64))
    assert "float32[1, 3]" in one_line(run("run", model, tmp_path / "shape.npy"), 3)
    assert "float64[1, 2]" in one_line(run("run", model, tmp_path / "dtype.npy"), 3)


def test_a_missing_label_file_is_a_bad_file(run: Run, model: Path, tmp_path: Path) -> None:
    line = one_line(run("run", model, "random", "--labels", tmp_path / "l.txt"), 3)
    assert "l.txt: No such file" in line


def test_out_of_something_that_cannot_be_drawn_is_wrong_usage(run: Run, model: Path) -> None:
    line = one_line(run("run", model, "random", "--device", "sample", "--out", "x.png"), 2)
    assert ".npz" in line


def test_out_of_an_answer_that_cannot_be_drawn_is_refused_before_the_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    b = ModelBuilder()
    picture = b.input(DType.FLOAT32, (1, 4, 4, 3), "picture")
    (out,) = b.operation("RELU", [picture], [(DType.FLOAT32, (1, 4, 4, 3))])
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite.write(b.build([out])))
    Image.linear_gradient("L").save(tmp_path / "x.png")
    monkeypatch.setattr(
        penstock.CompiledModel, "run", lambda *_, **__: pytest.fail("the model ran")
    )
    drawn = tmp_path / "y.png"
    for more in ((), ("--task", "outputs")):
        arguments = ("run", path, tmp_path / "x.png", "-d", "reference", "--out", drawn)
        line = one_line(run(*arguments, *more), 1)
        assert "only a detection, segmentation or pose can be drawn" in line
    assert not drawn.exists()


def test_an_unknown_signature_is_wrong_usage(run: Run, model: Path) -> None:
    assert "'other'" in one_line(run("run", model, "random", "--signature", "other"), 2)


def test_bench_measures_the_given_number_of_runs(run: Run, model: Path) -> None:
    data = parsed(
        run("bench", model, "--device", "sample", "--runs", "7", "--warmup", "1", "--json")
    )
    assert data["runs"] == 7
    assert data["min_ns"] <= data["median_ns"] <= data["p90_ns"] <= data["p99_ns"] <= data["max_ns"]
    assert data["runs_per_second"] > 0
    assert data["load_ns"] > 0
    assert data["compile_ns"] > 0
    text = run("bench", model, "--device", "sample", "--runs", "2").stdout
    for word in ("median", "p90", "p99", "throughput", "peak memory"):
        assert word in text


def test_bench_stops_when_its_time_is_over(run: Run, model: Path) -> None:
    data = parsed(run("bench", model, "--device", "sample", "--seconds", "0", "--json"))
    assert data["runs"] == 1


def test_long_operation_names_are_cut_in_tables() -> None:
    assert short("Relu6;bias;fold") == "Relu6"
    assert short("a/" * 40 + "end") == "..." + ("a/" * 40 + "end")[-45:]


def test_bench_tunes_and_a_later_one_remembers(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    for name in (
        "measuring.BUDGET_NS",
        "measuring.WARM_NS",
        "measuring.SAMPLE_NS",
        "measuring.WINDOW_NS",
    ):
        monkeypatch.setattr(f"penstock.runtime.{name}", 1)
    given = ("bench", model, "-d", "sample", "-d", "reference", "--runs", "2", "--json")
    assert parsed(run(*given))["tuned"] is None
    now, later = parsed(run(*given, "--tune"))["tuned"], parsed(run(*given))["tuned"]
    assert {m["name"] for m in now["candidates"]} == {"sample", "reference"}
    assert (now["stored"], later) == (False, {**now, "stored": True})
    text = run(*given[:-1], "--tune").stdout
    assert f"tuned (measured before): {now['winner']}" in text


@pytest.mark.parametrize("command", [("run", "random"), ("bench",), ("plan",)])
def test_an_accuracy_class_can_be_asked_for(
    run: Run, model: Path, command: tuple[str, ...]
) -> None:
    name, *inputs = command
    arguments = [name, model, *inputs, "-d", "lab", "--accuracy"]
    assert run(*arguments, "faithful").exit_code == 0
    assert run(*arguments, "exact").exit_code == 1
    assert "not one of exact, faithful, stepwise, relaxed" in one_line(run(*arguments, "rough"), 2)


@pytest.mark.parametrize("command", [("run", "random"), ("bench",), ("plan",)])
def test_a_placement_rule_can_be_asked_for(run: Run, model: Path, command: tuple[str, ...]) -> None:
    name, *inputs = command
    arguments = [name, model, *inputs, "-d", "sample", "-d", "reference", "--placement"]
    for rule, code in (("cost", "predicted"), ("nnapi", "declared")):
        plan = parsed(run(*arguments, rule, "--json"))["plan"]
        assert {c for o in plan["operations"] for c in o["codes"].values()} == {code}
    assert "'dear' is not one of cost, nnapi" in one_line(run(*arguments, "dear"), 2)


def test_measuring_placements_excludes_the_rule_without_cost(run: Run, model: Path) -> None:
    error = one_line(run("bench", model, "--tune", "--placement", "nnapi"), 2)
    assert "--tune measures placements; --placement nnapi leaves no choice" in error


def test_a_class_that_no_device_meets_is_each_one_s_reason(run: Run, model: Path) -> None:
    result = run("plan", model, "-d", "lab", "--accuracy", "exact")
    assert "the policy asks for exact" in result.stdout
    assert '; Policy(accuracy="faithful") (--accuracy faithful) permits' in result.stderr
    assert "and the device 'reference' (-d reference) is exact" in result.stderr
