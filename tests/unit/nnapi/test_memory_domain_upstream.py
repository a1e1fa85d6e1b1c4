"""NNAPI's own tests of memory domains, by their names, on doubles that allocate as told (NNAPI
section 6.7).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pytest

from penstock import nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.hal import Device
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer
from penstock.nnapi.memory_kinds import PoolStore
from tests import support_nnapi_drivers
from tests.unit.nnapi.building import FLOAT, MODES, answers, compiled, fuse, unary

BOTH: Final = PROT_READ | PROT_WRITE
X: Final = np.linspace(-3, 8, 12, dtype=np.float32).reshape(3, 4)
NBYTES: Final = X.nbytes


def two_parts() -> nnapi.Model:
    """z = (x + y) * x: an ADD that one driver takes, and a MUL of another."""
    model = nnapi.Model()
    x, y, h, z = (model.add_operand(FLOAT, (3, 4)) for _ in range(4))
    model.add_operation("ADD", [x, y, fuse(model)], [h])
    model.add_operation("MUL", [h, y, fuse(model)], [z])
    model.identify_inputs_and_outputs([x, y], [h, z])
    model.finish()
    return model


@pytest.mark.parametrize("outcome", support_nnapi_drivers.OUTCOMES)
@pytest.mark.parametrize("explicit", [False, True], ids=["any devices", "explicit device list"])
@pytest.mark.parametrize("level", support_nnapi_drivers.LEVELS)
@pytest.mark.parametrize("door", ["in process", "isolated"])
class TestMemoryDomain:
    """Whether memory is a device's, shared memory, or none at all."""

    @pytest.fixture(autouse=True)
    def chosen(
        self,
        only: Callable[..., None],
        door: str,
        level: str,
        explicit: bool,
        outcome: support_nnapi_drivers.Outcome,
        request: pytest.FixtureRequest,
    ) -> Iterator[None]:
        self.level, self.explicit, self.outcome = level, explicit, outcome
        self.only = only
        self.hosted: list[Device] | None = None
        if door == "isolated":
            # Its client keeps memory for the next call.
            self.hosted = request.getfixturevalue("nnapi_host")
        else:
            request.getfixturevalue("nothing_left_open")
        with ExitStack() as self.made:
            yield

    def compile(self, model: nnapi.Model, *drivers: Device) -> nnapi.Compilation:
        if self.explicit:
            return self.made.enter_context(compiled(model, drivers))
        self.only(*drivers, ReferenceDevice())
        return self.made.enter_context(compiled(model))

    def driver(self, part: str) -> Device:
        if self.hosted is not None:
            return self.hosted[
                support_nnapi_drivers.DOMAINS.index((part, self.level, self.outcome))
            ]
        return support_nnapi_drivers.domain_driver(part, self.level, self.outcome)

    @property
    def knows_domains(self) -> bool:
        """Whether the drivers are of a level that has memory of their own."""
        return support_nnapi_drivers.LEVELS[self.level] >= 4

    def check_asked(self, *drivers: Device, times: int) -> None:
        """How often each was asked for memory, where that can be seen."""
        for driver in drivers:
            if isinstance(driver, support_nnapi_drivers.DomainDriver):
                assert len(driver.asked) == times

    @property
    def allocates(self) -> bool:
        """Whether the driver is asked for memory, and gives it."""
        return self.outcome == "OK" and self.knows_domains

    def allocated(
        self,
        compilation: nnapi.Compilation,
        inputs: Sequence[int],
        outputs: Sequence[int],
        dimensions: Sequence[int] = (),
    ) -> nnapi.Memory:
        with nnapi.MemoryDesc() as desc:
            for index in inputs:
                desc.add_input_role(compilation, index)
            for index in outputs:
                desc.add_output_role(compilation, index)
            desc.set_dimensions(dimensions)
            desc.finish()
            return self.made.enter_context(nnapi.Memory.create_from_desc(desc))

    def check(
        self, compilation: nnapi.Compilation, inputs: Sequence[int], outputs: Sequence[int]
    ) -> nnapi.Memory | None:
        """Allocates for roles that one driver serves; the memory, where there is any."""
        if not self.allocates and self.explicit:
            with answers(nnapi.ResultCode.OP_FAILED):
                self.allocated(compilation, inputs, outputs)
            return None
        memory = self.allocated(compilation, inputs, outputs)
        assert memory.is_in_device == self.allocates
        assert memory.size == NBYTES
        if not self.allocates:
            self.check_fallback(memory, blob=self.knows_domains)
        return memory

    def check_fallback(self, memory: nnapi.Memory, *, blob: bool) -> None:
        """A hardware buffer where every driver takes these, else plain shared memory."""
        assert isinstance(memory.store, PoolStore)
        expected = "hardware_buffer_blob" if blob else "ashmem"
        assert memory.store.pool.memory.name == expected

    def test_single_partition(self) -> None:
        driver = self.driver("whole")
        compilation = self.compile(two_parts(), driver)
        memory = self.check(compilation, [0], [1])
        self.check_asked(driver, times=int(self.knows_domains))
        if isinstance(driver, support_nnapi_drivers.DomainDriver) and driver.asked:
            ((_, roles),) = driver.asked
            assert [(r.kind, r.index, r.frequency) for r in roles] == [
                ("input", 0, 1.0),
                ("output", 1, 1.0),
            ]
        if memory is None:
            return
        h = np.empty_like(X)
        for run in MODES.values():
            writes = nnapi.Execution(compilation)
            writes.set_input(0, X)
            writes.set_input(1, X)
            writes.set_output(0, h)
            writes.set_output_from_memory(1, memory)
            run(writes)
            reads = nnapi.Execution(compilation)
            reads.set_input_from_memory(0, memory)
            reads.set_input(1, X)
            reads.set_output(0, h)
            reads.set_output(1, None)
            run(reads)
            assert h.tolist() == ((X + X) * X + X).tolist()

    def test_multiple_partitions(self) -> None:
        first, second = self.driver("first"), self.driver("second")
        compilation = self.compile(two_parts(), first, second)
        assert [s.device for s in compilation.receipt.steps] == [first.name, second.name]
        # The first part alone uses x, the second alone writes z.
        self.check(compilation, [0], [])
        self.check(compilation, [], [1])
        self.check_asked(first, second, times=int(self.knows_domains))
        # Both read y, and what the one writes the other reads.
        for inputs, outputs in (([1], []), ([], [0]), ([0], [1])):
            if self.explicit:
                with answers(nnapi.ResultCode.OP_FAILED):
                    self.allocated(compilation, inputs, outputs)
            else:
                memory = self.allocated(compilation, inputs, outputs)
                assert not memory.is_in_device
                self.check_fallback(memory, blob=self.knows_domains)
        self.check_asked(first, second, times=int(self.knows_domains))

    def test_dynamic_shape(self) -> None:
        """Nothing takes the place of memory whose size is not known."""
        driver = self.driver("whole")
        compilation = self.compile(unary(dimensions=(0, 4)), driver)
        if not self.allocates:
            with answers(nnapi.ResultCode.OP_FAILED):
                self.allocated(compilation, [0], [0])
            if self.explicit:
                return
            memory = self.allocated(compilation, [0], [0], (3, 4))
            self.check_fallback(memory, blob=self.knows_domains)
            return
        memory = self.allocated(compilation, [0], [0])
        assert memory.is_in_device
        assert memory.size == 0
        for rows in (3, 5, 2):
            x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
            given = nnapi.OperandDesc(FLOAT, (rows, 4))
            writes = nnapi.Execution(compilation)
            writes.set_input(0, x, type=given)
            writes.set_output_from_memory(0, memory)
            writes.compute()
            assert writes.get_output_operand_dimensions(0) == (rows, 4)
            assert memory.size == x.nbytes
            out = np.empty_like(x)
            reads = nnapi.Execution(compilation)
            reads.set_input_from_memory(0, memory, type=given)
            reads.set_output(0, out)
            reads.compute()
            assert out.tolist() == np.maximum(x, 0).tolist()
            wrong = nnapi.Execution(compilation)
            wrong.set_input_from_memory(0, memory, type=nnapi.OperandDesc(FLOAT, (rows + 1, 4)))
            wrong.set_output(0, np.empty((rows + 1, 4), np.float32))
            with answers(nnapi.ResultCode.OP_FAILED):
                wrong.compute()

    def test_memory_copy(self) -> None:
        """Every pair of a device's memory, shared memory and a hardware buffer."""
        compilation = self.compile(unary(dimensions=(3, 4)), self.driver("whole"))
        if self.explicit and not self.allocates:
            with answers(nnapi.ResultCode.OP_FAILED):
                self.allocated(compilation, [0], [0])
            return
        device = [self.allocated(compilation, [0], [0]) for _ in range(2)]
        host = [self.shared(NBYTES), self.blob(NBYTES)]
        wrong = [self.shared(NBYTES + 4), self.blob(NBYTES - 4)]
        for source in (*device, *host):
            for target in (*device, *host):
                self.filled(host[0], X)
                if source in device:
                    host[0].copy(source)
                elif source is not host[0]:
                    self.filled(source, X)
                source.copy(target)
                result = self.blob(NBYTES)
                target.copy(result)
                assert result.store.content().tobytes() == X.tobytes()
        for other in wrong:
            for good in (*device, *host):
                if good in device:
                    host[0].copy(good)
                with answers(nnapi.ResultCode.BAD_DATA):
                    good.copy(other)
                with answers(nnapi.ResultCode.BAD_DATA):
                    other.copy(good)
                assert good.is_initialized == (good in host)

    def test_memory_copy_of_a_dynamic_shape(self) -> None:
        compilation = self.compile(unary(dimensions=(0, 4)), self.driver("whole"))
        if not self.allocates:
            # What the runtime allocates instead, if it may, must have a size.
            with answers(nnapi.ResultCode.OP_FAILED):
                self.allocated(compilation, [0], [0])
            return
        known, unknown = (
            self.allocated(compilation, [0], [0], (3, 4)),
            self.allocated(compilation, [0], [0]),
        )
        plain = self.filled(self.shared(NBYTES), X)
        # Plain bytes say nothing of a shape, so that the device cannot tell what they are.
        with answers(nnapi.ResultCode.BAD_DATA):
            plain.copy(unknown)
        assert not unknown.is_initialized
        plain.copy(known)
        known.copy(unknown)
        assert unknown.size == NBYTES
        result = self.shared(NBYTES)
        unknown.copy(result)
        assert result.store.content().tobytes() == X.tobytes()
        x = np.ones((2, 4), np.float32)
        writes = nnapi.Execution(compilation)
        writes.set_input(0, x, type=nnapi.OperandDesc(FLOAT, (2, 4)))
        writes.set_output_from_memory(0, unknown)
        writes.compute()
        for target in (known, result):
            with answers(nnapi.ResultCode.BAD_DATA):
                unknown.copy(target)
        unknown.copy(self.shared(x.nbytes))

    def shared(self, nbytes: int) -> nnapi.Memory:
        fd = os.memfd_create("test")
        os.ftruncate(fd, nbytes)
        memory = self.made.enter_context(nnapi.Memory.create_from_fd(nbytes, BOTH, fd))
        os.close(fd)
        return memory

    def blob(self, nbytes: int) -> nnapi.Memory:
        with HardwareBuffer.allocate(nbytes) as buffer:
            return self.made.enter_context(nnapi.Memory.create_from_hardware_buffer(buffer))

    def filled(self, memory: nnapi.Memory, value: Any) -> nnapi.Memory:
        memory.store.content().view(np.float32)[:] = np.asarray(value).reshape(-1)
        return memory
