"""`penstock cache` on the lab device: every command, each way it ends."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.cache import Cache
from penstock.cache.naming import CALIBRATIONS, PLANS
from penstock.cache.verdicts import (
    Calibration,
    Calibrations,
    Learned,
    LearnedTimes,
    ObservedPlan,
    Verdict,
    Verdicts,
)
from penstock.cli.application import app
from penstock.cli.cache.compiles import readable
from penstock.export import tflite
from penstock.hal import AccuracyClass
from penstock.ir import DType, ModelBuilder
from penstock.testing.lab import LabDevice

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where `run` caches."""
    return tmp_path / "cache"


def write_model(path: Path, *addend: float) -> Path:
    """y = relu(x + *addend*), x: float32[1, ?]."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, len(addend)), "x")
    constant = builder.constant(np.array(addend, np.float32), "addend")
    (sum_,) = builder.operation("ADD", [x, constant], [(DType.FLOAT32, (1, len(addend)))])
    (y,) = builder.operation("RELU", [sum_], [(DType.FLOAT32, (1, len(addend)))])
    path.write_bytes(tflite.write(builder.build([y])))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "add.tflite", 1, 2)


@pytest.fixture
def warm(run: Run, model: Path) -> Path:
    """The model, its entry being there."""
    assert run("cache", "prewarm", model, "-d", "lab").exit_code == 0
    return model


def flip(path: Path, offset: int = 280) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def model_file(directory: Path) -> Path:
    """The first model cache file of the only entry."""
    (entry,) = Cache(directory).entries()
    return entry.model_cache[0]


def parsed(result: Result, code: int = 0) -> Any:
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def one_line(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("penstock: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("penstock: error: ").rstrip("\n")


def test_without_a_command_help_is_printed(run: Run) -> None:
    result = run("cache")
    assert result.exit_code == 0
    for command in ("ls", "show", "verify", "explain", "gc", "clear", "prewarm"):
        assert command in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["cache", "bogus"],
        ["cache", "show"],
        ["cache", "prewarm"],
        ["cache", "explain"],
        ["cache", "gc", "--max-mib", "-1"],
        ["cache", "ls", "--dir", "no/such/directory"],
        ["cache", "ls", "--dir", ""],
        ["cache", "show", "ab"],
        ["cache", "show", ""],
        ["cache", "verify", "ab"],
        ["cache", "prewarm", "m.tflite", "--dir", ""],
        ["cache", "prewarm", "m.tflite", "-d", "quantum"],
        ["cache", "prewarm", "m.tflite", "--preference", "fast"],
        ["cache", "explain", "m.tflite", "--priority", "urgent"],
        ["cache", "explain", "m.tflite", "--accuracy", "rough"],
        ["cache", "explain", "m.tflite", "--shape", "x"],
        ["cache", "explain", "m.tflite", "--shape", "x=1,-2"],
        ["cache", "explain", ""],
    ],
)
def test_usage(run: Run, arguments: list[str]) -> None:
    one_line(run(*arguments), 2)


@pytest.mark.parametrize("command", ["explain", "prewarm"])
def test_bad_files(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.tflite").write_bytes(b"no model at all")
    assert "no such file" in one_line(run("cache", command, tmp_path / "none"), 3).lower()
    assert "bad.tflite" in one_line(run("cache", command, tmp_path / "bad.tflite"), 3)


def test_a_directory_that_is_not_there_is_an_empty_cache(run: Run, directory: Path) -> None:
    assert parsed(run("cache", "ls", "--json")) == {
        "directory": str(directory),
        "entries": [],
        "verdicts": [],
        "plans": [],
        "costs": [],
        "runs": [],
        "nbytes": 0,
    }
    assert "0 entries, 0 bytes" in run("cache", "ls").stdout
    assert "0 entries verified, 0 refused" in run("cache", "verify").stdout
    assert "0 entries removed" in run("cache", "clear").stdout
    assert parsed(run("cache", "gc", "--json"))["removed"] == []
    assert not directory.exists()


def test_a_file_is_no_directory(run: Run, model: Path) -> None:
    for command in (("ls",), ("prewarm", model)):
        line = one_line(run("cache", *command, "--dir", model), 2)
        assert line == f"--dir {model}: this is not a directory"


def test_piped_output_is_not_padded(run: Run, warm: Path, directory: Path) -> None:
    (entry,) = Cache(directory).entries()
    for line in run("cache", "show", entry.token.hex()).stdout.splitlines():
        assert line == line.rstrip()


def test_a_directory_that_cannot_be_listed_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    assert one_line(run("cache", "ls"), 1).startswith("Unreadable: ")


def test_prewarm_compiles_once(run: Run, model: Path, directory: Path) -> None:
    (first,) = parsed(run("cache", "prewarm", model, "-d", "lab", "--json"))["models"]
    assert (first["model"], first["compiles"], first["error"]) == (str(model), 1, None)
    (step,) = first["steps"]
    assert (step["device"], step["outcome"], step["saved"]) == ("lab", "miss", True)
    assert step["reason"].startswith("NoEntry: ")
    (second,) = parsed(run("cache", "prewarm", model, "-d", "lab", "--json"))["models"]
    assert second["compiles"] == 0
    assert second["steps"][0]["outcome"] == "hit"
    assert len(Cache(directory).entries()) == 1


def test_prewarm_in_words(run: Run, model: Path) -> None:
    assert "compiled, saved" in run("cache", "prewarm", model, "-d", "lab").stdout
    assert "hit" in run("cache", "prewarm", model, "-d", "lab").stdout
    assert "not cached" in (text := run("cache", "prewarm", model, "-d", "reference").stdout)
    assert "device reference does not cache" in text


def test_prewarm_goes_on_after_a_bad_file(run: Run, tmp_path: Path, model: Path) -> None:
    other = write_model(tmp_path / "other.tflite", 3, 4)
    result = run("cache", "prewarm", model, tmp_path / "none", other, "-d", "lab", "--json")
    data = parsed(result, 3)
    assert [m["compiles"] for m in data["models"][::2]] == [1, 1]
    assert data["models"][1]["error"]["type"] == "FileError"
    assert len(data["problems"]) == 1
    assert "none" in result.stderr


def test_prewarm_says_each_failure_once(run: Run, tmp_path: Path, model: Path) -> None:
    one = run("cache", "prewarm", model, tmp_path / "none.tflite", "-d", "lab")
    assert one.exit_code == 3
    assert (one.stdout + one.stderr).count("No such file") == 1
    assert "failed" in one.stdout
    several = run("cache", "prewarm", tmp_path / "a.tflite", tmp_path / "b.tflite", "-d", "lab")
    assert (several.stdout + several.stderr).count("No such file") == 2
    assert several.stderr == "penstock: error: 2 problems, named above\n"


def test_prewarm_names_the_model_that_has_no_plan(run: Run, model: Path) -> None:
    line = one_line(run("cache", "prewarm", model, "-d", "lab", "--accuracy", "exact"), 1)
    assert line.startswith(f"{model}: ")
    assert "no device may run it" in line


def test_prewarm_says_why_nothing_was_saved(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run("cache", "prewarm", model, "-d", "lab", "--dir", tmp_path / "file" / "cache")
    assert "was not saved: Unreadable: the cache directory" in one_line(result, 1)
    assert "compiled, not saved" in result.stdout


def test_prewarm_serves_the_program_that_asks_for_the_same(
    run: Run, model: Path, tmp_path: Path
) -> None:
    place = tmp_path / "fleet"
    given = ["--preference", "low_power", "--priority", "high", "--threads", 3, "--accuracy"]
    result = run("cache", "prewarm", model, "-d", "lab", *given, "relaxed", "--dir", place)
    assert result.exit_code == 0, result.output
    with penstock.compile(
        model,
        devices=["lab"],
        preference="low_power",
        priority="high",
        num_threads=3,
        policy=penstock.Policy(accuracy="relaxed"),
        cache=place,
    ) as compiled:
        assert compiled.receipt.compiles == 0


def test_ls_lists_what_is_there(run: Run, warm: Path, directory: Path) -> None:
    (entry,) = Cache(directory).entries()
    result = run("cache", "ls")
    assert result.exit_code == 0
    assert entry.token.hex()[:12] in result.stdout
    assert "lab" in result.stdout
    data = parsed(run("cache", "ls", "--json"))
    assert data["nbytes"] == entry.nbytes
    (told,) = data["entries"]
    assert told["token"] == entry.token.hex()
    assert told["compile_ns"] > 0
    assert told["ingredients"]["device"] == "lab"
    assert [len(told[kind]) for kind in ("model_cache", "data_cache")] == [2, 1]


def test_another_directory(run: Run, warm: Path, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "0 entries" in run("cache", "ls", "--dir", tmp_path / "empty").stdout
    assert "1 entry" in run("cache", "ls", "--dir", directory).stdout


def test_show_finds_an_entry_by_its_beginning_or_a_file(
    run: Run, warm: Path, directory: Path
) -> None:
    (entry,) = Cache(directory).entries()
    token = entry.token.hex()
    path = entry.model_cache[0]
    for name in (token, token[:1], path, path.name, path.name[:5]):
        assert parsed(run("cache", "show", name, "--json"))["token"] == token
    text = run("cache", "show", token[:12]).stdout
    size = f"{path.stat().st_size} bytes"
    for words in (token, *entry.ingredients, path.name, "model", "data", size):
        assert words in text


def test_show_names_the_entries_that_a_beginning_could_mean(
    run: Run, tmp_path: Path, directory: Path
) -> None:
    for number in range(17):  # of 17 tokens two begin with the same digit
        path = write_model(tmp_path / f"{number}.tflite", number)
        assert run("cache", "prewarm", path, "-d", "lab").exit_code == 0
    beginnings = [entry.token.hex()[0] for entry in Cache(directory).entries()]
    twice = next(b for b in beginnings if beginnings.count(b) > 1)
    line = one_line(run("cache", "show", twice), 2)
    assert line.startswith(f"{beginnings.count(twice)} entries begin with {twice}: ")


def test_verify_accepts_what_drivers_accept(run: Run, warm: Path) -> None:
    assert "sound" in run("cache", "verify").stdout
    data = parsed(run("cache", "verify", "--json"))
    assert (data["verified"], data["refused"]) == (2, 0)
    assert data["entries"][0]["sound"] is True
    assert [plan["sound"] for plan in data["plans"]] == [True]


def test_costs_and_times_of_runs_are_listed_verified_and_cleared(run: Run, directory: Path) -> None:
    key = "0" * 64
    costs: dict[str, Any] = {
        "device": "lab", "version": "1", "num_threads": 2, "accuracy": "exact", "samples": 7
    }  # fmt: skip
    Calibrations(directory).save(Calibration(key=key, costs=msgspec.Raw(b"{}"), **costs))
    times = ObservedPlan(("lab", "lab"), 1_000, 2_000_000, 3, 40)
    LearnedTimes(directory).save(Learned(key=key, plans=(times,)))
    data = parsed(run("cache", "ls", "--json"))
    assert [(c["device"], c["accuracy"], c["threads"]) for c in data["costs"]] == [
        ("lab", "exact", 2)
    ]
    (plan,) = data["runs"][0]["plans"]
    assert plan == {"devices": ["lab"], "ns": 2_000_000, "predicted_ns": 1_000}
    shown = run("cache", "ls").stdout
    assert "measured cost" in shown
    assert "lab 2.0 ms" in shown
    verified = run("cache", "verify").stdout
    assert "0 entries, 1 measured cost and 1 time of runs verified, 0 refused" in verified
    (file,) = (directory / CALIBRATIONS).iterdir()
    file.write_bytes(file.read_bytes().replace(b'"samples":7', b'"samples":9'))
    refused = run("cache", "verify", "--json")
    assert refused.exit_code == 1
    (found,) = json.loads(refused.stdout)["costs"]
    assert "'penstock calibrate' writes it anew" in found["error"]["message"]
    run("cache", "clear", "--yes")
    assert parsed(run("cache", "ls", "--json"))["runs"] == []


def test_an_altered_plan_is_refused_and_listed_no_more(
    run: Run, warm: Path, directory: Path
) -> None:
    (listed,) = parsed(run("cache", "ls", "--json"))["plans"]
    assert listed["file"] == hashlib.sha256(warm.read_bytes()).hexdigest()
    assert listed["devices"] == "'lab'"
    assert "kept plan" in run("cache", "ls").stdout
    (file,) = (directory / PLANS).iterdir()
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    result = run("cache", "verify", "--json")
    assert result.exit_code == 1
    assert [p["error"]["type"] for p in json.loads(result.stdout)["plans"]] == ["Unreadable"]
    assert parsed(run("cache", "ls", "--json"))["plans"] == []


def test_explain_names_what_changed_of_the_plan(run: Run, warm: Path) -> None:
    arguments = ("cache", "explain", warm, "-d", "lab", "--json")
    assert parsed(run(*arguments))["kept_plan"] == {"outcome": "hit", "reason": None}
    told = parsed(run(*arguments, "--preference", "low_power"))["kept_plan"]
    assert told["outcome"] == "miss"
    assert "preference (fast_single_answer -> low_power)" in told["reason"]
    assert "kept plan: hit" in run(*arguments[:-1]).stdout


def test_verify_says_in_one_line_what_is_refused_and_why(
    run: Run, warm: Path, directory: Path
) -> None:
    flip(model_file(directory))
    (entry,) = Cache(directory).entries()
    result = run("cache", "verify")
    line = one_line(result, 1)
    assert line.startswith(f"entry {entry.token.hex()[:12]} is refused: SealBroken: ")
    assert "1 refused" in result.stdout
    data = parsed(run("cache", "verify", entry.token.hex()[:6], "--json"), 1)
    assert data["entries"][0]["error"]["type"] == "SealBroken"


def test_verify_of_one_entry_leaves_the_others_alone(
    run: Run, warm: Path, directory: Path, tmp_path: Path
) -> None:
    flip(model_file(directory))
    (broken,) = Cache(directory).entries()
    other = write_model(tmp_path / "other.tflite", 3, 4)
    assert run("cache", "prewarm", other, "-d", "lab").exit_code == 0
    (sound,) = [e for e in Cache(directory).entries() if e.token != broken.token]
    assert run("cache", "verify", sound.token.hex()).exit_code == 0
    assert run("cache", "verify", broken.token.hex()).exit_code == 1
    flip(sound.data_cache[0], 257)
    assert one_line(run("cache", "verify"), 1).endswith("; and 1 more")


def test_verify_takes_an_unwritten_entry_for_a_miss(run: Run, model: Path, directory: Path) -> None:
    device = LabDevice(mode="first_run")
    with penstock.compile(model, devices=[device], cache=directory):
        pass
    data = parsed(run("cache", "verify", "--json"))
    assert (data["verified"], data["refused"]) == (1, 0)
    assert data["entries"][0]["error"]["type"] == "NotYetWritten"
    assert "NotYetWritten: " in run("cache", "verify").stdout


def test_verify_names_a_measured_placement_that_was_altered(run: Run, directory: Path) -> None:
    verdicts = Verdicts(directory)
    for digit in "ab":
        verdicts.save(
            Verdict(key=digit * 64, accuracy="exact", devices=("one",), report=msgspec.Raw(b"{}"))
        )
    result = run("cache", "verify")
    assert "0 entries and 2 measured placements verified, 0 refused" in result.stdout
    flip(directory / "placements" / f"{'a' * 64}.json", 100)
    result = run("cache", "verify")
    line = one_line(result, 1)
    assert line.startswith("the measured placement aaaaaaaaaaaa is refused: Unreadable: ")
    assert line.endswith("'penstock cache clear' removes it")
    assert "2 measured placements verified, 1 refused" in result.stdout
    data = parsed(run("cache", "verify", "--json"), 1)
    assert (data["verified"], data["refused"]) == (2, 1)
    assert [(v["key"][0], v["sound"]) for v in data["verdicts"]] == [("b", True), ("a", False)]
    verdicts.clear()
    assert run("cache", "verify").exit_code == 0


def test_an_entry_without_its_index_is_still_listed(run: Run, warm: Path, directory: Path) -> None:
    (index,) = directory.glob("*.json")
    index.unlink()
    assert "not known" in run("cache", "ls").stdout
    (told,) = parsed(run("cache", "ls", "--json"))["entries"]
    assert told["device"] is None
    assert "nothing says what the entry is from" in run("cache", "show", told["token"]).stdout
    line = one_line(run("cache", "verify"), 1)
    assert "Unreadable: nothing says whose the entry is: its index is missing, altered" in line
    assert "another state directory or key; " in line
    assert "a compile that hits the entry writes its index again" in line
    assert line.endswith("'penstock cache clear' removes both")
    assert run("cache", "prewarm", warm, "-d", "lab").exit_code == 0
    assert run("cache", "verify").exit_code == 0
    index.unlink()
    assert run("cache", "clear", "--yes").exit_code == 0
    assert run("cache", "verify").exit_code == 0


def test_a_refused_entry_is_compiled_again_and_the_run_says_why(
    run: Run, warm: Path, directory: Path
) -> None:
    assert "cache: lab hit" in run("run", warm, "random", "-d", "lab").stdout
    flip(model_file(directory))
    text = run("run", warm, "random", "-d", "lab").stdout
    assert "cache: lab miss: SealBroken: the payload of model file 0 was altered; saved" in text
    assert "cache: lab hit" in run("bench", warm, "--runs", "1", "-d", "lab").stdout


def test_receipts_of_the_compile_are_in_the_objects(run: Run, model: Path) -> None:
    for command, outcome in ((("run", model, "random"), "miss"), (("bench", model), "hit")):
        data = parsed(run(*command, "-d", "lab", "--json"))
        assert data["compile_receipt"]["steps"][0]["cache"]["outcome"] == outcome


def test_no_cache(run: Run, model: Path, directory: Path) -> None:
    for command in (("run", model, "random"), ("bench", model, "--runs", 1)):
        assert "no cache was asked for" in run(*command, "-d", "lab", "--no-cache").stdout
    assert not directory.exists()


def test_explain_says_hit(run: Run, warm: Path) -> None:
    (step,) = parsed(run("cache", "explain", warm, "-d", "lab", "--json"))["steps"]
    assert step["outcome"] == "hit"
    assert (step["reason"], step["nearest"], step["changed"]) == (None, None, [])
    assert "hit" in run("cache", "explain", warm, "-d", "lab").stdout


def test_explain_of_an_empty_cache(run: Run, model: Path, directory: Path) -> None:
    assert "NoEntry: nothing is cached here" in run("cache", "explain", model, "-d", "lab").stdout
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "ingredient"),
    [
        (["--threads", "7"], "num_threads"),
        (["--preference", "low_power"], "preference"),
        (["--priority", "low"], "priority"),
        (["--accuracy", "relaxed"], "accuracy"),
    ],
)
def test_explain_names_the_argument_that_changed(
    run: Run, warm: Path, directory: Path, arguments: list[str], ingredient: str
) -> None:
    (entry,) = Cache(directory).entries()
    (step,) = parsed(run("cache", "explain", warm, "-d", "lab", *arguments, "--json"))["steps"]
    assert step["outcome"] == "miss"
    assert step["reason"].startswith(f"NoEntry: the nearest entry differs in {ingredient} (")
    assert step["nearest"] == entry.token.hex()
    assert [c["ingredient"] for c in step["changed"]] == [ingredient]
    text = run("cache", "explain", warm, "-d", "lab", *arguments).stdout
    assert f"against entry {entry.token.hex()[:12]}" in text


def test_explain_names_a_model_that_changed(run: Run, warm: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "retrained.tflite", 1, 3)
    (step,) = parsed(run("cache", "explain", other, "-d", "lab", "--json"))["steps"]
    assert [c["ingredient"] for c in step["changed"]] == ["constants"]
    wider = write_model(tmp_path / "wider.tflite", 1, 2, 3)
    (step,) = parsed(run("cache", "explain", wider, "-d", "lab", "--json"))["steps"]
    assert [c["ingredient"] for c in step["changed"]] == ["structure", "constants"]
    assert step["reason"] == "NoEntry: nothing is cached for a model of this structure"
    assert "against entry" not in run("cache", "explain", wider, "-d", "lab").stdout


def test_explain_verifies_the_entries_it_finds(run: Run, warm: Path, directory: Path) -> None:
    flip(model_file(directory))
    (step,) = parsed(run("cache", "explain", warm, "-d", "lab", "--json"))["steps"]
    assert step["outcome"] == "miss"
    assert step["reason"].startswith("SealBroken: ")


def test_explain_goes_step_by_step(run: Run, model: Path) -> None:
    (step,) = parsed(run("cache", "explain", model, "-d", "reference", "--json"))["steps"]
    assert (step["outcome"], step["reason"]) == ("off", "device reference does not cache")


def test_cache_shows_only_differing_processor_features() -> None:
    assert readable("cpu_features", "x86_64 avx avx2", "x86_64 avx avx512f") == (
        "cpu_features",
        "avx2",
        "avx512f",
    )
    assert readable("shapes", "", "0:1x4") == ("shapes", "as declared", "0:1x4")


def test_gc_removes_what_was_unused_for_longest(
    run: Run, warm: Path, directory: Path, tmp_path: Path
) -> None:
    assert parsed(run("cache", "gc", "--max-mib", "1", "--json"))["removed"] == []
    assert parsed(run("cache", "gc", "--json"))["left"] == 1
    data = parsed(run("cache", "gc", "--max-mib", "0", "--json"))
    assert [e["device"] for e in data["removed"]] == ["lab"]
    assert (data["left"], data["nbytes"]) == (0, 0)
    assert data["nbytes_removed"] > 0
    assert [path.name for path in directory.iterdir()] == [PLANS]
    assert list((directory / PLANS).iterdir()) == []


def test_gc_in_words(run: Run, warm: Path) -> None:
    text = run("cache", "gc", "--max-mib", "0").stdout
    assert "1 entry removed" in text
    assert "0 entries left, 0 bytes" in text


@pytest.mark.parametrize("command", [("clear", "--yes"), ("gc", "--max-mib", "0")])
def test_failed_removal_shows_the_reason(
    run: Run, warm: Path, directory: Path, command: tuple[str, ...]
) -> None:
    in_place = next(directory.glob("*10"))
    in_place.unlink()
    in_place.mkdir()
    text = one_line(run("cache", *command), 1)
    assert "1 could not be removed" in text
    assert "is a directory" in text
    data = parsed(run("cache", *command, "--json"), 1)
    assert (data["not_removed"], data["removed"]) == (1, [])
    assert "is a directory" in data["reason"]


def test_clear_needs_yes_off_a_terminal(run: Run, warm: Path, directory: Path) -> None:
    assert "--yes" in one_line(run("cache", "clear"), 2)
    assert len(Cache(directory).entries()) == 1
    data = parsed(run("cache", "clear", "--yes", "--json"))
    assert len(data["removed"]) == 1
    assert Cache(directory).entries() == []
    assert "miss" in run("cache", "explain", warm, "-d", "lab").stdout


def test_measured_placements_are_listed_and_removed_one_by_one(run: Run, directory: Path) -> None:
    verdicts = Verdicts(directory)
    classes: dict[str, AccuracyClass] = {"a": "faithful", "b": "stepwise"}
    for digit, accuracy in classes.items():
        devices, model = ("one", "two", "one"), f"{digit}1" * 64
        verdicts.save(
            Verdict(
                key=digit * 64,
                accuracy=accuracy,
                devices=devices,
                report=msgspec.Raw(b"{}"),
                model=model,
            )
        )
    listed = parsed(run("cache", "ls", "--json"))["verdicts"]
    assert sorted(v["key"][0] for v in listed) == ["a", "b"]
    assert listed[0]["devices"] == ["one", "two"]
    shown = run("cache", "ls").stdout
    assert re.search(r"^a{12} +(a1){6} +one, two +faithful ", shown, re.MULTILINE)
    assert re.search(r"^b{12} +(b1){6} +one, two +stepwise ", shown, re.MULTILINE)
    assert {v["key"][0]: v["accuracy"] for v in listed} == classes
    assert "no measured placements begin so" in one_line(run("cache", "clear", "--verdict", "c"), 2)
    assert run("cache", "clear", "--verdict", "a").exit_code == 0
    assert [v.key[0] for v in verdicts.every()] == ["b"]
    assert run("cache", "clear", "--yes").exit_code == 0
    assert verdicts.every() == []
