"""The example that the repository carries: its files, its accuracy, its answers, and
`scripts/demo`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests.conftest import ROOT
from tests.e2e.conftest import Program

NETWORKS = ("digits_float32", "digits_int8")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("name", "digit"), [("zero", "0"), ("three", "3"), ("seven", "7")])
def test_the_pictures_are_read(
    program: Program, digits: Path, network: str, name: str, digit: str
) -> None:
    result = program("run", digits / f"{network}.tflite", digits / f"{name}.png", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["task"] == "classification"
    assert found["top"][0]["label"] == digit
    assert found["top"][0]["score"] > 0.5
    # This test sets the knob `devices`.
    (slow,) = found["notes"]
    assert slow.startswith("slow: 100% of the multiply-accumulates run on reference ")
    assert slow.endswith("the knob devices (PENSTOCK_DEVICES) names no other device")


def test_the_answer_on_a_terminal(program: Program, digits: Path) -> None:
    result = program("run", digits / "digits_int8.tflite", digits / "seven.png", "--top", "2")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["class", "label", "probability"]
    assert lines[1].split()[:2] == ["7", "7"]
    assert len(lines) == 7
    assert lines[3].startswith("note: slow: ")
    assert lines[4].startswith("plan: slow: ")
    assert lines[4].endswith("; 1 step, 6 operations (reference 6)")
    assert lines[5] == "cache: reference off: device reference does not cache"
    assert lines[6].startswith("time: load ")
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("network", NETWORKS)
def test_the_committed_models_have_the_recorded_accuracy(digits: Path, network: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which brings the digits, is not installed")
    from examples.digits.train import accuracy, load_data

    recorded = json.loads((digits / "results.json").read_text("utf-8"))[network]
    right, total = accuracy(penstock.load(digits / f"{network}.tflite"), load_data())
    assert {"right": right, "of": total, "accuracy": round(right / total, 4)} == recorded
    assert recorded["accuracy"] > 0.98


@pytest.mark.slow
def test_training_again_gives_the_same_files(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which brings the digits, is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "examples.digits.train", "--out", tmp_path],
        check=True,
        env=environment,
        capture_output=True,
        timeout=300,
    )
    for name in (*(f"{n}.tflite" for n in NETWORKS), "labels.txt", "results.json"):
        assert (tmp_path / name).read_bytes() == (digits / name).read_bytes(), name
    from PIL import Image

    for name in ("zero", "three", "seven"):
        with Image.open(tmp_path / f"{name}.png") as new, Image.open(digits / f"{name}.png") as old:
            assert np.array_equal(np.asarray(new), np.asarray(old)), name


@pytest.mark.parametrize("network", NETWORKS)
def test_litert_gives_the_same_results_for_the_digits(digits: Path, network: str) -> None:
    """LiteRT's reference kernels give the same integers, and the same floats but for rounding."""
    litert: Any = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="LiteRT is not installed"
    )
    other = litert.Interpreter(
        str(digits / f"{network}.tflite"),
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
    )
    other.allocate_tensors()
    given, wanted = other.get_input_details()[0], other.get_output_details()[0]
    generator = np.random.default_rng(0)
    with penstock.compile(digits / f"{network}.tflite", devices=["reference"]) as compiled:
        for _ in range(50):
            if given["dtype"] == np.int8:
                image = generator.integers(-128, 128, given["shape"]).astype(np.int8)
            else:
                image = generator.uniform(0, 1, given["shape"]).astype(np.float32)
            other.set_tensor(given["index"], image)
            other.invoke()
            expected, found = other.get_tensor(wanted["index"]), compiled(image)[0]
            if given["dtype"] == np.int8:
                assert np.array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_scripts_demo_reads_the_seven_twice() -> None:
    result = subprocess.run(
        [ROOT / "scripts" / "demo"],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd="/",
    )
    assert result.returncode == 0, result.stderr
    answers = [line.split() for line in result.stdout.splitlines() if "%" in line]
    assert [a[1] for a in answers[::3]] == ["7", "7"]
    assert result.stdout.count("plan: ") == 2


def test_scripts_say_that_python_is_not_used_where_the_environment_was_made_with_another(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho Python 9.9.9 in /elsewhere\n", "utf-8")
    other.chmod(0o755)
    for chosen, said in ((other, 1), (Path(sys.executable), 0)):
        result = subprocess.run(
            [ROOT / "scripts" / "demo"],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHON": str(chosen)},
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr.count(f"PYTHON={chosen} is not used") == said
        assert result.stderr.count("Remove .venv to make it anew") == said
