"""A name in the knob `isolate` that no driver has: every command that compiles says so, once
(`replay` in `test_capsules`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from penstock import knobs
from penstock.cli.application import app
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder

SAYS = "penstock: warning: knob isolate ("

COMMANDS = {
    "run": ("run", "M", "zeros", "-d", "sample"),
    "bench": ("bench", "M", "--runs", "1", "-d", "sample"),
    "plan": ("plan", "M", "-d", "sample"),
    "dump": ("dump", "M", "--after", "partition", "-d", "sample"),
    "compare": ("compare", "M", "zeros", "-d", "sample"),
    "prewarm": ("cache", "prewarm", "M", "M", "-d", "sample"),
    "explain": ("cache", "explain", "M", "-d", "sample"),
    "capsule": ("doctor", "--capsule", "C", "--model", "M", "--device", "sample"),
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, 4), "x")
    k = b.constant(np.array([1, 2, 3, 4], np.float32), "k")
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite.write(b.build(b.operation("ADD", [x, k], [(DType.FLOAT32, (1, 4))]))))
    return path


def invoke(command: str, model: Path, *more: str) -> Result:
    places = {"M": str(model), "C": str(model.with_suffix(".capsule"))}
    return CliRunner().invoke(app, [*(places.get(word, word) for word in COMMANDS[command]), *more])


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_name_to_isolate_in_the_environment_is_warned_of(
    command: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", "sampel, reference=no")
    result = invoke(command, model)
    assert result.stderr.count(SAYS) == 1, result.output
    assert "is 'sample' meant?" in result.stderr
    assert SAYS not in result.stdout


def test_unknown_name_to_isolate_in_settings_is_warned_of_beside_json(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('isolate = "sampel"\n')
    monkeypatch.setattr(knobs, "settings_path", lambda: str(settings))
    result = invoke("plan", model, "--json")
    assert result.exit_code == 0
    assert result.stderr.count(SAYS) == 1
    assert "plan" in json.loads(result.stdout)


def test_known_name_to_isolate_gives_no_warning(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", "sample=no, nobody=no")
    assert invoke("plan", model).stderr == ""
