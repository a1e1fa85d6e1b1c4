"""NNAPI's validation tests of memory descriptors and of the memory of devices, by their names
(NNAPI sections 6.4 to 6.7), on whatever device takes a model and on every driver with memory
domains, in this process and in one of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeAlias

import numpy as np
import pytest

from penstock import nnapi
from penstock.errors import PlacementError
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.starting import unavailable
from penstock.runtime.discovery import manager
from tests.checked import does_not_raise
from tests.unit.nnapi.building import (
    BAD_DATA,
    BAD_STATE,
    FLOAT,
    OP_FAILED,
    UNEXPECTED_NULL,
    answers,
    blob,
    compiled,
    described,
    filled,
    finished,
    shared,
    unary,
)

Compile: TypeAlias = Callable[[nnapi.Model], nnapi.Compilation]

X: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
NBYTES: Final = X.nbytes
ROLES: Final = {
    "input": nnapi.MemoryDesc.add_input_role,
    "output": nnapi.MemoryDesc.add_output_role,
}
DRIVERS: Final = ("reference", "sample", "lab", "openvino-cpu")
ENTRIES: Final = {"openvino-cpu": "openvino"}
DOORS: Final = ("in process", "isolated")
PLACES: Final[tuple[tuple[str | None, str], ...]] = (
    (None, "in process"),
    *itertools.product(DRIVERS, DOORS),
)


@pytest.fixture(scope="module", params=PLACES, ids=lambda p: f"{p[0] or 'any devices'}-{p[1]}")
def place(request: pytest.FixtureRequest) -> tuple[str | None, Any]:
    """The name of a driver with memory domains, and its device; None for both where any may be
    taken.
    """
    name, door = request.param
    if name is None:
        return None, None
    if door == "isolated" and (reason := unavailable()) is not None:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        if door == "isolated":
            patch.setenv("PENSTOCK_ISOLATE", ENTRIES.get(name, name))
        try:
            (device,) = manager.choose([name])
        except PlacementError as error:
            pytest.skip(f"no {name} here: {error}")
    assert isinstance(device, IsolatedDevice) == (door == "isolated")
    return name, device


@pytest.fixture(scope="module")
def process_is_kept(place: tuple[str | None, Any]) -> None:
    """A device runs a model whose values decide sizes in a process of its own, which the program
    keeps: it is started before a test counts what it leaves open.
    """
    device = place[1]
    with suppress(
        nnapi.NnapiError
    ):  # the driver takes no FILL, and then no test starts the process
        compiled(filling(), None if device is None else [device]).close()


@pytest.fixture
def driver(place: tuple[str | None, Any]) -> str | None:
    return place[0]


@pytest.fixture(autouse=True)
def leaves_nothing_open(
    place: tuple[str | None, Any], process_is_kept: None, request: pytest.FixtureRequest
) -> None:
    """In this process; the client of another one keeps memory for the next call."""
    if not isinstance(place[1], IsolatedDevice):
        request.getfixturevalue("nothing_left_open")


@pytest.fixture
def compile_(place: tuple[str | None, Any]) -> Compile:
    """Compiles for the driver; a test whose model that one does not take is skipped."""
    name, device = place

    def make(model: nnapi.Model) -> nnapi.Compilation:
        try:
            return compiled(model, None if device is None else [device])
        except nnapi.NnapiError as error:
            if device is None:
                raise
            pytest.skip(f"{name} does not take this model: {error}")

    return make


@pytest.fixture
def relu(compile_: Compile) -> Iterator[nnapi.Compilation]:
    with compile_(unary()) as made:
        yield made


@pytest.fixture
def dynamic(compile_: Compile) -> Iterator[nnapi.Compilation]:
    with compile_(unary(dimensions=(0, 3))) as made:
        yield made


class TestValidationTestMemoryDesc:
    @pytest.mark.parametrize("add", ROLES.values(), ids=ROLES)
    def test_add_input_role_and_add_output_role(
        self, relu: nnapi.Compilation, add: Callable[..., None]
    ) -> None:
        desc = nnapi.MemoryDesc()
        with answers(UNEXPECTED_NULL):
            add(desc, None, 0, 1.0)
        for wrong in ("a compilation", nnapi.Compilation(finished())):
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
            (nnapi.OperandType.TENSOR_QUANT8_ASYMM, 0.5, 128, True),
            (nnapi.OperandType.TENSOR_QUANT8_ASYMM, 0.25, 128, False),
            (nnapi.OperandType.TENSOR_QUANT8_ASYMM, 0.5, 127, False),
            (nnapi.OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 0.5, 127, False),
            (FLOAT, 0.0, 0, False),
        ],
    )
    def test_operand_metadata(
        self,
        compile_: Compile,
        kind: str,
        operand: nnapi.OperandType,
        scale: float,
        zero_point: int,
        fits: bool,
    ) -> None:
        first = unary(kind=nnapi.OperandType.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=128)
        other = unary(kind=operand, scale=scale, zero_point=zero_point)
        with compile_(first) as one, compile_(other) as two, nnapi.MemoryDesc() as desc:
            desc.add_input_role(one, 0)
            with does_not_raise() if fits else answers(BAD_DATA, "type"):
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
        self, compile_: Compile, one: tuple[int, ...], other: tuple[int, ...], fits: bool
    ) -> None:
        with (
            compile_(unary(dimensions=one)) as first,
            compile_(unary(dimensions=other)) as second,
            nnapi.MemoryDesc() as desc,
        ):
            desc.add_output_role(first, 0)
            if not fits:
                with answers(BAD_DATA, "dimensions"):
                    desc.add_input_role(second, 0)
                return
            desc.add_input_role(second, 0)
            desc.finish()
            assert desc.shape == (2, 3)

    def test_extra_params(self, compile_: Compile) -> None:
        """Scales of channels agree, too, and where they lie."""
        with ExitStack() as stack:
            made = [
                stack.enter_context(compile_(per_channel(dimension, scales)))
                for dimension, scales in ((0, (0.5, 0.25)), (0, (0.5, 0.5)), (1, (0.5, 0.25)))
            ]
            same = stack.enter_context(compile_(per_channel(0, (0.5, 0.25))))
            desc = nnapi.MemoryDesc()
            desc.add_input_role(made[0], 0)
            for other in made[1:]:
                with answers(BAD_DATA, "quantisation"):
                    desc.add_input_role(other, 0)
            desc.add_input_role(same, 0)

    def test_set_dimensions(self, compile_: Compile, relu: nnapi.Compilation) -> None:
        desc = nnapi.MemoryDesc()
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
        with nnapi.MemoryDesc() as other, compile_(unary(dimensions=(2, 4))) as wider:
            other.set_dimensions((2, 3))
            with answers(BAD_DATA):
                other.add_input_role(wider, 0)

    def test_set_scalar_dimensions_before_add_role(self, compile_: Compile) -> None:
        with compile_(filling()) as compilation:
            desc = nnapi.MemoryDesc()
            desc.set_dimensions(())
            desc.add_input_role(compilation, 1)
            other = nnapi.MemoryDesc()
            other.set_dimensions((1,))
            with answers(BAD_DATA):
                other.add_input_role(compilation, 1)

    def test_set_scalar_dimensions_after_add_role(self, compile_: Compile) -> None:
        with compile_(filling()) as compilation:
            desc = nnapi.MemoryDesc()
            desc.add_input_role(compilation, 1)
            desc.set_dimensions(())
            with answers(BAD_DATA):
                desc.set_dimensions((1,))
            desc.finish()
            with nnapi.Memory.create_from_desc(desc) as memory:
                assert memory.size == 4

    def test_finish(self, relu: nnapi.Compilation) -> None:
        desc = nnapi.MemoryDesc()
        with answers(BAD_DATA):
            desc.finish()
        desc.add_input_role(relu, 0)
        desc.finish()
        with answers(BAD_STATE):
            desc.finish()
        desc.close()
        with answers(BAD_STATE):
            desc.finish()

    def test_create_memory(self, relu: nnapi.Compilation, driver: str | None) -> None:
        with answers(UNEXPECTED_NULL):
            nnapi.Memory.create_from_desc(None)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            nnapi.Memory.create_from_desc(relu)  # type: ignore[arg-type]
        desc = nnapi.MemoryDesc()
        desc.add_input_role(relu, 0)
        with answers(BAD_STATE):
            nnapi.Memory.create_from_desc(desc)
        desc.finish()
        memories = [nnapi.Memory.create_from_desc(desc) for _ in range(2)]
        desc.close()
        for memory in memories:
            assert memory.size == NBYTES
            assert memory.is_in_device or driver is None
            assert not memory.is_initialized
            memory.close()

    def test_memory_copying(self, relu: nnapi.Compilation) -> None:
        with ExitStack() as stack:
            enter = stack.enter_context
            good = [enter(filled(shared(NBYTES), 1.0)), enter(filled(blob(NBYTES), 2.0))]
            bad = [enter(shared(NBYTES + 4)), enter(blob(NBYTES - 4))]
            device, other = enter(described(relu)), enter(described(relu))
            for pair in ((None, good[0]), (good[0], None)):
                with answers(UNEXPECTED_NULL):
                    nnapi.Memory.copy(*pair)
            with answers(BAD_DATA):
                nnapi.Memory.copy(good[0], X)  # type: ignore[arg-type]
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

    def test_memory_copying_over_itself(self, relu: nnapi.Compilation) -> None:
        """It counts as holding a value afterwards, whatever it held."""
        with described(relu) as memory:
            memory.copy(memory)
            assert memory.is_initialized
        with shared(8) as plain:
            plain.copy(plain)

    def test_memory_copying_of_other_operands(
        self, compile_: Compile, relu: nnapi.Compilation
    ) -> None:
        quantized = unary(
            dimensions=(6, 4), kind=nnapi.OperandType.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=3
        )
        with compile_(quantized) as other, described(relu) as one, described(other) as two:
            with filled(shared(NBYTES), 1.0) as source:
                source.copy(one)
                source.copy(two)
            for pair in ((one, two), (two, one)):
                assert pair[0].is_initialized
                with answers(BAD_DATA, "types"):
                    pair[0].copy(pair[1])
                pair[1].copy(pair[1])
        with (
            compile_(unary(dimensions=(3, 2))) as turned,
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
        self, compile_: Compile, relu: nnapi.Compilation, kind: str
    ) -> None:
        with nnapi.MemoryDesc() as desc, compile_(unary()) as other:
            ROLES[kind](desc, relu, 0, 1.0)
            desc.finish()
            with nnapi.Memory.create_from_desc(desc) as memory:
                for compilation, wanted in ((relu, kind), (relu, "other"), (other, kind)):
                    execution = nnapi.Execution(compilation)
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
                        nnapi.OperandDesc(nnapi.OperandType.TENSOR_INT32, (2, 3)),
                        nnapi.OperandDesc(FLOAT, (3, 3)),
                        nnapi.OperandDesc(FLOAT, (2, 3, 1)),
                    ):
                        with answers(BAD_DATA):
                            bind(0, memory, type=given)
                    bind(0, memory, type=nnapi.OperandDesc(FLOAT, (2, 3)))
                    with answers(BAD_STATE):
                        bind(0, memory)

    @pytest.mark.parametrize("kind", ["input", "output"])
    def test_dynamic_shape(self, dynamic: nnapi.Compilation, kind: str) -> None:
        with nnapi.MemoryDesc() as desc:
            ROLES[kind](desc, dynamic, 0, 1.0)
            desc.set_dimensions((2, 3))
            desc.finish()
            with nnapi.Memory.create_from_desc(desc) as memory:
                execution = nnapi.Execution(dynamic)
                bind = (
                    execution.set_input_from_memory
                    if kind == "input"
                    else execution.set_output_from_memory
                )
                for shape in ((4, 3), (2, 4), (2, 3, 1)):
                    with answers(BAD_DATA):
                        bind(0, memory, type=nnapi.OperandDesc(FLOAT, shape))
                if kind == "input":
                    with answers(BAD_DATA):
                        bind(0, memory)
                    bind(0, memory, type=nnapi.OperandDesc(FLOAT, (2, 3)))
                else:
                    bind(0, memory)

    def test_device_memory_holds_the_value_written(self, relu: nnapi.Compilation) -> None:
        out = np.empty_like(X)
        with described(relu) as memory, filled(shared(NBYTES), 3.0) as source:
            reads, writes = nnapi.Execution(relu), nnapi.Execution(relu)
            reads.set_input_from_memory(0, memory)
            reads.set_output(0, out)
            writes.set_input(0, X)
            writes.set_output_from_memory(0, memory)
            for run in (nnapi.Execution.compute, nnapi.Execution.start_compute):
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

    def test_one_memory_as_input_and_output(self, relu: nnapi.Compilation) -> None:
        with described(relu) as memory, filled(shared(NBYTES), 3.0) as source:
            source.copy(memory)
            execution = nnapi.Execution(relu)
            execution.set_input_from_memory(0, memory)
            execution.set_output_from_memory(0, memory)
            with answers(BAD_DATA):
                execution.compute()
            assert not memory.is_initialized


def per_channel(dimension: int, scales: tuple[float, float]) -> nnapi.Model:
    """Dequantises an input with scales for channels."""
    model = nnapi.Model()
    x = model.add_operand(nnapi.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, (2, 2))
    model.set_operand_symm_per_channel_quant_params(x, dimension, scales)
    y = model.add_operand(FLOAT, (2, 2))
    model.add_operation("DEQUANTIZE", [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def filling() -> nnapi.Model:
    """FILL, whose second input is a scalar."""
    model = nnapi.Model()
    shape = model.add_operand(nnapi.OperandType.TENSOR_INT32, (1,))
    value = model.add_operand(nnapi.OperandType.FLOAT32)
    y = model.add_operand(FLOAT, (0,))
    model.add_operation("FILL", [shape, value], [y])
    model.identify_inputs_and_outputs([shape, value], [y])
    model.finish()
    return model
