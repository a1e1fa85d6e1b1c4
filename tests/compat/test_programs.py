"""Three programs as people write them: the same text with either import, and unchanged under the
launcher.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.support_programs import run_python

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)

ONE_LINE = {
    "from ai_edge_litert.interpreter import Interpreter": "from penstock.tflite import Interpreter",
    "import ai_edge_litert.interpreter as tflite": "import penstock.tflite as tflite",
}

RUNS = {
    "a cat to a quantised classifier": (
        *("classify.py", "--model", "networks/mobilenet_v1_0.25_128_uint8.tflite"),
        *("--labels", "labels/imagenet_1001.txt", "--image", "images/cat.bmp"),
    ),
    "a bird to a float classifier": (
        *("classify.py", "--model", "networks/mobilenet_v1_0.25_224_float.tflite"),
        *("--labels", "labels/imagenet_1001.txt", "--image", "images/bird.bmp", "--threads=2"),
    ),
    "three pictures to a detector": (
        *("detect.py", "networks/ssd_mobilenet_v1_coco_uint8.tflite", "labels/coco_labels.txt"),
        *("0.4", "DIGITS", "images/cat.bmp", "images/grace_hopper.bmp", "images/squat.bmp"),
    ),
    "two recordings to a voice detector": (
        *("listen.py", "networks/wakeword_vad.tflite"),
        *("audio/speech.wav", "audio/yes_1000ms.wav"),
    ),
    "a recording to a wake word": (
        *("listen.py", "networks/wakeword_okay_nabu.tflite", "audio/yes_1000ms.wav"),
    ),
}

SAYS = {
    "a cat to a quantised classifier": "Egyptian cat",
    "a bird to a float classifier": "0.9: chickadee",
    "three pictures to a detector": "grace_hopper.bmp: 4 objects",
    "two recordings to a voice detector": "heard from",
    "a recording to a wake word": "32 chunks",
}

DETAIL = {"classify.py": ("--digits", "4"), "detect.py": (), "listen.py": ("--every",)}
"""What has a program print every number, to four digits."""


def run(corpus: Path, *command: str | Path) -> str:
    """What a program prints. It may write nothing else to standard error than LiteRT's own log."""
    models = corpus / "models"
    done = run_python(
        *(str(models / c) if (models / c).exists() else str(c) for c in command),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(name: str, *, detailed: bool) -> tuple[Path, tuple[str, ...]]:
    program, *arguments = RUNS[name]
    digits = "4" if detailed else "1"
    given = tuple(digits if a == "DIGITS" else a for a in arguments)
    return PROGRAMS / program, (given + DETAIL[program] if detailed else given)


@pytest.mark.parametrize("name", RUNS)
def test_program_prints_the_same_with_one_line_changed_and_under_the_launcher(
    name: str, corpus: Path, tmp_path: Path
) -> None:
    program, arguments = command(name, detailed=False)
    lines = program.read_text(encoding="utf-8").splitlines()
    changed = [ONE_LINE.get(line, line) for line in lines]
    assert sum(a != b for a, b in zip(lines, changed, strict=True)) == 1
    ours = tmp_path / program.name
    ours.write_text("\n".join(changed), encoding="utf-8")
    wanted = run(corpus, program, *arguments)
    assert SAYS[name] in wanted
    assert run(corpus, ours, *arguments) == wanted
    assert run(corpus, "-m", "penstock.tflite", program, *arguments) == wanted


KINDS = ("driver", "alternating", "nnapi", "gpu")


@pytest.mark.parametrize("name", RUNS)
def test_each_delegate_computes_every_number_of_the_reference_kernels(
    name: str, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DEVICES", "reference")
    program, arguments = command(name, detailed=True)
    reference = Path(__file__).with_name("reference_kernels.py")
    wanted = run(corpus, reference, program, *arguments)
    assert run(corpus, "-m", "penstock.tflite", program, *arguments) == wanted
    delegated = Path(__file__).with_name("delegated.py")
    for kind in KINDS:
        assert run(corpus, delegated, kind, program, *arguments) == wanted, kind
