"""NNAPI's validation tests of memories and their descriptors, by their names (NNAPI sections 6.3 to 6.7)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.drivers.reference import ReferenceDevice
from penstock.hal import (
    Capabilities,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    PoolArgument,
    PrepareConfig,
    PreparedModel,
    PreparedModelBase,
    Request,
    RequestArgument,
)
from penstock.ir import Model as IrModel
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer, HardwareBufferFormat, dmabuf
from penstock.nnapi import (
    Compilation,
    Execution,
    Memory,
    MemoryDesc,
    Model,
    OperandDesc,
    OperandType,
    ResultCode,
)
from penstock.testing.doubles import InterceptingDevice
from tests.unit.nnapi.building import FLOAT, answers, compiled, finished, unary

pytestmark = pytest.mark.usefixtures("nothing_left_open")

BAD_DATA, BAD_STATE, UNEXPECTED_NULL, OP_FAILED, UNMAPPABLE = (
    ResultCode.BAD_DATA,
    ResultCode.BAD_STATE,
    ResultCode.UNEXPECTED_NULL,
    ResultCode.OP_FAILED,
    ResultCode.UNMAPPABLE,
)
BOTH: Final = PROT_READ | PROT_WRITE
X: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
NBYTES: Final = X.nbytes
ROLES: Final = {"input": MemoryDesc.add_input_role, "output": MemoryDesc.add_output_role}


@pytest.fixture
def relu() -> Iterator[Compilation]:
    with compiled(unary()) as made:
        yield made


@pytest.fixture
def dynamic() -> Iterator[Compilation]:
    with compiled(unary(dimensions=(0, 3))) as made:
        yield made


def shared(nbytes: int, protect: int = BOTH) -> Memory:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, nbytes)
        return Memory.create_from_fd(nbytes, protect, fd)
    finally:
        os.close(fd)


def blob(nbytes: int) -> Memory:
    with HardwareBuffer.allocate(nbytes) as buffer:
        return Memory.create_from_hardware_buffer(buffer)


def described(compilation: Compilation, *, dimensions: tuple[int, ...] = ()) -> Memory:
    """Memory for input 0 and output 0 of *compilation*."""
    with MemoryDesc() as desc:
        desc.add_input_role(compilation, 0)
        desc.add_output_role(compilation, 0)
        desc.set_dimensions(dimensions)
        desc.finish()
        return Memory.create_from_desc(desc)


def filled(memory: Memory, value: float) -> Memory:
    memory.store.content().view(np.float32)[:] = value
    return memory


class TestValidationTestMemory:
    @pytest.mark.parametrize(
        ("size", "protect", "fd", "offset", "code"),
        [
            (0, BOTH, 0, 0, BAD_DATA),
            (4096, BOTH, -1, 0, BAD_DATA),
            (4096, 8, 0, 0, BAD_DATA),
            (4096, 4 | PROT_READ, 0, 0, BAD_DATA),
            (4096, BOTH, 10**6, 0, BAD_DATA),
            (4097, BOTH, 0, 0, BAD_DATA),
            (4096, BOTH, 0, 4096, BAD_DATA),
            (4096, BOTH, 0, -1, BAD_DATA),
            (None, BOTH, 0, 0, UNEXPECTED_NULL),
            (2**63, BOTH, 0, 0, BAD_DATA),
        ],
    )
    def test_create_from_fd(
        self, size: Any, protect: int, fd: int, offset: int, code: ResultCode
    ) -> None:
        own = os.memfd_create("test")
        os.ftruncate(own, 4096)
        try:
            with answers(code):
                Memory.create_from_fd(size, protect, own if fd == 0 else fd, offset)
        finally:
            os.close(own)

    def test_the_descriptor_is_duplicated_and_the_bytes_are_shared(self) -> None:
        fd = os.memfd_create("test")
        os.ftruncate(fd, 8192)
        with Memory.create_from_fd(100, BOTH, fd, 4096) as memory:
            assert memory.size == 100
            assert memory.is_initialized
            memory.store.content()[:3] = 1, 2, 3
            assert os.pread(fd, 4, 4096) == b"\1\2\3\0"
            os.close(fd)
            memory.store.content()[3] = 4

    @pytest.mark.parametrize("protect", [0, PROT_WRITE])
    def test_what_cannot_be_mapped(self, relu: Compilation, protect: int) -> None:
        with shared(NBYTES, protect) as memory, shared(NBYTES) as other:
            execution = Execution(relu)
            execution.set_input_from_memory(0, memory, 0, NBYTES)
            execution.set_output(0, np.empty_like(X))
            with answers(UNMAPPABLE):
                execution.compute()
            for source, target in ((memory, other), (other, memory)):
                with answers(UNMAPPABLE):
                    source.copy(target)
            model = Model()
            index = model.add_operand(FLOAT, (2, 3))
            with answers(UNMAPPABLE):
                model.set_operand_value_from_memory(index, memory, 0, NBYTES)

    def test_what_cannot_be_written(self, relu: Compilation) -> None:
        with shared(NBYTES, PROT_READ) as memory, shared(NBYTES) as other:
            memory.copy(other)
            with answers(UNMAPPABLE):
                other.copy(memory)
            execution = Execution(relu)
            execution.set_input_from_memory(0, memory, 0, NBYTES)
            execution.set_output_from_memory(0, memory, 0, NBYTES)
            with answers(UNMAPPABLE):
                execution.compute()

    def test_create_from_hardware_buffer(self) -> None:
        with answers(UNEXPECTED_NULL):
            Memory.create_from_hardware_buffer(None)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            Memory.create_from_hardware_buffer(X)  # type: ignore[arg-type]
        buffer = HardwareBuffer.allocate(100)
        buffer.close()
        with answers(BAD_STATE):
            Memory.create_from_hardware_buffer(buffer)
        with blob(100) as memory:
            assert memory.size == 100

    def test_a_hardware_buffer_that_is_no_blob(self, relu: Compilation) -> None:
        with HardwareBuffer.allocate(2, 3, format=HardwareBufferFormat.R8G8B8A8_UNORM) as buffer:
            memory = Memory.create_from_hardware_buffer(buffer)
            assert memory.size == 0
            model = Model()
            index = model.add_operand(FLOAT, (2, 3))
            with answers(BAD_DATA):
                model.set_operand_value_from_memory(index, memory, 0, NBYTES)
            with shared(NBYTES) as other:
                for source, target in ((memory, other), (other, memory)):
                    with answers(OP_FAILED):
                        source.copy(target)
            execution = Execution(relu)
            for offset, length in ((0, NBYTES), (4, 0), (0, 1)):
                with answers(BAD_DATA):
                    execution.set_input_from_memory(0, memory, offset, length)
            execution.set_input_from_memory(0, memory, 0, 0)
            execution.set_output(0, np.empty_like(X))
            with answers(OP_FAILED, "hardware_buffer"):
                execution.compute()
            memory.close()

    def test_images_of_a_device_that_takes_them(self) -> None:
        """They are lent to it as a whole, and not copied."""
        with (
            HardwareBuffer.allocate(2, 3, format=HardwareBufferFormat.R8G8B8A8_UNORM) as buffer,
            compiled(unary(), [ImageDevice()]) as compilation,
        ):
            with buffer.lock(write=True) as content:
                content[:NBYTES].view(np.float32)[:] = 1.0
                row = len(content) // 3
            out = np.empty_like(X)
            with Memory.create_from_hardware_buffer(buffer) as memory:
                execution = Execution(compilation)
                execution.set_input_from_memory(0, memory)
                execution.set_output(0, out)
                execution.compute()
                assert (out == 1.0).all()
                assert row >= 8
                assert execution.receipt.copies == ()
                execution = Execution(compilation)
                execution.set_input(0, X)
                execution.set_output_from_memory(0, memory)
                execution.compute()
                assert execution.get_output_operand_dimensions(0) == (2, 3)
            with buffer.lock() as content:
                assert content[:NBYTES].tobytes() == X.tobytes()

    def test_constants(self) -> None:
        for memory in (filled(shared(64), 2.0), filled(blob(64), 2.0)):
            model = Model()
            x, c, y = (model.add_operand(FLOAT, (2, 3)) for _ in range(3))
            for offset, length in ((41, NBYTES), (0, NBYTES - 1), (2**32 - 8, NBYTES)):
                with answers(BAD_DATA):
                    model.set_operand_value_from_memory(c, memory, offset, length)
            model.set_operand_value_from_memory(c, memory, 8, NBYTES)
            fuse = model.add_operand(OperandType.INT32)
            model.set_operand_value(fuse, 0)
            model.add_operation("ADD", [x, c, fuse], [y])
            model.identify_inputs_and_outputs([x], [y])
            model.finish()
            with compiled(model) as compilation:
                out = np.empty_like(X)
                execution = Execution(compilation)
                execution.set_input(0, X)
                execution.set_output(0, out)
                execution.compute()
                assert out.tolist() == (X + 2).tolist()
            memory.close()

    def test_a_dma_buf_is_told_when_it_is_used(
        self, relu: Compilation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[tuple[str, bool]] = []

        def begin(_: int, *, write: bool) -> bool:
            told.append(("begin", write))
            return True

        def end(_: int, *, write: bool) -> None:
            told.append(("end", write))

        with blob(NBYTES) as one, blob(NBYTES) as other, shared(NBYTES) as plain:
            monkeypatch.setattr(dmabuf, "begin", begin)
            monkeypatch.setattr(dmabuf, "end", end)
            execution = Execution(relu)
            execution.set_input_from_memory(0, one, 0, NBYTES)
            execution.set_output_from_memory(0, other, 0, NBYTES)
            execution.compute()
            assert told == [("begin", False), ("begin", True), ("end", True), ("end", False)]
            told.clear()
            plain.copy(other)
            assert told == [("begin", True), ("end", True)]
            execution.close()

    def test_closed(self, relu: Compilation) -> None:
        memory = shared(NBYTES)
        memory.close()
        memory.close()
        with answers(BAD_STATE):
            Execution(relu).set_input_from_memory(0, memory, 0, NBYTES)
        with shared(NBYTES) as other, answers(BAD_STATE):
            memory.copy(other)


class TestValidationTestMemoryDesc:
    @pytest.mark.parametrize("add", ROLES.values(), ids=ROLES)
    def test_add_input_role_and_add_output_role(
        self, relu: Compilation, add: Callable[..., None]
    ) -> None:
        desc = MemoryDesc()
        with answers(UNEXPECTED_NULL):
            add(desc, None, 0, 1.0)
        for wrong in ("a compilation", Compilation(finished())):
            with answers(BAD_DATA):
                add(desc, wrong, 0, 1.0)
        for index in (-1, 1, 999):
            with answers(BAD_DATA):
                add(desc, relu, index, 1.0)
        for frequency in (10.0, 0.0, -0.5, 1.0001, float("nan"), "often"):
            with answers(BAD_DATA):
                add(desc, relu, 0, frequency)
        add(desc, relu, 0, 0.5)
        with answers(BAD_DATA, "already"):
            add(desc, relu, 0, 0.7)
        desc.finish()
        with answers(BAD_STATE):
            add(desc, relu, 0, 1.0)

    @pytest.mark.parametrize("kind", ["input", "output"])
    @pytest.mark.parametrize(
        ("operand", "scale", "zero_point", "fits"),
        [
            (OperandType.TENSOR_QUANT8_ASYMM, 0.5, 128, True),
            (OperandType.TENSOR_QUANT8_ASYMM, 0.25, 128, False),
            (OperandType.TENSOR_QUANT8_ASYMM, 0.5, 127, False),
            (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 0.5, 127, False),
            (FLOAT, 0.0, 0, False),
        ],
    )
    def test_operand_metadata(
        self, kind: str, operand: OperandType, scale: float, zero_point: int, fits: bool
    ) -> None:
        first = unary(kind=OperandType.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=128)
        other = unary(kind=operand, scale=scale, zero_point=zero_point)
        with compiled(first) as one, compiled(other) as two, MemoryDesc() as desc:
            desc.add_input_role(one, 0)
            if fits:
                ROLES[kind](desc, two, 0, 1.0)
            else:
                with answers(BAD_DATA, "type"):
                    ROLES[kind](desc, two, 0, 1.0)

    @pytest.mark.parametrize(
        ("one", "other", "fits"),
        [
            ((2, 3), (2, 3), True),
            ((2, 3), (2, 4), False),
            ((2, 3), (6,), False),
            ((2, 3), (0, 3), True),
            ((0, 3), (2, 0), True),
            ((2, 3), (), True),
        ],
    )
    def test_dimensions_of_roles(
        self, one: tuple[int, ...], other: tuple[int, ...], fits: bool
    ) -> None:
        with (
            compiled(unary(dimensions=one)) as first,
            compiled(unary(dimensions=other)) as second,
            MemoryDesc() as desc,
        ):
            desc.add_output_role(first, 0)
            if not fits:
                with answers(BAD_DATA, "dimensions"):
                    desc.add_input_role(second, 0)
                return
            desc.add_input_role(second, 0)
            desc.finish()
            assert desc.shape == (2, 3)

    def test_extra_params(self) -> None:
        """Scales of channels agree, too, and where they lie."""
        with ExitStack() as stack:
            made = [
                stack.enter_context(compiled(per_channel(dimension, scales)))
                for dimension, scales in ((0, (0.5, 0.25)), (0, (0.5, 0.5)), (1, (0.5, 0.25)))
            ]
            same = stack.enter_context(compiled(per_channel(0, (0.5, 0.25))))
            desc = MemoryDesc()
            desc.add_input_role(made[0], 0)
            for other in made[1:]:
                with answers(BAD_DATA, "quantisation"):
                    desc.add_input_role(other, 0)
            desc.add_input_role(same, 0)

    def test_set_dimensions(self, relu: Compilation) -> None:
        desc = MemoryDesc()
        with answers(UNEXPECTED_NULL):
            desc.set_dimensions(None)  # type: ignore[arg-type]
        desc.set_dimensions((2, 0))
        desc.set_dimensions((0, 3))
        for wrong in ((3, 3), (2, 3, 1), (-1, 3)):
            with answers(BAD_DATA):
                desc.set_dimensions(wrong)
        desc.add_input_role(relu, 0)
        with answers(BAD_DATA):
            desc.set_dimensions((2, 4))
        desc.set_dimensions(())
        desc.finish()
        with answers(BAD_STATE):
            desc.set_dimensions((2, 3))
        with MemoryDesc() as other, compiled(unary(dimensions=(2, 4))) as wider:
            other.set_dimensions((2, 3))
            with answers(BAD_DATA):
                other.add_input_role(wider, 0)

    def test_set_scalar_dimensions_before_add_role(self) -> None:
        with compiled(filling()) as compilation:
            desc = MemoryDesc()
            desc.set_dimensions(())
            desc.add_input_role(compilation, 1)
            other = MemoryDesc()
            other.set_dimensions((1,))
            with answers(BAD_DATA):
                other.add_input_role(compilation, 1)

    def test_set_scalar_dimensions_after_add_role(self) -> None:
        with compiled(filling()) as compilation:
            desc = MemoryDesc()
            desc.add_input_role(compilation, 1)
            desc.set_dimensions(())
            with answers(BAD_DATA):
                desc.set_dimensions((1,))
            desc.finish()
            with Memory.create_from_desc(desc) as memory:
                assert memory.size == 4

    def test_finish(self, relu: Compilation) -> None:
        desc = MemoryDesc()
        with answers(BAD_DATA):
            desc.finish()
        desc.add_input_role(relu, 0)
        desc.finish()
        with answers(BAD_STATE):
            desc.finish()
        desc.close()
        with answers(BAD_STATE):
            desc.finish()

    def test_create_memory(self, relu: Compilation) -> None:
        with answers(UNEXPECTED_NULL):
            Memory.create_from_desc(None)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            Memory.create_from_desc(relu)  # type: ignore[arg-type]
        desc = MemoryDesc()
        desc.add_input_role(relu, 0)
        with answers(BAD_STATE):
            Memory.create_from_desc(desc)
        desc.finish()
        memories = [Memory.create_from_desc(desc) for _ in range(2)]
        desc.close()
        for memory in memories:
            assert memory.size == NBYTES
            assert not memory.is_initialized
            memory.close()

    def test_memory_copying(self, relu: Compilation) -> None:
        with ExitStack() as stack:
            enter = stack.enter_context
            good = [enter(filled(shared(NBYTES), 1.0)), enter(filled(blob(NBYTES), 2.0))]
            bad = [enter(shared(NBYTES + 4)), enter(blob(NBYTES - 4))]
            device, other = enter(described(relu)), enter(described(relu))
            for pair in ((None, good[0]), (good[0], None)):
                with answers(UNEXPECTED_NULL):
                    Memory.copy(*pair)
            with answers(BAD_DATA):
                Memory.copy(good[0], X)  # type: ignore[arg-type]
            for source in (*good, *bad):
                for target in (*good, *bad):
                    if source.size == target.size:
                        source.copy(target)
                    else:
                        with answers(BAD_DATA):
                            source.copy(target)
            filled(good[0], 1.0)
            filled(good[1], 2.0)
            # What holds no value cannot be copied, and leaves none.
            for target in (*good, other):
                with answers(BAD_DATA, "no value"):
                    device.copy(target)
            for source in good:
                source.copy(device)
                assert device.is_initialized
                device.copy(other)
                other.copy(good[0])
                assert (good[0].store.content() == source.store.content()).all()
            for source in bad:
                good[0].copy(device)
                with answers(BAD_DATA):
                    source.copy(device)
                assert not device.is_initialized
                with answers(BAD_DATA, "no value"):
                    device.copy(good[0])
            good[0].copy(device)
            for target in bad:
                with answers(BAD_DATA):
                    device.copy(target)
            assert device.is_initialized

    def test_memory_copying_over_itself(self, relu: Compilation) -> None:
        """It counts as holding a value afterwards, whatever it held."""
        with described(relu) as memory:
            memory.copy(memory)
            assert memory.is_initialized
        with shared(8) as plain:
            plain.copy(plain)

    def test_memory_copying_of_other_operands(self, relu: Compilation) -> None:
        quantized = unary(
            dimensions=(6, 4), kind=OperandType.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=3
        )
        with compiled(quantized) as other, described(relu) as one, described(other) as two:
            with filled(shared(NBYTES), 1.0) as source:
                source.copy(one)
                source.copy(two)
            for pair in ((one, two), (two, one)):
                assert pair[0].is_initialized
                with answers(BAD_DATA, "types"):
                    pair[0].copy(pair[1])
                pair[1].copy(pair[1])
        with (
            compiled(unary(dimensions=(3, 2))) as turned,
            described(relu) as one,
            described(turned) as two,
            filled(shared(NBYTES), 1.0) as source,
        ):
            source.copy(one)
            with answers(BAD_DATA, "dimensions"):
                one.copy(two)


class TestValidationTestExecutionDeviceMemory:
    @pytest.mark.parametrize("kind", ["input", "output"])
    def test_set_input_from_memory_and_set_output_from_memory(
        self, relu: Compilation, kind: str
    ) -> None:
        with MemoryDesc() as desc, compiled(unary()) as other:
            ROLES[kind](desc, relu, 0, 1.0)
            desc.finish()
            with Memory.create_from_desc(desc) as memory:
                for compilation, wanted in ((relu, kind), (relu, "other"), (other, kind)):
                    execution = Execution(compilation)
                    into = kind if wanted == kind else {"input": "output", "output": "input"}[kind]
                    bind = (
                        execution.set_input_from_memory
                        if into == "input"
                        else execution.set_output_from_memory
                    )
                    if compilation is other or wanted == "other":
                        with answers(BAD_DATA, "not made for"):
                            bind(0, memory)
                        continue
                    for offset, length in ((1, NBYTES), (0, NBYTES), (0, 1), (1, 0)):
                        with answers(BAD_DATA):
                            bind(0, memory, offset, length)
                    for given in (
                        OperandDesc(OperandType.TENSOR_INT32, (2, 3)),
                        OperandDesc(FLOAT, (3, 3)),
                        OperandDesc(FLOAT, (2, 3, 1)),
                    ):
                        with answers(BAD_DATA):
                            bind(0, memory, type=given)
                    bind(0, memory, type=OperandDesc(FLOAT, (2, 3)))
                    with answers(BAD_STATE):
                        bind(0, memory)

    @pytest.mark.parametrize("kind", ["input", "output"])
    def test_dynamic_shape(self, dynamic: Compilation, kind: str) -> None:
        with MemoryDesc() as desc:
            ROLES[kind](desc, dynamic, 0, 1.0)
            desc.set_dimensions((2, 3))
            desc.finish()
            with Memory.create_from_desc(desc) as memory:
                execution = Execution(dynamic)
                bind = (
                    execution.set_input_from_memory
                    if kind == "input"
                    else execution.set_output_from_memory
                )
                for shape in ((4, 3), (2, 4), (2, 3, 1)):
                    with answers(BAD_DATA):
                        bind(0, memory, type=OperandDesc(FLOAT, shape))
                if kind == "input":
                    with answers(BAD_DATA):
                        bind(0, memory)
                    bind(0, memory, type=OperandDesc(FLOAT, (2, 3)))
                else:
                    bind(0, memory)

    def test_what_it_holds(self, relu: Compilation) -> None:
        out = np.empty_like(X)
        with described(relu) as memory, filled(shared(NBYTES), 3.0) as source:
            reads, writes = Execution(relu), Execution(relu)
            reads.set_input_from_memory(0, memory)
            reads.set_output(0, out)
            writes.set_input(0, X)
            writes.set_output_from_memory(0, memory)
            for run in (Execution.compute, Execution.start_compute):
                with answers(OP_FAILED, "holds no value"):
                    run(reads)
            source.copy(memory)
            reads.set_reusable(True)
            reads.compute()
            assert (out == 3.0).all()
            writes.compute()
            reads.compute()
            assert out.tolist() == X.tolist()
            memory.copy(source)
            assert source.store.content().tobytes() == X.tobytes()

    def test_one_memory_as_input_and_output(self, relu: Compilation) -> None:
        with described(relu) as memory, filled(shared(NBYTES), 3.0) as source:
            source.copy(memory)
            execution = Execution(relu)
            execution.set_input_from_memory(0, memory)
            execution.set_output_from_memory(0, memory)
            with answers(BAD_DATA):
                execution.compute()
            assert not memory.is_initialized


class ImageDevice(InterceptingDevice):
    """The reference device; it takes images for the bytes that they are."""

    def __init__(self) -> None:
        super().__init__(ReferenceDevice(), "images")

    @property
    def capabilities(self) -> Capabilities:
        known = self.device.capabilities
        return replace(known, memory_kinds=(*known.memory_kinds, "hardware_buffer"))

    def prepare_model(self, model: IrModel, config: PrepareConfig) -> PreparedModel:
        return ImageModel(super().prepare_model(model, config), model)


class ImageModel(PreparedModelBase):
    def __init__(self, prepared: PreparedModel, model: IrModel) -> None:
        self.prepared, self.model = prepared, model

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        (memory,) = request.pools
        assert memory.name == "hardware_buffer"
        with (
            HardwareBuffer.wrap(*memory.handle) as buffer,
            buffer.lock(write=True) as content,
        ):
            lent = HostMemory(content[:NBYTES].view(np.float32).reshape(2, 3))

            def replaced(argument: RequestArgument) -> RequestArgument:
                if not isinstance(argument, PoolArgument):
                    return argument
                assert (argument.location.offset, argument.location.length) == (0, 0)
                return lent

            inner = Request(
                tuple(map(replaced, request.inputs)), tuple(map(replaced, request.outputs))
            )
            return self.prepared.execute(inner, config)

    def close(self) -> None:
        self.prepared.close()


def per_channel(dimension: int, scales: tuple[float, float]) -> Model:
    """Dequantises an input with scales for channels."""
    model = Model()
    x = model.add_operand(OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, (2, 2))
    model.set_operand_symm_per_channel_quant_params(x, dimension, scales)
    y = model.add_operand(FLOAT, (2, 2))
    model.add_operation("DEQUANTIZE", [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def filling() -> Model:
    """FILL, whose second input is a scalar."""
    model = Model()
    shape = model.add_operand(OperandType.TENSOR_INT32, (1,))
    value = model.add_operand(OperandType.FLOAT32)
    y = model.add_operand(FLOAT, (0,))
    model.add_operation("FILL", [shape, value], [y])
    model.identify_inputs_and_outputs([shape, value], [y])
    model.finish()
    return model
