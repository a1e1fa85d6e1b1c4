"""`compare`: the first operation whose result departs, in models with one planted defect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import hal
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.errors import GeneralFailure, InputError, PlacementError
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.ir.types import is_static
from penstock.runtime.comparison import Comparison, case_arrays, compare
from penstock.runtime.operations import cases_of
from penstock.testing.contract.cases import branch, state
from penstock.testing.doubles import (
    FaultyDevice,
    InterceptedModel,
    InterceptingDevice,
    LyingDevice,
    SubsetDevice,
)
from penstock.testing.operations import run_case

T = TypeVar("T")
F32, INT8 = DType.FLOAT32, DType.INT8
Q = Quantization((0.1,), (0,))


def chain(length: int, kind: str = "RELU") -> tuple[Model, list[NDArray]]:
    """Quantised operations in a row; names op0, op1, ..."""
    b = ModelBuilder()
    x = b.input(INT8, (1, 32), "x", Q)
    for index in range(length):
        shown = "ABS" if index == 5 else kind
        (x,) = b.operation(shown, [x], [Operand(INT8, (1, 32), name=f"op{index}", quantization=Q)])
    return b.build([x]), [np.arange(32, dtype=np.int8).reshape(1, 32)]


class Planted(InterceptingDevice):
    """The reference device under another name, whose operations called *names* give
    *change*(result).
    """

    def __init__(
        self, names: set[str], change: Callable[[NDArray], None], together: int = 1
    ) -> None:
        super().__init__(reference(), "planted")
        self.names, self.change, self.together = names, change, together

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        prepared = self.device.prepare_model(model, config)
        return PlantedModel(self, prepared, model)


class PlantedModel(InterceptedModel):
    def __init__(self, owner: Planted, prepared: hal.PreparedModel, model: Model) -> None:
        super().__init__(owner, prepared)
        self.planted, self.model = owner, model

    def execute(self, request: hal.Request, config: Any) -> hal.ExecutionResult:
        entry, operands = self.model.entry, self.model.operands
        if len(entry.operations) < self.planted.together:
            return self.prepared.execute(request, config)
        values = dict(zip(entry.inputs, [a.array for a in request.inputs], strict=True))  # type: ignore[union-attr]
        for index, operation in enumerate(entry.operations):
            b = ModelBuilder()
            given = [o for o in operation.inputs if not operands[o].is_constant]
            numbers = {
                o: b.constant(self.model.constant(operands[o]), "", operands[o].quantization)
                if operands[o].is_constant
                else b.input(operands[o].dtype, operands[o].shape, "", operands[o].quantization)
                for o in dict.fromkeys(operation.inputs)
            }
            made = b.operation(
                operation.type,
                [numbers[o] for o in operation.inputs],
                [operands[o] for o in operation.outputs],
                operation.attributes,
            )
            alone = b.build(made)
            with penstock.compile(alone, devices=["reference"], cache=None) as compiled:
                results = [
                    np.array(a) for a in compiled.run([values[o] for o in dict.fromkeys(given)])
                ]
            if entry.operation_name(index) in self.planted.names:
                self.planted.change(results[0])
            values.update(zip(operation.outputs, results, strict=True))
        for operand, argument in zip(entry.outputs, request.outputs, strict=True):
            assert isinstance(argument, hal.HostMemory)
            np.copyto(argument.array, values[operand])
        return hal.ExecutionResult()


def off_by(steps: int, at: int = 3) -> Callable[[NDArray], None]:
    def change(array: NDArray) -> None:
        array.reshape(-1)[at] += steps

    return change


@pytest.mark.parametrize("where", [0, 4, 7, 15])
def test_the_one_operation_that_is_off_by_two_steps_is_found(where: int) -> None:
    model, inputs = chain(16)
    found = compare(model, inputs, Planted({f"op{where}"}, off_by(2)))
    assert found.departs
    assert found.departure is not None
    departure = found.departure
    assert (departure.operations, departure.name) == ((where,), f"op{where}")
    assert departure.distance is not None
    assert (departure.distance.measure, departure.distance.value) == ("steps", 2)
    assert departure.distance.element == (0, 3)
    assert f"operation {where} (RELU, 'op{where}') departs on planted" in found.show()
    assert found.runs <= 2 + 4 * 2


def test_the_first_of_several_is_named() -> None:
    model, inputs = chain(16)
    found = compare(model, inputs, Planted({"op3", "op4", "op11"}, off_by(-5)))
    assert found.departure is not None
    assert found.departure.operations == (3,)


def test_a_departure_that_later_operations_hide_is_found() -> None:
    model, inputs = chain(16)
    found = compare(model, [a * 0 for a in inputs], Planted({"op2"}, off_by(-9)))
    assert found.departure is not None
    assert found.departure.operations == (2,)
    assert not found.outputs.departs


def test_one_step_is_no_departure_unless_exact_is_asked_for() -> None:
    model, inputs = chain(8)
    device = Planted({"op2", "op3", "op6"}, off_by(1))
    found = compare(model, inputs, device)
    assert not found.departs
    assert found.outputs.value == 3
    assert found.outputs.departs
    verdict, why = found.show().splitlines()
    assert verdict.startswith(
        "each operation agrees, the whole model does not: planted took 8 of 8 operations, and none "
        "departs "
        "from reference's (faithful), but the model's output 0 is off by 3 steps (1 allowed)"
    )
    assert "OK" not in found.show()
    assert "the roundings of many operations" in why
    strict = compare(model, inputs, device, accuracy="exact").departure
    assert strict is not None
    assert strict.operations == (2,)


def test_fault_of_operations_together_is_narrowed_down() -> None:
    model, inputs = chain(16)
    found = compare(model, inputs, Planted({"op6"}, off_by(40), together=2))
    assert found.departure is not None
    assert len(found.departure.operations) == 2
    assert 6 in found.departure.operations


def test_rounding_that_adds_up_is_not_called_a_fault_of_the_whole() -> None:
    """A step here and a step there, then real values: what the operations come to one by one as
    well.
    """
    b = ModelBuilder()
    x = b.input(INT8, (1, 8), "x", Q)
    for index in range(4):
        out = Operand(INT8, (1, 8), name=f"op{index}", quantization=Q)
        (x,) = b.operation("RELU", [x], [out])
    (y,) = b.operation("DEQUANTIZE", [x], [Operand(F32, (1, 8), name="real")])
    inputs = [np.full((1, 8), 30, np.int8)]
    device = Planted({f"op{k}" for k in range(4)}, off_by(1))
    found = compare(b.build([y]), inputs, device)
    assert not found.departs
    assert found.outputs.departs
    assert "the roundings of many operations" in found.show()


def test_nothing_departs_from_itself() -> None:
    model, inputs = chain(16)
    found = compare(model, inputs, InterceptingDevice(reference(), "again"))
    assert (found.departs, found.runs, found.supported) == (False, 2, 16)
    assert found.show() == (
        "OK: again took 16 of 16 operations, and no result departs from reference's (faithful)"
    )


def floats() -> tuple[Model, list[NDArray]]:
    b = ModelBuilder()
    x = b.input(F32, (4, 4), "x")
    for index in range(8):
        kind, count = ("TANH", 1) if index == 3 else ("ADD", 2)
        (x,) = b.operation(kind, [x] * count, [Operand(F32, (4, 4), name=f"op{index}")])
    return b.build([x]), [np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)]


def test_a_lying_device_is_caught_at_its_first_operation() -> None:
    model, inputs = floats()
    found = compare(model, inputs, LyingDevice(sample(), "values", name="liar"))
    assert found.departure is not None
    assert found.departure.operations == (0,)
    assert found.departure.distance is not None


@pytest.mark.parametrize(
    "lie", ["output_count", "output_shapes", "insufficient", "refuses_after_all"]
)
def test_a_broken_promise_is_a_departure_with_its_error(lie: Any) -> None:
    model, inputs = floats()
    found = compare(model, inputs, LyingDevice(sample(), lie, name="liar"))
    assert found.departure is not None
    assert found.departure.operations == (0,)
    assert found.departure.distance is None
    assert "GeneralFailure" in found.departure.error or "PlacementError" in found.departure.error


def test_comparison_leaves_out_unsupported_operations() -> None:
    model, inputs = floats()
    found = compare(model, inputs, sample())
    assert (found.departs, found.supported, list(found.refused)) == (False, 7, [3])
    device = SubsetDevice(sample(), "some", lambda _, i: i % 2 == 0)
    assert compare(model, inputs, LyingDevice(device, "values", name="liar")).departs


def test_operations_between_parts_get_their_inputs_in_order() -> None:
    b = ModelBuilder()
    x, y = b.input(F32, (2,), "x"), b.input(F32, (2,), "y")
    (sum_,) = b.operation("ADD", [x, y], [Operand(F32, (2,), name="sum")])
    (relu,) = b.operation("RELU", [y], [Operand(F32, (2,), name="relu")])
    (difference,) = b.operation("SUB", [relu, sum_], [Operand(F32, (2,), name="difference")])
    inputs = [np.array([1, 2], np.float32), np.array([5, 7], np.float32)]
    only = SubsetDevice(reference(), "only", lambda m, i: m.operations[i].type == "RELU")
    found = compare(b.build([sum_, difference]), inputs, only)
    assert (found.departs, found.outputs.value, found.supported) == (False, 0.0, 1)


def test_a_device_that_takes_nothing_is_not_called_right() -> None:
    model, inputs = chain(3)
    nothing = SubsetDevice(reference(), "nothing", lambda _model, _index: False)
    found = compare(model, inputs, nothing)
    assert found.show() == "nothing took 0 of 3 operations: there is nothing to compare"


def test_a_device_that_fails_is_a_departure_at_the_operation_it_fails_at() -> None:
    class Fails(InterceptingDevice):
        def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
            if any(o.type == "TANH" for o in model.operations):
                raise GeneralFailure("no room for TANH")
            return super().prepare_model(model, config)

    model, inputs = floats()
    found = compare(model, inputs, Fails(reference(), "fails"))
    assert found.departure is not None
    assert (found.departure.operations, found.departure.type) == ((3,), "TANH")
    assert found.departure.error == "GeneralFailure: no room for TANH"


def test_failure_that_does_not_recur_is_reported() -> None:
    model, inputs = floats()
    device = FaultyDevice(reference(), {"execute": 1}, name="once")
    found = compare(model, inputs, device)
    assert found.departure is not None
    assert found.departure.error.startswith("GeneralFailure: once: execute fails at call 1")


def test_control_flow_and_state_are_compared() -> None:
    case = branch()
    found = compare(case.model, case.inputs, InterceptingDevice(reference(), "again"))
    assert (found.departs, found.supported) == (False, 1)
    found = compare(case.model, case.inputs, LyingDevice(reference(), "values", name="liar"))
    assert found.show().startswith(
        "operation 0 (IF, 'IF_0'), with all that its subgraphs do, departs"
    )
    case = state()
    found = compare(case.model, case.inputs[:1], LyingDevice(sample(), "values", name="liar"))
    assert found.departure is not None
    assert found.departure.operations == (0,)


def test_the_cut_out_operation_reproduces_the_departure() -> None:
    model, inputs = chain(8)
    device = Planted({"op5"}, off_by(2))
    departure = compare(model, inputs, device).departure
    assert departure is not None
    case = departure.case
    assert run_case(case, "reference")[0].tobytes() == case.expected[0].tobytes()
    arrays = case_arrays(case)
    again = penstock.load(case.tflite())
    with penstock.compile(again, devices=["reference"], cache=None) as compiled:
        (key,) = (name for name in arrays if name.startswith("expected/"))
        (given,) = (name for name in arrays if name != key)
        assert given == again.inputs[0].name
        assert compiled(arrays[given])[0].tobytes() == arrays[key].tobytes()


def test_arrays_of_equal_names_are_numbered() -> None:
    model, inputs = chain(2)
    case = next(cases_of(model, inputs))
    entry = case.model.entry
    for name in ("", "file", "expected/x", "a\nb"):
        operands = [replace(operand, name=name) for operand in entry.operands]
        nameless = replace(
            case, model=replace(case.model, subgraphs=(replace(entry, operands=tuple(operands)),))
        )
        assert sorted(case_arrays(nameless)) == ["expected/0", "input0"]


def test_a_comparison_takes_another_device_as_its_reference() -> None:
    model, inputs = floats()
    liar: hal.Device = LyingDevice(sample(), "values", name="liar")
    found: Comparison = compare(model, inputs, "reference", against=liar)
    assert found.against == "liar"
    assert found.departs


def test_impossible_comparison_is_refused() -> None:
    model, inputs = floats()
    with pytest.raises(InputError, match="sample would be compared with itself"):
        compare(model, inputs, "sample", "sample")
    with pytest.raises(PlacementError, match="no device is named 'nope'"):
        compare(model, inputs, "nope")
    with pytest.raises(InputError, match="0 inputs given"):
        compare(model, [], "sample")


def test_the_result_is_plain_data() -> None:
    import json

    model, inputs = chain(8)
    made = compare(model, inputs, Planted({"op5"}, off_by(2))).to_builtins()
    assert json.loads(json.dumps(made)) == made
    assert made["departure"]["index"] == 5
    assert made["departure"]["distance"]["value"] == 2
    assert made["departs"] is True


def test_a_device_is_asked_about_the_shapes_of_the_inputs() -> None:
    def supports(model: Model, index: int) -> bool:
        outputs = model.operations[index].outputs
        return all(is_static(model.operands[o].shape) for o in outputs)

    b = ModelBuilder()
    x = b.input(F32, (None, 4), "x")
    for _ in range(3):
        (x,) = b.operation("RELU", [x], [(F32, (None, 4))])
    device = SubsetDevice(sample(), "static", supports)
    found = compare(b.build([x]), [np.ones((2, 4), np.float32)], device)
    assert (found.supported, found.refused, found.departs) == (3, {}, False)
