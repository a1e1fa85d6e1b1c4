"""Converts `.tflite` files to `.onnx` with tf2onnx, as its users do, so that ONNX Runtime can race
on them.

tf2onnx needs TensorFlow and is not a dependency of Penstock. Install it in a separate environment
and set PENSTOCK_BENCH_TF2ONNX to that environment's Python:

    python3 -m venv ENV && ENV/bin/pip install tf2onnx tensorflow-cpu
    PENSTOCK_BENCH_TF2ONNX=ENV/bin/python python -m benchmarks.engines

Each distinct file is converted once. The result, or the reason for a failure, is kept in
PENSTOCK_BENCH_ONNX (default: a folder in the temporary directory).
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from typing import Final

PYTHON: Final = "PENSTOCK_BENCH_TF2ONNX"
KEPT: Final = "PENSTOCK_BENCH_ONNX"

OPSET: Final = 18
"""The newest opset that tf2onnx writes."""

LONGEST_S: Final = 300.0

PROGRAM: Final = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import tf2onnx.convert
for line in sys.stdin:
    source, target, opset = json.loads(line)
    try:
        tf2onnx.convert.from_tflite(source, opset=opset, output_path=target)
        answer = None
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), file=answers, flush=True)
"""


class NotConverted(Exception):  # it is what became of a file
    """tf2onnx could not convert this file; the message says why."""


class Converter:
    """A process that runs tf2onnx. The first file that needs a conversion starts it."""

    def __init__(self) -> None:
        default = Path(tempfile.gettempdir(), "penstock-bench-onnx")
        self._kept = Path(os.environ.get(KEPT) or default, f"opset{OPSET}")
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, source: Path) -> Path:
        """The ONNX file of *source*. Raises `NotConverted` with tf2onnx's reason."""
        name = hashlib.sha256(source.read_bytes()).hexdigest()
        target, reason = self._kept / f"{name}.onnx", self._kept / f"{name}.txt"
        if not target.exists() and not reason.exists():
            self._kept.mkdir(parents=True, exist_ok=True)
            found = self._convert(source, target)
            if found is not None:
                target.unlink(missing_ok=True)
                reason.write_text(found, "utf-8")
        if reason.exists():
            raise NotConverted(reason.read_text("utf-8"))
        return target

    def close(self) -> None:
        """Ends the process, so that its memory and threads do not disturb the race."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _convert(self, source: Path, target: Path) -> str | None:
        """Writes *target*. Returns the reason if tf2onnx cannot."""
        if PYTHON not in os.environ:
            raise NotConverted(f"{PYTHON} names no Python that has tf2onnx")
        if self._process is None:
            self._process = subprocess.Popen(
                [os.environ[PYTHON], "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""},
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([str(source), str(target), OPSET]), file=process.stdin, flush=True)
        if select.select([process.stdout], [], [], LONGEST_S)[0]:
            answer = process.stdout.readline()
            if answer:
                found: str | None = json.loads(answer)
                return found
        self.close()
        return f"tf2onnx ended, or took more than {LONGEST_S:g} s"


def versions() -> dict[str, str]:
    """The versions of the converter and its dependencies; empty without a converter."""
    if PYTHON not in os.environ:
        return {}
    program = (
        "import json; from importlib.metadata import version as v; "
        "print(json.dumps({n: v(n) for n in ('tf2onnx', 'tensorflow-cpu', 'onnx')}))"
    )
    done = subprocess.run(
        [os.environ[PYTHON], "-c", program], check=True, capture_output=True, text=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return {f"{name} (converting)" if name == "onnx" else name: v for name, v in found.items()}
