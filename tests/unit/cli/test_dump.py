"""`penstock dump --after STAGE` for stages of devices, and the templates in `penstock plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from penstock.cli.application import app
from penstock.driverkit.site import Refused
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

Run = Callable[..., Result]

FIRST_LINES = {
    "legalise": "input t0: float32 [1, 4] 'x'",
    "fuse": "input t0: float32 [1, 4] 'x'",
    "layout": "input t0: float32 [1, 4] 'x'",
    "memory": "input t0: float32 [1, 4] 'x'",
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TERM", "dumb")
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x + [1, 2, 3, 4])."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 4), "x")
    one = builder.constant(np.array([1, 2, 3, 4], np.float32), "one")
    (total,) = builder.operation("ADD", [x, one], [(DType.FLOAT32, (1, 4))])
    (y,) = builder.operation("RELU", [total], [(DType.FLOAT32, (1, 4))])
    path = tmp_path / "add.tflite"
    path.write_bytes(tflite.write(builder.build([y])))
    return path


def text_of(run: Run, model: Path, stage: str, *more: str) -> str:
    result = run("dump", model, "-d", "llvm", "--after", stage, *more)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.mark.parametrize("stage", FIRST_LINES)
def test_stage_of_a_program_prints_its_kernels(run: Run, model: Path, stage: str) -> None:
    text = text_of(run, model, stage)
    assert text.startswith(FIRST_LINES[stage])
    # The addition and the RELU are one kernel from `fuse` on.
    assert text.count("\nkernel ") == (2 if stage == "legalise" else 1)
    assert ("arena of" in text) == ("by template nest" in text) == (stage == "memory")


def test_llvm_and_asm_print_the_code(run: Run, model: Path) -> None:
    code, assembly = (text_of(run, model, stage) for stage in ("llvm", "asm"))
    assert "define" in code
    assert ".text" in assembly
    assert "k0" in code
    assert "k0" in assembly


def test_stage_is_in_the_answer_as_json(run: Run, model: Path) -> None:
    data: Any = json.loads(text_of(run, model, "fuse", "--json"))
    assert data["stage"] == "fuse"
    (step,) = data["fuse"]["steps"]
    assert (step["step"], step["device"]) == (0, "llvm")
    assert step["text"].startswith(FIRST_LINES["fuse"])


def test_device_of_another_process_prints_the_same(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = text_of(run, model, "memory")
    monkeypatch.setenv("PENSTOCK_ISOLATE", "llvm")
    assert text_of(run, model, "memory") == here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--after", "lunch"), "llvm: legalise, fuse, layout, memory, llvm, asm"),
        (("--after", "lunch", "-d", "llvm"), "no stage 'lunch'; the stages are load, partition"),
        (("--after", "fuse", "-d", "sample"), "the stages are load, partition, compile\n"),
    ],
)
def test_stage_that_nothing_prints_is_wrong_usage(
    run: Run, model: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("dump", model, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_stage_of_a_device_without_a_step_is_wrong_usage(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_: object) -> None:
        raise Refused("not today")

    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "no answers kept"))
    monkeypatch.setattr("penstock.drivers.llvm.device.judge", refuse)
    result = run("dump", model, "--after", "fuse", "-d", "llvm", "-d", "reference")
    assert result.exit_code == 2
    assert "llvm would print stage 'fuse', and gets no step of the plan" in result.stderr


def test_plan_says_which_template_computes_each_operation(run: Run, model: Path) -> None:
    text = run("plan", model, "-d", "llvm").stdout
    _, _, how = text.partition("how llvm computes step 0:\n")
    assert how == ("  0: ADD: nest, with operation 1\n  1: RELU: nest, with operation 0\n")
    data: Any = json.loads(run("plan", model, "-d", "llvm", "--json").stdout)
    (step,) = data["how"]
    assert [o["how"] for o in step["operations"]] == [
        "nest, with operation 1", "nest, with operation 0",
    ]  # fmt: skip
    assert json.loads(run("plan", model, "-d", "sample", "--json").stdout)["how"] == []
