"""The program as a user starts it: another process, its two streams and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from tests.conftest import ROOT

Program = Callable[..., "subprocess.CompletedProcess[str]"]

TIMEOUT_SECONDS = 300

KEPT = ("PENSTOCK_CACHE_DIR", "PENSTOCK_STATE_DIR", "PENSTOCK_KEY_STORE")
"""Settings of the tests themselves, which keep programs out of the user's own directories."""


@pytest.fixture(scope="session")
def program() -> Program:
    """Runs `python -m penstock` with these arguments, from the project's root, on `reference` where
    no other device is named, whatever engines are installed.
    """

    def start(
        *arguments: object, prefix: Sequence[str] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k in KEPT or not k.startswith("PENSTOCK_")}
        clean |= {"PENSTOCK_DEVICES": "reference"}
        return subprocess.run(
            [*prefix, sys.executable, "-m", "penstock", *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
            cwd=ROOT,
            env=clean | environment,
        )

    return start


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The same within this process, which saves the start: for tests of many answers, not of the
    program around them.
    """

    def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        given = [*map(str, arguments)]
        with monkeypatch.context() as patch:
            for name, value in {"PENSTOCK_DEVICES": "reference", **environment}.items():
                patch.setenv(name, value)
            result = CliRunner().invoke(app, given)
        return subprocess.CompletedProcess(given, result.exit_code, result.stdout, result.stderr)

    return call


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


@pytest.fixture(scope="session")
def digits() -> Path:
    return ROOT / "examples" / "digits"
