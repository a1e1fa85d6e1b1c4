"""A measured run says how long each kernel took, and what share of the peak it reached."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import penstock
from penstock.drivers.llvm import LlvmDevice
from penstock.drivers.llvm.frame import Word
from penstock.drivers.llvm.prepared import LlvmPreparedModel
from penstock.drivers.llvm.run.clock import machine
from penstock.drivers.llvm.run.profiling import SETUP
from penstock.drivers.llvm.run.running import Run
from penstock.hal import ExecutionConfig, PrepareConfig
from tests.support_llvm import needs_llvm
from tests.support_measured import X, lies_within, network as small, types_of
from tests.support_threads_llvm import CLASSES, image, network

pytestmark = needs_llvm

OPERATIONS = {"CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "FULLY_CONNECTED", "SOFTMAX"}


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_are_reported_with_their_operations(threads: int) -> None:
    with penstock.compile(
        network(), devices=[LlvmDevice()], cache=False, num_threads=threads
    ) as model:
        plain = np.array(model.run([image()])[0])
        outputs = model.run([image()], measure=True)
        (step,) = outputs.receipt.steps
        (again,) = model.run([image()], measure=True).receipt.steps
        (unasked,) = model.run([image()]).receipt.steps
    assert np.array_equal(outputs[0], plain)
    assert lies_within(step)
    assert {kind for kernel in step.kernels for kind in types_of(kernel)} >= OPERATIONS
    assert unasked.kernels == ()
    setups = [[k.kernel for k in s.kernels if k.kernel == SETUP] for s in (step, again)]
    assert setups == [[SETUP], []]
    shares = [re.search(r"(\d+)% of peak", kernel.kernel) for kernel in again.kernels]
    found = [int(share[1]) for share in shares if share]
    # A busy machine may have measured too low a peak, but never one of another kind.
    assert len(found) >= 4
    assert all(0 <= share <= 400 for share in found)


def test_the_times_of_kernels_fill_the_run() -> None:
    with penstock.compile(small(), devices=[LlvmDevice()], cache=False, num_threads=1) as model:
        model.run([X])
        (step,) = model.run([X], measure=True).receipt.steps
    kernels = [k for k in step.kernels if k.kernel != SETUP]
    for first, second in itertools.pairwise(kernels):
        assert abs(first.start_ns + first.duration_ns - second.start_ns) <= 1


def test_stamps_rise_and_the_frame_names_no_kernel_behind_the_last() -> None:
    made = LlvmDevice().prepare_model(network(), PrepareConfig(num_threads=2))
    assert isinstance(made, LlvmPreparedModel)
    assert made.executable is not None
    code = made.executable.code
    run = Run(code, timed=True)
    run.run([image()], [np.zeros((1, CLASSES), np.float32)], ExecutionConfig())
    kernels = len(code.manifest.kernels)
    assert len(run.times) == kernels + 1
    assert np.all(np.diff(run.times) >= 0)
    assert run.times[0] > 0
    # Else a fault early in the next run would be taken for one of this run's last kernel.
    assert run.frame[Word.KERNEL] == kernels
    ns = machine.ns_a_tick(code.image)
    assert 0.1 < ns < 1000
    assert 0 < (run.times[-1] - run.times[0]) * ns < 10**10
    made.close()


def test_peaks_are_those_of_the_products_that_the_code_has() -> None:
    made = LlvmDevice().prepare_model(network(1), PrepareConfig())
    assert isinstance(made, LlvmPreparedModel)
    assert made.executable is not None
    code = made.executable.code
    assert machine.peak(code.image, "float32", 4) > 0
    assert machine.peak(code.image, "float32", 4) == machine.peak(code.image, "float32", 4)
    made.close()
