"""A fault in generated code names the kernel and the operation, before the process ends."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support_llvm import needs_llvm

pytestmark = [
    needs_llvm,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64", reason="Linux on x86-64 alone"
    ),
]

ROOT = Path(__file__).parents[4]

PROGRAM = """
import faulthandler, sys
import numpy as np
if sys.argv[2] == "asked":
    faulthandler.enable()
from penstock.drivers.llvm import LlvmDevice
from penstock.drivers.llvm.frame import Word
from penstock.drivers.llvm.run.running import Run
from penstock.hal import ExecutionConfig, PrepareConfig
from tests.support_threads_llvm import CLASSES, image, network

device, config = LlvmDevice(), PrepareConfig(num_threads=int(sys.argv[1]))
closed = device.prepare_model(network(1), config)
closed.close()
model = device.prepare_model(network(2), config)
run = Run(model.executable.code)
output = np.zeros((1, CLASSES), np.float32)
run.run([image()], [output], ExecutionConfig())
# The weights of the first convolution are now where no memory is.
run.frame[Word.CONSTANTS] = 64
run.run([image()], [output], ExecutionConfig())
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_fault_names_the_kernel_and_its_operation(threads: str) -> None:
    ended = _ended(threads, "asked")
    assert ended.returncode == -signal.SIGSEGV
    ours, _, python = ended.stderr.partition("Fatal Python error: ")
    # A second thread that faults ends the process, also while Python's handler writes of the first.
    assert "Segmentation fault" in python or threads != "1"
    # Two threads may fault at once, and each of them says so.
    for line in ours.splitlines():
        assert line.startswith("penstock: fault in kernel k")
        assert line.endswith("(convolution), of operation 0")
    assert ours


def test_a_fault_is_printed_only_on_demand() -> None:
    ended = _ended("1", "")
    assert ended.returncode == -signal.SIGSEGV
    assert "penstock" not in ended.stderr


def _ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
