"""Executions and memory domains on every driver that is there, in this process and in one of its
own (NNAPI sections 5.4 and 6.7).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

from penstock.errors import PlacementError
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.starting import unavailable
from penstock.nnapi import Compilation, Execution, Memory, MemoryDesc, NnapiError, ResultCode
from penstock.runtime.discovery import manager
from tests.unit.nnapi.building import MODES, answers, compiled, finished

DRIVERS: Final = (
    "reference",
    "sample",
    "lab",
    "null",
    "xnnpack",
    "openvino-cpu",
    "onnxruntime-cpu",
)
WITH_DOMAINS: Final = ("reference", "sample", "lab", "openvino-cpu", "onnxruntime-cpu")
X: Final = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
ENTRIES: Final = {"openvino-cpu": "openvino", "onnxruntime-cpu": "onnxruntime"}
"""Drivers of several devices, by a device of theirs."""


@pytest.fixture(params=["in process", "isolated"])
def door(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if found == "isolated" and (reason := unavailable()) is not None:
        pytest.skip(reason)
    return found


@pytest.fixture(params=DRIVERS)
def addition(
    request: pytest.FixtureRequest, door: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compilation]:
    """x + y, compiled for one driver."""
    name: str = request.param
    if door == "isolated":
        monkeypatch.setenv("PENSTOCK_ISOLATE", ENTRIES.get(name, name))
    try:
        (device,) = manager.choose([name])
    except PlacementError as error:
        pytest.skip(f"no {name} here: {error}")
    assert isinstance(device, IsolatedDevice) == (door == "isolated")
    with compiled(finished(), [device]) as made:
        yield made


def right(name: str, out: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bool:
    """Whether *out* is X + X, or the zeros that the driver `null` computes."""
    return bool(((out == 0) if name == "null" else (out == X + X)).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reusable", [False, True], ids=["once", "reusable"])
def test_executions(addition: Compilation, mode: str, reusable: bool) -> None:
    (step,) = addition.receipt.steps
    out = np.full_like(X, 9)
    with Execution(addition) as execution:
        execution.set_reusable(reusable)
        execution.set_input(0, X)
        execution.set_input(1, X)
        execution.set_output(0, out)
        for _ in range(3 if reusable else 1):
            out[:] = 9
            MODES[mode](execution)
            assert right(step.device, out)
        assert [s.device for s in execution.receipt.steps] == [step.device]


def test_memory_domains(addition: Compilation) -> None:
    (step,) = addition.receipt.steps
    with MemoryDesc() as desc:
        desc.add_output_role(addition, 0)
        desc.add_input_role(addition, 0)
        desc.finish()
        if step.device not in WITH_DOMAINS:
            with answers(ResultCode.OP_FAILED):
                Memory.create_from_desc(desc)
            return
        memory = Memory.create_from_desc(desc)
    out = np.full_like(X, 9)
    with memory:
        assert memory.is_in_device
        reads = Execution(addition)
        reads.set_input_from_memory(0, memory)
        reads.set_input(1, np.zeros_like(X))
        reads.set_output(0, out)
        with answers(ResultCode.OP_FAILED):
            reads.compute()
        for mode in MODES.values():
            writes = Execution(addition)
            writes.set_input(0, X)
            writes.set_input(1, X)
            writes.set_output_from_memory(0, memory)
            mode(writes)
            # Arrays may have to be copied to where the driver is; what it wrote stays there.
            assert {c.source for c in writes.receipt.copies} <= {"host"}
            again = Execution(addition)
            again.set_input_from_memory(0, memory)
            again.set_input(1, np.zeros_like(X))
            again.set_output(0, out)
            mode(again)
            assert right(step.device, out)
        both = Execution(addition)
        both.set_input_from_memory(0, memory)
        both.set_input(1, X)
        both.set_output_from_memory(0, memory)
        with pytest.raises(NnapiError) as caught:
            both.compute()
        assert caught.value.code is ResultCode.BAD_DATA
