"""NNAPI's vendor extensions, call by call: who offers them, their numbers, operands and operations
(NNAPI section 8.6).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.drivers.reference import ReferenceDevice
from penstock.hal import Capabilities, Extension, ExtensionOperandType, PerformanceInfo
from penstock.ipc.starting import unavailable
from penstock.nnapi import (
    Compilation,
    Execution,
    Memory,
    MemoryDesc,
    Model,
    OperandDesc,
    OperandType,
    ResultCode,
    devices,
    get_device_by_name,
    register_extensions,
)
from penstock.testing.doubles import FaultyDevice, InterceptingDevice
from penstock.testing.lab import LabDevice
from penstock.testing.loopback import LoopbackDevice, isolated_device
from tests.support_extensions import (
    COUNT,
    HINTS,
    NAME,
    OTHER,
    QUANT64,
    SERIES,
    Fibonacci,
    quantization,
    series,
)
from tests.unit.nnapi.building import (
    BAD_DATA,
    BAD_STATE,
    FLOAT,
    MODES,
    OP_FAILED,
    UNEXPECTED_NULL,
    answers,
    compiled,
    fuse,
    shared,
    weighted,
)

N: Final = 10
PARAMETERS: Final = quantization(0.5, 10)
STORED: Final = (series(N) / 0.5 + 10).astype(np.int64)

Only = Callable[..., None]


@pytest.fixture
def device(only: Only) -> Fibonacci:
    """The one that offers the extension; the reference device is the other that there is."""
    found = Fibonacci()
    found.seen.clear()
    only(found, ReferenceDevice())
    return found


@pytest.fixture(params=["in process", "encoded", "isolated"])
def anywhere(request: pytest.FixtureRequest, only: Only) -> Iterator[Any]:
    """The same device in this process, behind messages, and in a process of its own."""
    if request.param == "isolated":
        if (reason := unavailable()) is not None:
            pytest.skip(reason)
        with isolated_device("fibonacci", "tests.support_extensions:create") as found:
            only(found, ReferenceDevice())
            yield found
        return
    made = Fibonacci()
    given = made if request.param == "in process" else LoopbackDevice(made)
    only(given, ReferenceDevice())
    yield given


def operand_type(model: Model, code: int, name: str = NAME) -> int:
    return model.get_extension_operand_type(name, code)


def operation_type(model: Model, code: int = SERIES, name: str = NAME) -> int:
    return model.get_extension_operation_type(name, code)


def quantized(count: int | None = N) -> Model:
    """The series of a scalar COUNT as a QUANT64 tensor; None: of unknown length."""
    model = Model()
    n = model.add_operand(operand_type(model, COUNT), name="n")
    y = model.add_operand(operand_type(model, QUANT64), (count,), name="y")
    model.set_operand_extension_data(y, PARAMETERS)
    model.add_operation(operation_type(model), [n], [y])
    model.identify_inputs_and_outputs([n], [y])
    model.finish()
    return model


def floats(
    code: int = SERIES,
    inputs: int = 1,
    outputs: int = 1,
    types: tuple[OperandType, OperandType] = (FLOAT, FLOAT),
) -> Model:
    """An operation on tensors of NNAPI's own types."""
    model = Model()
    given = [model.add_operand(types[0], (1,)) for _ in range(inputs)]
    made = [model.add_operand(types[1], (N,)) for _ in range(outputs)]
    model.add_operation(operation_type(model, code), given, made)
    model.identify_inputs_and_outputs(given, made)
    model.finish()
    return model


def between() -> Model:
    """The series of x + 0, and 0 added to it: ADD, the extension's operation, ADD."""
    model = Model()
    x, count = (model.add_operand(FLOAT, (1,)) for _ in range(2))
    numbers, y = (model.add_operand(FLOAT, (N,)) for _ in range(2))
    for added, result, size in ((x, count, 1), (numbers, y, N)):
        zeros = model.add_operand(FLOAT, (size,))
        model.set_operand_value(zeros, np.zeros(size, np.float32))
        model.add_operation("ADD", [added, zeros, fuse(model)], [result])
    model.add_operation(operation_type(model), [count], [numbers])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def hinted() -> Model:
    """What attributes the driver sees: of a number, that number and the lengths of two values."""
    model = Model()
    x, y = model.add_operand(FLOAT, (1,)), model.add_operand(FLOAT, (3,))
    model.add_operation(operation_type(model, HINTS), [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def run(compilation: Compilation, given: Any, wanted: Any) -> Any:
    with Execution(compilation) as execution:
        execution.set_input(0, given)
        execution.set_output(0, wanted)
        execution.compute()
    return wanted


class TestSupport:
    def test_device_reports_the_extensions_that_it_offers(self, device: Fibonacci) -> None:
        handle = get_device_by_name("fibonacci")
        found = [handle.get_extension_support(n) for n in (NAME, OTHER, "com.example.no", "asdf")]
        assert found == [True, True, False, False]
        assert not get_device_by_name("reference").get_extension_support(NAME)
        with answers(UNEXPECTED_NULL):
            handle.get_extension_support(None)  # type: ignore[arg-type]  # the point

    @pytest.mark.parametrize("kind", [
        ExtensionOperandType(0, 4, is_tensor=False),
        ExtensionOperandType(0, 8, is_tensor=True),
        ExtensionOperandType(1, 8, is_tensor=False),
    ])  # fmt: skip
    def test_types_that_contradict_each_other_disable_the_extension(
        self, kind: ExtensionOperandType, only: Only
    ) -> None:
        mine, theirs = (
            Extension(NAME, (ExtensionOperandType(0, 8, False),)),
            Extension(NAME, (kind,)),
        )
        only(Fibonacci("one", [mine, Extension(OTHER)]), Fibonacci("two", [theirs]))
        one, two = get_device_by_name("one"), get_device_by_name("two")
        assert not one.get_extension_support(NAME)
        assert not two.get_extension_support(NAME)
        assert one.get_extension_support(OTHER)
        model = Model()
        for asked in (operand_type, operation_type):
            with answers(BAD_DATA, "one and two declare other operand types"):
                asked(model, 0)

    def test_a_conflict_is_logged_once_with_both_devices(
        self, only: Only, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = "com.example.logged"
        for size in (4, 8):
            register_extensions(
                Fibonacci(f"device{size}", [Extension(name, (ExtensionOperandType(0, size),))])
            )
        try:
            only(Fibonacci(), ReferenceDevice())
            with caplog.at_level(logging.WARNING, "penstock.nnapi"):
                for _ in range(3):
                    with answers(BAD_DATA):
                        operand_type(Model(), 0, name)
            (told,) = [r.getMessage() for r in caplog.records if name in r.getMessage()]
            assert "device4" in told
            assert "device8" in told
        finally:
            for size in (4, 8):
                devices.registry.give(f"device{size}", ())

    def test_the_order_of_types_is_no_contradiction(self, only: Only) -> None:
        kinds = [ExtensionOperandType(code, 4) for code in range(3)]
        only(
            Fibonacci("one", [Extension(NAME, tuple(kinds))]),
            Fibonacci("two", [Extension(NAME, tuple(kinds[::-1]))]),
        )
        assert all(get_device_by_name(n).get_extension_support(NAME) for n in ("one", "two"))

    def test_an_object_that_no_driver_has_is_made_known(self, only: Only) -> None:
        only(ReferenceDevice())
        name = "com.example.given"
        with answers(BAD_DATA, "no device offers"):
            operation_type(Model(), 0, name)
        register_extensions(Fibonacci("given", [Extension(name)]))
        try:
            assert operation_type(Model(), 5, name) & 0xFFFF == 5
        finally:
            devices.registry.give("given", ())
        with answers(BAD_DATA):
            register_extensions("nobody")  # type: ignore[arg-type]  # the point


class TestNumbers:
    def test_the_low_bits_are_the_number_and_the_high_ones_the_extensions(
        self, device: Fibonacci
    ) -> None:
        model = Model()
        first, second = operand_type(model, 0), operand_type(model, 0, OTHER)
        assert first & 0xFFFF == second & 0xFFFF == 0
        assert first >> 16 != second >> 16
        for code in (0, 1, 0xFFFF):
            for asked in (operand_type, operation_type):
                number = asked(model, code)
                assert number == first | code
                assert 0 < number >> 16 <= 0x7FFF
        assert operand_type(Model(), 0) == first

    @pytest.mark.parametrize(("name", "code", "wanted"), [
        (None, 0, UNEXPECTED_NULL),
        (NAME, None, UNEXPECTED_NULL),
        (NAME, -1, BAD_DATA),
        (NAME, 0x10000, BAD_DATA),
        (NAME, "0", BAD_DATA),
        ("com.example.unheard_of", 0, BAD_DATA),
        ("Com.Example", 0, BAD_DATA),
        ("word", 0, BAD_DATA),
        ("", 0, BAD_DATA),
        (7, 0, BAD_DATA),
    ])  # fmt: skip
    def test_unknown_extension_type_has_no_number(
        self, name: Any, code: Any, wanted: ResultCode, device: Fibonacci
    ) -> None:
        for asked in (Model.get_extension_operand_type, Model.get_extension_operation_type):
            with answers(wanted):
                asked(Model(), name, code)

    def test_a_type_that_devices_no_longer_declare_so_is_refused(self, device: Fibonacci) -> None:
        (kind, *_) = quantized().made[0].subgraph.operands
        assert Model().add_operand(kind.type) == 0
        for changed in ({"byte_size": 4}, {"code": 9}, {"extension": "com.example.unheard_of"}):
            with answers(BAD_DATA):
                Model().add_operand(dataclasses.replace(kind.type, **changed))  # type: ignore[type-var]  # an extension's

    def test_a_number_that_nobody_was_given_is_refused(self, device: Fibonacci) -> None:
        model = Model()
        number = 0x7FFF << 16
        with answers(BAD_DATA, "prefix"):
            model.add_operand(number)
        x = model.add_operand(FLOAT, (1,))
        with answers(BAD_DATA, "prefix"):
            model.add_operation(number, [x], [x])

    def test_a_number_is_refused_once_no_device_offers_its_extension(
        self, device: Fibonacci, only: Only
    ) -> None:
        number = operand_type(Model(), COUNT)
        only(ReferenceDevice())
        with answers(BAD_DATA, "no device offers"):
            Model().add_operand(number)


class TestOperands:
    @pytest.mark.parametrize(("code", "dimensions", "scale", "zero_point"), [
        (COUNT, (1,), 0.0, 0),
        (COUNT, (), 1.0, 0),
        (COUNT, (), 0.0, 1),
        (QUANT64, (2,), 0.5, 0),
        (QUANT64, (2,), 0.0, 3),
        (QUANT64, (2**31, 2), 0.0, 0),
        (QUANT64, (1,) * 33, 0.0, 0),
        (2, (), 0.0, 0),
        (0xFFFF, (), 0.0, 0),
    ])  # fmt: skip
    def test_an_operand_that_its_type_does_not_have_is_refused(
        self,
        code: int,
        dimensions: tuple[int, ...],
        scale: float,
        zero_point: int,
        device: Fibonacci,
    ) -> None:
        model = Model()
        with answers(BAD_DATA):
            model.add_operand(operand_type(model, code), dimensions, scale, zero_point)

    def test_values_have_the_size_that_the_extension_says(self, device: Fibonacci) -> None:
        model = Model()
        scalar = model.add_operand(operand_type(model, COUNT))
        tensor = model.add_operand(operand_type(model, QUANT64), (20,))
        model.set_operand_value(scalar, np.int64(3))
        model.set_operand_value(tensor, np.arange(20, dtype=np.int64))
        with shared(160) as memory:
            model.set_operand_value_from_memory(tensor, memory, 0, 160)
        for index, size in ((scalar, 7), (scalar, 9), (tensor, 159), (tensor, 168)):
            with answers(BAD_DATA, "are needed"):
                model.set_operand_value(index, bytes(size))

    def test_constant_of_extension_type_reaches_the_driver(self, device: Fibonacci) -> None:
        model = Model()
        n = model.add_operand(operand_type(model, COUNT))
        model.set_operand_value(n, np.int64(N))
        unused, y = model.add_operand(FLOAT, (1,)), model.add_operand(FLOAT, (N,))
        model.add_operation(operation_type(model), [n], [y])
        model.identify_inputs_and_outputs([unused], [y])
        model.finish()
        with compiled(model, [device]) as compilation:
            found = run(compilation, np.zeros(1, np.float32), np.zeros(N, np.float32))
        assert (found == series(N)).all()

    @pytest.mark.parametrize(("data", "length", "wanted"), [
        (None, 3, UNEXPECTED_NULL),
        (b"", None, BAD_DATA),
        (b"abc", 0, BAD_DATA),
        (b"abc", 4, BAD_DATA),
        (b"abc", -1, BAD_DATA),
        (bytes((1 << 20) + 1), None, BAD_DATA),
        (16, None, BAD_DATA),
        ("text", None, BAD_DATA),
    ])  # fmt: skip
    def test_extension_data_that_is_none_is_refused(
        self, data: Any, length: Any, wanted: ResultCode, device: Fibonacci
    ) -> None:
        model = Model()
        y = model.add_operand(operand_type(model, QUANT64), (2,))
        with answers(wanted):
            model.set_operand_extension_data(y, data, length)

    def test_extension_data_is_copied_replaced_and_taken_away(self, device: Fibonacci) -> None:
        model = Model()
        x = model.add_operand(FLOAT, (1,))
        kept, lost = (model.add_operand(operand_type(model, QUANT64), (N,)) for _ in range(2))
        data = bytearray(PARAMETERS + b"more")
        for index in (kept, lost):
            model.set_operand_extension_data(index, b"something else")
        model.set_operand_extension_data(kept, data, 16)
        model.set_operand_extension_data(lost, None)
        data[:] = bytes(len(data))
        for index in (kept, lost):
            model.add_operation(operation_type(model), [x], [index])
        model.identify_inputs_and_outputs([x], [kept, lost])
        model.finish()
        found = [o.extension.data for o in model.lowered.outputs if o.extension]
        assert found == [PARAMETERS, b""]
        assert model.get_supported_operations_for_devices([device]) == [True, False]
        with answers(BAD_STATE):
            model.set_operand_extension_data(kept, b"late")

    def test_scales_for_channels_are_no_extension_types(self, device: Fibonacci) -> None:
        model = Model()
        y = model.add_operand(operand_type(model, QUANT64), (2,))
        with answers(BAD_DATA):
            model.set_operand_symm_per_channel_quant_params(y, 0, [1.0, 1.0])

    @pytest.mark.parametrize("kind", ["ADD", "RESHAPE", "CONCATENATION"])
    def test_operations_of_nnapis_own_take_no_extension_types(
        self, kind: str, device: Fibonacci
    ) -> None:
        model = Model()
        x, y = (model.add_operand(operand_type(model, QUANT64), (2,)) for _ in range(2))
        more = model.add_operand(OperandType.INT32)
        model.set_operand_value(more, 0)
        with answers(BAD_DATA):
            model.add_operation(kind, [x, x, more], [y])


class TestModels:
    def test_model_with_extension_operand_types(self, anywhere: Any) -> None:
        model = quantized()
        devices = [anywhere, "reference"]
        assert model.get_supported_operations_for_devices(devices) == [True]
        with compiled(model, devices) as compilation:
            for given in (np.asarray(N), np.array([N]), N.to_bytes(8, "little")):
                assert (run(compilation, given, np.zeros(N, np.int64)) == STORED).all()

    def test_temporaries_may_have_extension_types(self, anywhere: Any) -> None:
        model = between()
        devices = [anywhere, "reference"]
        assert model.get_supported_operations_for_devices(devices) == [True] * 3
        with compiled(model, devices) as compilation:
            found = run(compilation, np.array([N], np.float32), np.zeros(N, np.float32))
        assert (found == series(N)).all()

    def test_the_processor_runs_what_is_not_of_the_extension(self, device: Fibonacci) -> None:
        model = between()
        reference = model.get_supported_operations_for_devices(["reference"])
        assert reference == [True, True, False]
        with Compilation(model) as compilation:
            compilation.finish()
            placed = {o.type: o for o in compilation.compiled.plan.operations}
            assert placed["EXTENSION"].device == "fibonacci"
            assert placed["EXTENSION"].reasons == {
                "reference": f"the device does not offer the extension {NAME}"
            }

    @pytest.mark.parametrize("model", [
        lambda: floats(types=(OperandType.TENSOR_INT32, FLOAT)),
        lambda: floats(types=(FLOAT, OperandType.TENSOR_INT32)),
        lambda: floats(inputs=2),
        lambda: floats(outputs=2),
        lambda: floats(code=SERIES + 1),
    ], ids=["input type", "output type", "inputs", "outputs", "operation"])  # fmt: skip
    def test_model_with_a_refused_extension_operation_is_valid_but_cannot_compile(
        self, model: Callable[[], Model], anywhere: Any
    ) -> None:
        made, devices = model(), [anywhere, "reference"]
        assert made.get_supported_operations_for_devices(devices) == [False]
        with Compilation.create_for_devices(made, devices) as compilation, answers(BAD_DATA):
            compilation.finish()

    def test_a_value_that_the_driver_refuses_fails_the_run(self, anywhere: Any) -> None:
        with (
            compiled(floats(), [anywhere, "reference"]) as compilation,
            answers(OP_FAILED, "-1 Fibonacci numbers"),
        ):
            run(compilation, np.array([-1], np.float32), np.zeros(N, np.float32))

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("reusable", [False, True])
    def test_extension_model_runs_in_every_way(
        self, mode: str, reusable: bool, device: Fibonacci
    ) -> None:
        out = np.zeros(N, np.int64)
        with compiled(quantized(), [device]) as compilation, Execution(compilation) as execution:
            execution.set_reusable(reusable)
            execution.set_input(0, np.array([N]))
            execution.set_output(0, out)
            for _ in range(2 if reusable else 1):
                out[:] = 0
                MODES[mode](execution)
                assert (out == STORED).all()
            assert execution.get_output_operand_dimensions(0) == (N,)

    def test_extension_output_may_have_unknown_dimensions(self, device: Fibonacci) -> None:
        with compiled(quantized(None), [device]) as compilation:
            for size, fits in ((8 * N, True), (8 * N - 1, False)):
                with Execution(compilation) as execution:
                    execution.set_input(0, np.array([N]))
                    room = np.zeros(size, np.uint8)
                    execution.set_output(0, room)
                    if fits:
                        execution.compute()
                        assert (room.view(np.int64) == STORED).all()
                    else:
                        with answers(ResultCode.OUTPUT_INSUFFICIENT_SIZE):
                            execution.compute()
                    assert execution.get_output_operand_dimensions(0) == (N,)
                    assert execution.is_output_sufficient(0) == fits
            kind = OperandDesc(operand_type(Model(), QUANT64), (N,))
            with Execution(compilation) as execution:
                execution.set_input(0, np.array([N]))
                execution.set_output(0, out := np.zeros(N, np.int64), type=kind)
                execution.compute()
            assert (out == STORED).all()

    def test_sizes_of_extension_arguments_are_checked(self, device: Fibonacci) -> None:
        with compiled(quantized(), [device]) as compilation, Execution(compilation) as execution:
            with answers(BAD_DATA, "8 are needed"):
                execution.set_input(0, np.zeros(2, np.int64))
            with answers(BAD_DATA, "80 are needed"):
                execution.set_output(0, np.zeros(N, np.float32))

    def test_extension_values_may_be_in_memories(self, device: Fibonacci) -> None:
        with (
            compiled(quantized(), [device]) as compilation,
            shared(16) as given,
            shared(8 * N) as wanted,
            Execution(compilation) as execution,
        ):
            given.store.content()[8:] = np.array([N]).view(np.uint8)
            execution.set_input_from_memory(0, given, 8, 8)
            execution.set_output_from_memory(0, wanted, 0, 8 * N)
            execution.compute()
            assert (wanted.store.content().view(np.int64) == STORED).all()

    def test_extension_values_may_be_in_device_memory(self, device: Fibonacci) -> None:
        with Compilation(quantized()) as compilation:
            compilation.finish()
            desc = MemoryDesc()
            desc.add_output_role(compilation, 0)
            desc.finish()
            with (
                Memory.create_from_desc(desc) as memory,
                shared(8 * N) as copied,
                Execution(compilation) as execution,
            ):
                assert memory.size == 8 * N
                execution.set_input(0, np.array([N]))
                execution.set_output_from_memory(0, memory)
                execution.compute()
                memory.copy(copied)
                assert (copied.store.content().view(np.int64) == STORED).all()

    def test_a_loop_hands_extension_types_on(self, device: Fibonacci) -> None:
        model = looping(PARAMETERS)
        kinds = [o.extension for o in model.lowered.outputs]
        assert [k.name for k in kinds if k] == [f"{NAME}:{QUANT64}"]
        assert model.get_supported_operations_for_devices(["reference"]) == [False]

    def test_a_loop_whose_body_gives_other_extension_data_is_refused(
        self, device: Fibonacci
    ) -> None:
        with answers(BAD_DATA, "another type"):
            looping(quantization(2.0, 1))

    def test_an_extension_operation_takes_no_models(self, device: Fibonacci) -> None:
        model, inner = Model(), floats()
        x, target = model.add_operand(FLOAT, (1,)), model.add_operand(OperandType.SUBGRAPH)
        y = model.add_operand(FLOAT, (N,))
        model.set_operand_value_from_model(target, inner)
        model.add_operation(operation_type(model), [x, target], [y])
        model.identify_inputs_and_outputs([x], [y])
        with answers(BAD_DATA, "stands for a model"):
            model.finish()

    def test_an_operand_without_a_value_reaches_the_driver_as_left_out(
        self, device: Fibonacci
    ) -> None:
        model = Model()
        x, nothing = model.add_operand(FLOAT, (1,)), model.add_operand(operand_type(model, COUNT))
        y = model.add_operand(FLOAT, (N,))
        model.set_operand_value(nothing, None)
        model.add_operation(operation_type(model), [x, nothing], [y])
        model.identify_inputs_and_outputs([x], [y])
        model.finish()
        (operation,) = model.lowered.operations
        assert [model.lowered.operands[i].has_value for i in operation.inputs] == [True, False]


def looping(data: bytes) -> Model:
    """A WHILE that hands a QUANT64 with PARAMETERS through a body that gives one with *data*; it is
    never run.
    """
    condition, body, main = Model(), Model(), Model()
    kind = operand_type(main, QUANT64)

    def quant64(model: Model, extension_data: bytes) -> int:
        index = model.add_operand(kind, (2,))
        model.set_operand_extension_data(index, extension_data)
        return index

    x = quant64(condition, PARAMETERS)
    a, b = (condition.add_operand(FLOAT, (1,)) for _ in range(2))
    go = condition.add_operand(OperandType.TENSOR_BOOL8, (1,))
    condition.set_operand_value(b, np.zeros(1, np.float32))
    condition.add_operation(operation_type(condition, 9), [x], [a])
    condition.add_operation("LESS", [a, b], [go])
    condition.identify_inputs_and_outputs([x], [go])
    condition.finish()
    x, y = quant64(body, PARAMETERS), quant64(body, data)
    body.add_operation(operation_type(body, 9), [x], [y])
    body.identify_inputs_and_outputs([x], [y])
    body.finish()
    c, d = (main.add_operand(OperandType.SUBGRAPH) for _ in range(2))
    main.set_operand_value_from_model(c, condition)
    main.set_operand_value_from_model(d, body)
    x, y = quant64(main, PARAMETERS), quant64(main, PARAMETERS)
    main.add_operation("WHILE", [c, d, x], [y])
    main.identify_inputs_and_outputs([x], [y])
    main.finish()
    return main


class TestNoFallback:
    """A model that uses an extension is never compiled, or run, on the processor instead."""

    @pytest.fixture
    def adder(self, only: Only) -> FaultyDevice:
        """A fast device for ADD that compiles nothing, beside one that offers the extension, and
        the reference.
        """
        fast = Fibonacci("adder", [Extension(OTHER)])
        quick = {"float32": PerformanceInfo(0.1, 0.1)}
        fast.capabilities = replace(fast.capabilities, performance=quick)
        found = FaultyDevice(fast, {"prepare_model": "always"})
        only(found, Fibonacci(), ReferenceDevice())
        return found

    @pytest.mark.parametrize("method", ["prepare_model", "execute"])
    def test_a_driver_that_fails_fails_the_model(self, method: str, only: Only) -> None:
        broken = FaultyDevice(Fibonacci(), {method: "always"})
        only(broken, ReferenceDevice())
        model = between()
        with Compilation(model) as compilation, answers(OP_FAILED):
            compilation.finish()
            run(compilation, np.array([N], np.float32), np.zeros(N, np.float32))

    def test_not_even_for_operations_that_the_processor_has(self, adder: FaultyDevice) -> None:
        with Compilation(between()) as compilation:
            with answers(OP_FAILED):
                compilation.finish()
            assert not compilation.is_finished

    def test_a_model_without_extensions_falls_back(self, adder: FaultyDevice) -> None:
        model = Model()
        x, y, z = (model.add_operand(FLOAT, (1,)) for _ in range(3))
        model.add_operation("ADD", [x, y, fuse(model)], [z])
        model.identify_inputs_and_outputs([x, y], [z])
        model.finish()
        with compiled(model) as compilation:
            (step,) = compilation.receipt.steps
            assert step.fallback_from == "adder"


class TestAttributes:
    """Hints to one device, for a compilation and for an execution."""

    def test_attributes_reach_the_driver(self, anywhere: Any) -> None:
        with Compilation.create_for_devices(hinted(), [anywhere]) as compilation:
            compilation.add_extension_attribute(NAME, 0, b"compiled")
            compilation.finish()
            found = run(compilation, np.zeros(1, np.float32), np.zeros(3, np.float32))
            assert found.tolist() == [0, 8, 0]
            for mode in MODES:
                with Execution(compilation) as execution:
                    execution.add_extension_attribute(NAME, 1, bytearray(b"run, cut"), 3)
                    execution.set_input(0, np.array([5], np.float32))
                    execution.set_output(0, out := np.zeros(3, np.float32))
                    MODES[mode](execution)
                assert out.tolist() == [5, 8, 3], mode

    def test_reusable_execution_keeps_its_attributes(self, anywhere: Any) -> None:
        with compiled(hinted(), [anywhere]) as compilation, Execution(compilation) as execution:
            execution.set_reusable(True)
            execution.add_extension_attribute(NAME, 1, bytes(1 << 20))
            execution.set_input(0, np.array([5], np.float32))
            execution.set_output(0, out := np.zeros(3, np.float32))
            for _ in range(2):
                out[:] = 0
                execution.compute()
                assert out.tolist() == [5, 0, 1 << 20]

    def test_a_plain_run_has_those_of_the_compile_alone(self, device: Fibonacci) -> None:
        with Compilation.create_for_devices(hinted(), [device]) as compilation:
            compilation.add_extension_attribute(NAME, 0, b"compiled")
            compilation.finish()
            run(compilation, np.zeros(1, np.float32), np.zeros(3, np.float32))
        assert [[(a.code, a.value) for a in seen] for seen in device.seen] == [
            [(0, b"compiled")],
            [],
        ]

    @pytest.mark.parametrize(("name", "code", "data", "length", "wanted"), [
        (None, 0, b"x", None, UNEXPECTED_NULL),
        (NAME, None, b"x", None, UNEXPECTED_NULL),
        (NAME, 0, None, None, UNEXPECTED_NULL),
        (NAME, 0, None, 0, UNEXPECTED_NULL),
        (NAME, 0, b"", None, BAD_DATA),
        (NAME, 0, b"x", 0, BAD_DATA),
        (NAME, 0, b"x", 2, BAD_DATA),
        (NAME, 0, bytes((1 << 20) + 1), None, BAD_DATA),
        (NAME, 0x10000, b"x", None, BAD_DATA),
        (NAME, -1, b"x", None, BAD_DATA),
        ("com.example.unheard_of", 0, b"x", None, BAD_DATA),
        (NAME, 3, b"x", None, BAD_DATA),
    ])  # fmt: skip
    def test_malformed_extension_attribute_is_refused(
        self, name: Any, code: Any, data: Any, length: Any, wanted: ResultCode, device: Fibonacci
    ) -> None:
        with Compilation.create_for_devices(hinted(), [device]) as compilation:
            compilation.add_extension_attribute(NAME, 3, b"there already")
            with answers(wanted):
                compilation.add_extension_attribute(name, code, data, length)
            compilation.finish()
            with Execution(compilation) as execution:
                execution.add_extension_attribute(NAME, 3, b"another place, another attribute")
                with answers(wanted):
                    execution.add_extension_attribute(name, code, data, length)

    @pytest.mark.parametrize("devices", [None, ["fibonacci", "reference"]])
    def test_attributes_need_one_named_device(
        self, devices: list[str] | None, device: Fibonacci
    ) -> None:
        model = hinted()
        made = Compilation.create_for_devices(model, devices) if devices else Compilation(model)
        with made as compilation:
            with answers(BAD_DATA, "exactly one device"):
                compilation.add_extension_attribute(NAME, 0, b"x")
            compilation.finish()
            with Execution(compilation) as execution, answers(BAD_DATA, "exactly one device"):
                execution.add_extension_attribute(NAME, 0, b"x")

    def test_attributes_need_a_device_that_offers_the_extension(self, device: Fibonacci) -> None:
        model = Model()
        x, y, z = (model.add_operand(FLOAT, (1,)) for _ in range(3))
        model.add_operation("ADD", [x, y, fuse(model)], [z])
        model.identify_inputs_and_outputs([x, y], [z])
        model.finish()
        with (
            Compilation.create_for_devices(model, ["reference"]) as compilation,
            answers(BAD_DATA, "does not offer"),
        ):
            compilation.add_extension_attribute(NAME, 0, b"x")

    def test_attributes_are_rejected_after_preparation(self, device: Fibonacci) -> None:
        with compiled(hinted(), [device]) as compilation:
            with answers(BAD_STATE):
                compilation.add_extension_attribute(NAME, 0, b"x")
            with Execution(compilation) as execution:
                execution.set_input(0, np.zeros(1, np.float32))
                execution.set_output(0, np.zeros(3, np.float32))
                execution.compute()
                with answers(BAD_STATE):
                    execution.add_extension_attribute(NAME, 0, b"x")


class TestCaching:
    """Attributes of a compilation are part of what its entry stands for."""

    class Cached(InterceptingDevice):
        """The device `lab`, which caches, with an extension to offer."""

        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, extensions=(Extension(NAME),))

    @pytest.mark.parametrize("trusted", [False, True])
    def test_attributes_are_part_of_the_cache_key(self, trusted: bool, tmp_path: Path) -> None:
        device = self.Cached(LabDevice())
        tried = [None, b"one", b"two", None, b"one"]
        found = []
        for value in tried:
            with Compilation.create_for_devices(weighted(), [device]) as compilation:
                compilation.set_caching(tmp_path, bytes(32), trusted)
                if value is not None:
                    compilation.add_extension_attribute(NAME, 1, value)
                compilation.finish()
                found.append(compilation.receipt.steps[0].cache.outcome)
        assert found == ["miss", "miss", "miss", "hit", "hit"]
