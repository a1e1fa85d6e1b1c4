"""NNAPI's validation tests of memories, by their names (NNAPI section 6.3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import hal, nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.ir import Model as IrModel
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer, HardwareBufferFormat, dmabuf
from penstock.testing.doubles import InterceptingDevice
from tests.unit.nnapi import building

pytestmark = pytest.mark.usefixtures("nothing_left_open")

BOTH: Final = PROT_READ | PROT_WRITE
X: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
NBYTES: Final = X.nbytes


@pytest.fixture
def relu() -> Iterator[nnapi.Compilation]:
    with building.compiled(building.unary()) as made:
        yield made


class TestValidationTestMemory:
    @pytest.mark.parametrize(
        ("size", "protect", "fd", "offset", "code"),
        [
            (0, BOTH, 0, 0, building.BAD_DATA),
            (4096, BOTH, -1, 0, building.BAD_DATA),
            (4096, 8, 0, 0, building.BAD_DATA),
            (4096, 4 | PROT_READ, 0, 0, building.BAD_DATA),
            (4096, BOTH, 10**6, 0, building.BAD_DATA),
            (4097, BOTH, 0, 0, building.BAD_DATA),
            (4096, BOTH, 0, 4096, building.BAD_DATA),
            (4096, BOTH, 0, -1, building.BAD_DATA),
            (None, BOTH, 0, 0, building.UNEXPECTED_NULL),
            (2**63, BOTH, 0, 0, building.BAD_DATA),
        ],
    )
    def test_create_from_fd(
        self, size: Any, protect: int, fd: int, offset: int, code: nnapi.ResultCode
    ) -> None:
        own = os.memfd_create("test")
        os.ftruncate(own, 4096)
        try:
            with building.answers(code):
                nnapi.Memory.create_from_fd(size, protect, own if fd == 0 else fd, offset)
        finally:
            os.close(own)

    def test_the_descriptor_is_duplicated_and_the_bytes_are_shared(self) -> None:
        fd = os.memfd_create("test")
        os.ftruncate(fd, 8192)
        with nnapi.Memory.create_from_fd(100, BOTH, fd, 4096) as memory:
            assert memory.size == 100
            assert memory.is_initialized
            memory.store.content()[:3] = 1, 2, 3
            assert os.pread(fd, 4, 4096) == b"\1\2\3\0"
            os.close(fd)
            memory.store.content()[3] = 4

    @pytest.mark.parametrize("protect", [0, PROT_WRITE])
    def test_unmappable_memory_is_refused(self, relu: nnapi.Compilation, protect: int) -> None:
        with building.shared(NBYTES, protect) as memory, building.shared(NBYTES) as other:
            execution = nnapi.Execution(relu)
            execution.set_input_from_memory(0, memory, 0, NBYTES)
            execution.set_output(0, np.empty_like(X))
            with building.answers(building.UNMAPPABLE):
                execution.compute()
            for source, target in ((memory, other), (other, memory)):
                with building.answers(building.UNMAPPABLE):
                    source.copy(target)
            model = nnapi.Model()
            index = model.add_operand(building.FLOAT, (2, 3))
            with building.answers(building.UNMAPPABLE):
                model.set_operand_value_from_memory(index, memory, 0, NBYTES)

    def test_read_only_memory_is_no_copy_target(self, relu: nnapi.Compilation) -> None:
        with building.shared(NBYTES, PROT_READ) as memory, building.shared(NBYTES) as other:
            memory.copy(other)
            with building.answers(building.UNMAPPABLE):
                other.copy(memory)
            execution = nnapi.Execution(relu)
            execution.set_input_from_memory(0, memory, 0, NBYTES)
            execution.set_output_from_memory(0, memory, 0, NBYTES)
            with building.answers(building.UNMAPPABLE):
                execution.compute()

    def test_create_from_hardware_buffer(self) -> None:
        with building.answers(building.UNEXPECTED_NULL):
            nnapi.Memory.create_from_hardware_buffer(None)  # type: ignore[arg-type]
        with building.answers(building.BAD_DATA):
            nnapi.Memory.create_from_hardware_buffer(X)  # type: ignore[arg-type]
        buffer = HardwareBuffer.allocate(100)
        buffer.close()
        with building.answers(building.BAD_STATE):
            nnapi.Memory.create_from_hardware_buffer(buffer)
        with building.blob(100) as memory:
            assert memory.size == 100

    def test_a_hardware_buffer_that_is_no_blob(self, relu: nnapi.Compilation) -> None:
        with HardwareBuffer.allocate(2, 3, format=HardwareBufferFormat.R8G8B8A8_UNORM) as buffer:
            memory = nnapi.Memory.create_from_hardware_buffer(buffer)
            assert memory.size == 0
            model = nnapi.Model()
            index = model.add_operand(building.FLOAT, (2, 3))
            with building.answers(building.BAD_DATA):
                model.set_operand_value_from_memory(index, memory, 0, NBYTES)
            with building.shared(NBYTES) as other:
                for source, target in ((memory, other), (other, memory)):
                    with building.answers(building.OP_FAILED):
                        source.copy(target)
            execution = nnapi.Execution(relu)
            for offset, length in ((0, NBYTES), (4, 0), (0, 1)):
                with building.answers(building.BAD_DATA):
                    execution.set_input_from_memory(0, memory, offset, length)
            execution.set_input_from_memory(0, memory, 0, 0)
            execution.set_output(0, np.empty_like(X))
            with building.answers(building.OP_FAILED, "hardware_buffer"):
                execution.compute()
            memory.close()

    def test_images_run_on_a_device_that_maps_images(self) -> None:
        """They are lent to it as a whole, and not copied."""
        with (
            HardwareBuffer.allocate(2, 3, format=HardwareBufferFormat.R8G8B8A8_UNORM) as buffer,
            building.compiled(building.unary(), [ImageDevice()]) as compilation,
        ):
            with buffer.lock(write=True) as content:
                content[:NBYTES].view(np.float32)[:] = 1.0
                row = len(content) // 3
            out = np.empty_like(X)
            with nnapi.Memory.create_from_hardware_buffer(buffer) as memory:
                execution = nnapi.Execution(compilation)
                execution.set_input_from_memory(0, memory)
                execution.set_output(0, out)
                execution.compute()
                assert (out == 1.0).all()
                assert row >= 8
                assert execution.receipt.copies == ()
                execution = nnapi.Execution(compilation)
                execution.set_input(0, X)
                execution.set_output_from_memory(0, memory)
                execution.compute()
                assert execution.get_output_operand_dimensions(0) == (2, 3)
            with buffer.lock() as content:
                assert content[:NBYTES].tobytes() == X.tobytes()

    def test_constants(self) -> None:
        for memory in (
            building.filled(building.shared(64), 2.0),
            building.filled(building.blob(64), 2.0),
        ):
            model = nnapi.Model()
            x, c, y = (model.add_operand(building.FLOAT, (2, 3)) for _ in range(3))
            for offset, length in ((41, NBYTES), (0, NBYTES - 1), (2**32 - 8, NBYTES)):
                with building.answers(building.BAD_DATA):
                    model.set_operand_value_from_memory(c, memory, offset, length)
            model.set_operand_value_from_memory(c, memory, 8, NBYTES)
            fuse = model.add_operand(nnapi.OperandType.INT32)
            model.set_operand_value(fuse, 0)
            model.add_operation("ADD", [x, c, fuse], [y])
            model.identify_inputs_and_outputs([x], [y])
            model.finish()
            with building.compiled(model) as compilation:
                out = np.empty_like(X)
                execution = nnapi.Execution(compilation)
                execution.set_input(0, X)
                execution.set_output(0, out)
                execution.compute()
                assert out.tolist() == (X + 2).tolist()
            memory.close()

    def test_dma_buf_access_is_bracketed_by_sync_calls(
        self, relu: nnapi.Compilation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[tuple[str, bool]] = []

        def begin(_: int, *, write: bool) -> bool:
            told.append(("begin", write))
            return True

        def end(_: int, *, write: bool) -> None:
            told.append(("end", write))

        with (
            building.blob(NBYTES) as one,
            building.blob(NBYTES) as other,
            building.shared(NBYTES) as plain,
        ):
            monkeypatch.setattr(dmabuf, "begin", begin)
            monkeypatch.setattr(dmabuf, "end", end)
            execution = nnapi.Execution(relu)
            execution.set_input_from_memory(0, one, 0, NBYTES)
            execution.set_output_from_memory(0, other, 0, NBYTES)
            execution.compute()
            assert told == [("begin", False), ("begin", True), ("end", True), ("end", False)]
            told.clear()
            plain.copy(other)
            assert told == [("begin", True), ("end", True)]
            execution.close()

    def test_closed(self, relu: nnapi.Compilation) -> None:
        memory = building.shared(NBYTES)
        memory.close()
        memory.close()
        with building.answers(building.BAD_STATE):
            nnapi.Execution(relu).set_input_from_memory(0, memory, 0, NBYTES)
        with building.shared(NBYTES) as other, building.answers(building.BAD_STATE):
            memory.copy(other)


class ImageDevice(InterceptingDevice):
    """The reference device; it takes images for the bytes that they are."""

    def __init__(self) -> None:
        super().__init__(ReferenceDevice(), "images")

    @property
    def capabilities(self) -> hal.Capabilities:
        known = self.device.capabilities
        return replace(known, memory_kinds=(*known.memory_kinds, "hardware_buffer"))

    def prepare_model(self, model: IrModel, config: hal.PrepareConfig) -> hal.PreparedModel:
        return ImageModel(super().prepare_model(model, config), model)


class ImageModel(hal.PreparedModelBase):
    def __init__(self, prepared: hal.PreparedModel, model: IrModel) -> None:
        self.prepared, self.model = prepared, model

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        (memory,) = request.pools
        assert memory.name == "hardware_buffer"
        with HardwareBuffer.wrap(*memory.handle) as buffer, buffer.lock(write=True) as content:
            lent = hal.HostMemory(content[:NBYTES].view(np.float32).reshape(2, 3))

            def replaced(argument: hal.RequestArgument) -> hal.RequestArgument:
                if not isinstance(argument, hal.PoolArgument):
                    return argument
                assert (argument.location.offset, argument.location.length) == (0, 0)
                return lent

            inner = hal.Request(
                tuple(map(replaced, request.inputs)), tuple(map(replaced, request.outputs))
            )
            return self.prepared.execute(inner, config)

    def close(self) -> None:
        self.prepared.close()
