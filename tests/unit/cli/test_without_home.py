"""A user without a home directory: models run, and each command says what is not kept, and what to
set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock import knobs
from penstock.cli.application import app
from penstock.errors import Unreadable
from penstock.export import tflite
from penstock.ipc.sandbox.policy import SandboxPolicy
from penstock.ir import DType, ModelBuilder

SAYS = "this user has no home directory, and so no cache directory: set HOME or XDG_CACHE_HOME"


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> str:
        raise RuntimeError("could not determine the home directory")

    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("PENSTOCK_CACHE_DIR", "PENSTOCK_STATE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for kind in ("cache", "config", "state"):
        monkeypatch.setattr(platformdirs, f"user_{kind}_dir", refuse)
    knobs.settings_path.cache_clear()
    yield
    knobs.settings_path.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    path = tmp_path / "net.tflite"
    y = builder.operation("ADD", [x, x], [(DType.FLOAT32, (2,))])
    path.write_bytes(tflite.write(builder.build(y)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_no_settings_file_is_read() -> None:
    assert knobs.settings_path() is None
    assert knobs.num_threads() == 0


def test_a_home_left_as_it_was_written_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: "~/.cache/penstock")
    with pytest.raises(Unreadable, match="has no home directory"):
        knobs.user_directory("cache")


def test_a_model_compiles_without_a_cache(model: Path) -> None:
    with penstock.compile(str(model), devices=["sample"]) as compiled:
        assert compiled.receipt.steps[0].cache.outcome == "off"
        x = np.array([1, -2], np.float32)
        assert np.array_equal(compiled.run([x])[0], 2 * x)


def test_run_answers_and_says_what_is_not_kept(model: Path) -> None:
    found = run("run", model, "random", "--device", "sample", "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["outputs"]
    assert f"penstock: warning: {SAYS}" in found.stderr


def test_a_receipt_says_why_nothing_is_cached(model: Path) -> None:
    with penstock.compile(str(model), devices=["sample"]) as compiled:
        assert SAYS in compiled.receipt.steps[0].cache.reason
    with penstock.compile(str(model), devices=["sample"], cache=False) as compiled:
        assert compiled.receipt.steps[0].cache.reason == "no cache was asked for"


def test_prewarm_fails_with_what_to_set(model: Path) -> None:
    found = run("cache", "prewarm", model, "--device", "sample", "--json")
    assert found.exit_code == 1
    assert SAYS in json.loads(found.stdout)["error"]["message"]
    assert SAYS in found.stderr


def test_prewarm_into_a_named_directory_says_what_else_is_missing(
    model: Path, tmp_path: Path
) -> None:
    found = run("cache", "prewarm", model, "--device", "sample", "--dir", tmp_path / "cache")
    assert found.exit_code == 1
    assert "no state directory: set HOME or XDG_STATE_HOME" in found.stderr


def test_doctor_reports_it_as_a_problem() -> None:
    found = run("doctor", "--json")
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    assert any(SAYS in problem for problem in told["problems"])
    assert told["settings_file"] is None


@pytest.mark.parametrize(
    "command", ["cache ls", "knobs", "doctor --last-crash", "doctor --capsule x"]
)
def test_no_command_has_an_internal_error(command: str) -> None:
    assert "internal error" not in run(*command.split()).output


def test_a_sandbox_reads_no_settings_file_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in SandboxPolicy().readable()
