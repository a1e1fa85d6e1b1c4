"""NNAPI's generated tests through its object model: every kind of execution and memory, on the
operation vectors (NNAPI section 5.4, `GeneratedTest`).

Each case of a share of the set is executed in one combination of executor, memory and reuse; the
combinations take turns.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pytest

from penstock import nnapi
from penstock.errors import ModelError
from penstock.ir import NDArray
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer
from penstock.nnapi.description import MAXIMUM_FEATURE_LEVEL, NnapiOperand
from penstock.nnapi.lowering import lower
from penstock.nnapi.ports import size_of
from penstock.testing.vectors import load_directory
from penstock.testing.vectors.derive import Expected, Run, dynamic_output_shape, plain_run
from penstock.testing.vectors.runner import difference
from tests.unit.nnapi.building import MODES
from tests.unit.nnapi.replay import replay

SHARE: Final = 3
SPARE: Final = 4096
UNWRITTEN: Final = 0x5A
Memories = Literal["buffer", "ashmem", "blob", "device"]
KINDS: Final[tuple[Memories, ...]] = ("buffer", "ashmem", "blob", "device")
COMBINATIONS: Final = tuple(itertools.product(MODES, KINDS, (False, True)))


@pytest.fixture(scope="module")
def runs(corpus: Path) -> list[Run]:
    """Runs of a share of the cases, with shapes known and, where they can be left open, not."""
    directory = corpus / "conformance" / "nnapi"
    if not directory.is_dir():
        pytest.skip("the corpus has no operation vectors of NNAPI")
    cases = [case for specification in load_directory(directory) for case in specification.cases]
    found = []
    for at, case in enumerate(cases[::SHARE]):
        run = plain_run(case)
        dynamic = dynamic_output_shape(run) if at % 3 == 0 else None
        found.append(run if dynamic is None else dynamic)
    return found


def test_generated(runs: list[Run]) -> None:
    counted: Counter[str] = Counter()
    wrong: list[str] = []
    turns: dict[str, Iterator[int]] = {"static": itertools.count(), "dynamic": itertools.count(5)}
    for run in runs:
        turn = turns["static" if run.kind == "plain" else "dynamic"]
        mode, kind, reusable = COMBINATIONS[next(turn) % len(COMBINATIONS)]
        name = f"{run.case.name} ({run.kind}, {mode}, {kind}, reusable={reusable})"
        try:
            outcome = attempt(run, mode, kind, reusable=reusable)
        except nnapi.NnapiError as error:
            outcome = f"{error}"
        if outcome in {"passed", "not for this"}:
            counted[outcome] += 1
            counted[f"{mode} {kind} {outcome}"] += 1
        else:
            wrong.append(f"{name}: {outcome}")
    assert not wrong, "\n".join(wrong)
    assert all(counted[f"{mode} {kind} passed"] > 3 for mode in MODES for kind in KINDS)
    assert counted["passed"] > 0.8 * len(runs)


def attempt(run: Run, mode: str, kind: Memories, *, reusable: bool) -> str:
    """What became of *run*: "passed", "not for this", or what is wrong."""
    expected, endless = run.case.entry.expect_failure, run.case.is_infinite_loop
    if any(array.size == 0 for array in run.fed) or run.feature_level > MAXIMUM_FEATURE_LEVEL:
        return "not for this"
    try:
        lower(run.model)
    except ModelError:
        if not expected:
            # Only without its optional inputs do the shapes of this one agree.
            assert run.omitted
            return "not for this"
    with ExitStack() as stack:
        try:
            compilation = nnapi.Compilation.create_for_devices(replay(run.model), ["reference"])
            stack.enter_context(compilation)
            compilation.finish()
        except nnapi.NnapiError:
            if expected and not endless:
                return "passed"
            raise
        if kind == "device" and not compilation.compiled.plan.steps:
            # What computes nothing runs on no device.
            return "not for this"
        execution = stack.enter_context(nnapi.Execution(compilation))
        execution.set_reusable(reusable)
        if endless:
            execution.set_loop_timeout(100_000_000)
        fed = iter(run.fed)
        for place in range(len(run.model.main.inputs)):
            array = None if place in run.omitted else np.ascontiguousarray(next(fed))
            bind_input(stack, execution, place, array, kind)
        rooms = [bind_output(stack, execution, p, e, kind) for p, e in enumerate(run.outputs)]
        if mode == "fenced" and not all(room.is_static for room in rooms):
            with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
                MODES[mode](execution)
            return "not for this"
        for _ in range(2 if reusable else 1):
            try:
                MODES[mode](execution)
            except nnapi.NnapiError as error:
                late = error.code is nnapi.ResultCode.MISSED_DEADLINE_TRANSIENT
                if expected and late == endless:
                    return "passed"
                raise
            if expected:
                return "a failure was expected, and there was none"
            if (text := difference(run, [room.value(execution) for room in rooms])) is not None:
                return text
        return "passed"


@dataclass(frozen=True, slots=True)
class Room:
    """Where output *place* goes: an array of bytes, or a memory."""

    place: int
    operand: NnapiOperand
    where: NDArray | nnapi.Memory

    @property
    def is_static(self) -> bool:
        return self.operand.dimensions is not None and None not in self.operand.dimensions

    def value(self, execution: nnapi.Execution) -> NDArray:
        """What the last run wrote."""
        rank = execution.get_output_operand_rank(self.place)
        shape = execution.get_output_operand_dimensions(self.place) if rank else ()
        dtype = self.operand.type.dtype.numpy
        nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = self.where
        if nbytes == 0:
            return np.empty(shape, dtype)
        if isinstance(raw, nnapi.Memory) and raw.is_managed:
            assert raw.size == nbytes
            copied = np.empty(nbytes, np.uint8)
            with ExitStack() as stack:
                target = shared(stack, copied, "ashmem")
                raw.copy(target)
                copied[:] = target.store.content()
            raw = copied
        elif isinstance(raw, nnapi.Memory):
            raw = raw.store.content()
        assert (raw[nbytes:] == UNWRITTEN).all()
        return np.array(raw[:nbytes]).view(dtype).reshape(shape)


def bind_input(
    stack: ExitStack, execution: nnapi.Execution, place: int, array: NDArray | None, kind: Memories
) -> None:
    if array is None:
        execution.set_input(place, None)
        return
    compilation = execution.compilation
    operand = compilation.port("input", place).operand
    described = nnapi.OperandDesc(operand.type, array.shape, operand.scale, operand.zero_point)
    raw = array.reshape(-1).view(np.uint8)
    if kind == "buffer":
        execution.set_input(place, raw, type=described)
    elif kind == "device":
        memory = allocated(stack, compilation, "input", place, array.shape)
        shared(stack, raw, "ashmem").copy(memory)
        execution.set_input_from_memory(place, memory, type=described)
    else:
        memory = shared(stack, raw, kind)
        execution.set_input_from_memory(place, memory, 0, raw.nbytes, type=described)


def bind_output(
    stack: ExitStack, execution: nnapi.Execution, place: int, expected: Expected, kind: Memories
) -> Room:
    compilation = execution.compilation
    operand = compilation.port("output", place).operand
    if kind == "device":
        memory = allocated(stack, compilation, "output", place, ())
        execution.set_output_from_memory(place, memory)
        return Room(place, operand, memory)
    size = size_of(operand, operand.dimensions)
    recorded = 0 if expected.values is None else expected.values.nbytes
    bytes_ = np.full((recorded if size is None else size) + SPARE, UNWRITTEN, np.uint8)
    length = bytes_.nbytes if size is None else size
    if kind == "buffer":
        execution.set_output(place, bytes_, length)
        return Room(place, operand, bytes_)
    memory = shared(stack, bytes_, kind)
    execution.set_output_from_memory(place, memory, 0, length)
    return Room(place, operand, memory)


def shared(stack: ExitStack, content: NDArray, kind: Memories) -> nnapi.Memory:
    """Shared memory with that content."""
    if kind == "blob":
        with HardwareBuffer.allocate(content.nbytes) as buffer:
            memory = nnapi.Memory.create_from_hardware_buffer(buffer)
    else:
        fd = os.memfd_create("test")
        os.ftruncate(fd, content.nbytes)
        memory = nnapi.Memory.create_from_fd(content.nbytes, PROT_READ | PROT_WRITE, fd)
        os.close(fd)
    stack.callback(memory.close)
    memory.store.content()[:] = content
    return memory


def allocated(
    stack: ExitStack, compilation: nnapi.Compilation, role: str, place: int, shape: tuple[int, ...]
) -> nnapi.Memory:
    """The device's own memory for that input or output."""
    with nnapi.MemoryDesc() as desc:
        add = desc.add_input_role if role == "input" else desc.add_output_role
        add(compilation, place)
        desc.set_dimensions(shape)
        desc.finish()
        memory = nnapi.Memory.create_from_desc(desc)
    stack.callback(memory.close)
    assert memory.is_in_device
    return memory
