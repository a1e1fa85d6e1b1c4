"""Copies and executions in any order: what memories hold is what a table of theirs says (NNAPI
sections 6.5 and 6.6).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock import nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import GeneralFailure
from penstock.ir import NDArray
from penstock.memory import PROT_READ, PROT_WRITE
from penstock.memory.storage import OnDevice
from penstock.testing.doubles import InterceptingDevice
from tests.unit.nnapi.building import FLOAT, MODES, answers, compiled, unary

COLUMNS: Final = 2
MEMORIES: Final = st.integers(0, 3)
"""Two of a device, for any number of rows and for two; shared memory for two rows and for three."""
ROWS: Final = st.integers(1, 3)


class Breakable(InterceptingDevice):
    """The reference device; while it is *broken*, its executions fail."""

    def __init__(self) -> None:
        super().__init__(ReferenceDevice(), "breakable")
        self.broken = False

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], Any]) -> Any:
        result = proceed()
        if self.broken and method in {"execute", "burst_execute"}:
            raise GeneralFailure("broken, as told")
        return result


@pytest.fixture(scope="module")
def device() -> Breakable:
    return Breakable()


class Memories(RuleBasedStateMachine):
    """Each memory beside the value that it must hold, None for none."""

    device: Breakable
    compilation: nnapi.Compilation

    @initialize()
    def make(self) -> None:
        self.memories = [self.allocated(()), self.allocated((2, COLUMNS)), shared(2), shared(3)]
        zeros = [np.zeros((rows, COLUMNS), np.float32) for rows in (2, 3)]
        self.held: list[NDArray | None] = [None, None, *zeros]
        self.values = 0

    def allocated(self, dimensions: tuple[int, ...]) -> nnapi.Memory:
        with nnapi.MemoryDesc() as desc:
            desc.add_input_role(self.compilation, 0)
            desc.add_output_role(self.compilation, 0)
            desc.set_dimensions(dimensions)
            desc.finish()
            return nnapi.Memory.create_from_desc(desc)

    @rule(source=MEMORIES, into=MEMORIES)
    def copy(self, source: int, into: int) -> None:
        held = self.held[source]
        if source == into:
            if held is None:
                return  # it would count as holding a value that nobody knows
            self.memories[source].copy(self.memories[into])
            return
        if held is not None and self.takes(into, held, plain=source >= 2):
            self.memories[source].copy(self.memories[into])
            self.held[into] = held
            return
        self.refused(
            nnapi.ResultCode.BAD_DATA, lambda: self.memories[source].copy(self.memories[into])
        )
        if into < 2:
            self.held[into] = None

    @rule(into=MEMORIES, rows=ROWS, mode=st.sampled_from(sorted(MODES)), broken=st.booleans())
    def write(self, into: int, rows: int, mode: str, broken: bool) -> None:
        if mode == "fenced" or (into >= 2 and rows != into):
            return  # rows are only known when it has run, or there is no room for them
        self.values += 1
        value = np.full((rows, COLUMNS), self.values, np.float32)
        execution = nnapi.Execution(self.compilation)
        execution.set_input(0, value, type=nnapi.OperandDesc(FLOAT, value.shape))
        memory = self.memories[into]
        execution.set_output_from_memory(0, memory, 0, memory.size if into >= 2 else 0)
        self.device.broken = broken
        try:
            if broken or (into == 1 and rows != 2):
                with pytest.raises(nnapi.NnapiError):
                    MODES[mode](execution)
                if into < 2:
                    self.held[into] = None
                else:
                    # Nobody knows what a failed run has left.
                    memory.store.content()[:] = 0
                    self.held[into] = np.zeros((into, COLUMNS), np.float32)
                return
            MODES[mode](execution)
        finally:
            self.device.broken = False
        assert execution.get_output_operand_dimensions(0) == value.shape
        self.held[into] = value

    @rule(source=MEMORIES, rows=ROWS, mode=st.sampled_from(sorted(MODES)))
    def read(self, source: int, rows: int, mode: str) -> None:
        if source >= 2 and rows != source:
            return
        shape = (rows, COLUMNS)
        if source == 1 and rows != 2:
            return  # refused when it is set
        out = np.full(shape, -1, np.float32)
        described = nnapi.OperandDesc(FLOAT, shape)
        memory = self.memories[source]
        execution = nnapi.Execution(self.compilation)
        execution.set_input_from_memory(
            0, memory, 0, memory.size if source >= 2 else 0, type=described
        )
        execution.set_output(0, out, type=described)
        held = self.held[source]
        if held is not None and held.shape == shape:
            MODES[mode](execution)
            assert out.tolist() == held.tolist()
        else:
            self.refused(nnapi.ResultCode.OP_FAILED, lambda: MODES[mode](execution))
            assert (out == -1).all()

    @invariant()
    def states(self) -> None:
        for memory, held in zip(
            getattr(self, "memories", ()), getattr(self, "held", ()), strict=True
        ):
            assert memory.is_initialized == (held is not None)
            if held is not None:
                assert memory.size == held.nbytes

    def takes(self, into: int, value: NDArray, *, plain: bool) -> bool:
        """Whether memory *into* can hold *value*; *plain* bytes do not say what shape they have."""
        if into >= 2:
            return bool(value.nbytes == self.memories[into].size)
        return not plain if into == 0 else value.shape == (2, COLUMNS)

    def refused(self, code: nnapi.ResultCode, call: Callable[[], object]) -> None:
        with pytest.raises(nnapi.NnapiError) as caught:
            call()
        assert caught.value.code is code

    def teardown(self) -> None:
        for memory in getattr(self, "memories", ()):
            memory.close()


def shared(rows: int) -> nnapi.Memory:
    nbytes = rows * COLUMNS * 4
    fd = os.memfd_create("test")
    os.ftruncate(fd, nbytes)
    memory = nnapi.Memory.create_from_fd(nbytes, PROT_READ | PROT_WRITE, fd)
    os.close(fd)
    return memory


def test_memories(device: Breakable) -> None:
    with compiled(unary(dimensions=(0, COLUMNS)), [device]) as compilation:

        class Machine(Memories):
            pass

        Machine.device, Machine.compilation = device, compilation
        case = Machine.TestCase
        case.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
        case().runTest()


def test_memory_that_is_lost_with_its_device_says_so_each_time(
    device: Breakable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiled(unary("RELU", (2, COLUMNS)), [device]) as compilation, nnapi.MemoryDesc() as desc:
        desc.add_input_role(compilation, 0)
        desc.finish()
        with nnapi.Memory.create_from_desc(desc) as memory, shared(2) as zeros:
            assert memory.is_in_device
            zeros.copy(memory)
            monkeypatch.setattr(OnDevice, "lost", "its process ended")
            for _ in range(2):
                execution = nnapi.Execution(compilation)
                execution.set_input_from_memory(0, memory)
                execution.set_output(0, np.empty((2, COLUMNS), np.float32))
                with answers(
                    nnapi.ResultCode.DEAD_OBJECT, "lost with its device .*; allocate another"
                ):
                    execution.compute()
