"""Single operations cut out of a model, their real inputs, and how far a device's results lie from
them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import InputError, NotExportable, PlacementError
from penstock.execution import State
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.testing.contract.cases import branch, dynamic, state
from penstock.testing.operations import OperationCase, cases_of, distance, run_case
from penstock.testing.random_models import random_model

F32, INT8 = DType.FLOAT32, DType.INT8
HALF = Quantization((0.5,), (3,))


def run_whole(model: Model, inputs: Any) -> list[NDArray]:
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        return list(compiled.run(inputs))


def two_steps() -> tuple[Model, list[NDArray]]:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (y,) = b.operation("ADD", [x, x], [Operand(F32, (2, 3), name="twice")])
    (z,) = b.operation("RELU", [y], [Operand(F32, (2, 3), name="positive")])
    return b.build([z]), [np.array([[1, -2, 3], [-4, 5, -6]], np.float32)]


def alone(kind: str, operand: Operand, value: NDArray) -> OperationCase:
    b = ModelBuilder()
    x = b.input(operand.dtype, value.shape, "x", operand.quantization)
    model = b.build(b.operation(kind, [x], [operand]))
    (case,) = cases_of(model, [value])
    return case


def test_cases_have_the_results_of_earlier_operations_as_inputs() -> None:
    model, inputs = two_steps()
    first, second = cases_of(model, inputs)
    assert (first.index, first.type, first.name) == (0, "ADD", "twice")
    assert (second.index, second.type, second.name) == (1, "RELU", "positive")
    assert first.inputs[0] is inputs[0]
    assert second.inputs[0] is first.expected[0]
    np.testing.assert_array_equal(second.expected[0], np.maximum(inputs[0] * 2, 0))
    assert all(len(case.model.operations) == 1 for case in (first, second))


def test_an_operand_that_is_read_twice_is_one_input() -> None:
    model, inputs = two_steps()
    first = next(cases_of(model, inputs))
    assert len(first.inputs) == len(first.model.inputs) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_last_results_are_the_whole_models(seed: int) -> None:
    from random import Random

    made = random_model(Random(seed), state=0.0)  # models, not secrets
    entry = made.model.entry
    results = {
        operand: array
        for case in cases_of(made.model, made.inputs)
        for operand, array in zip(entry.operations[case.index].outputs, case.expected, strict=True)
    }
    for operand, array in zip(entry.outputs, run_whole(made.model, list(made.inputs)), strict=True):
        assert results[operand].tobytes() == array.tobytes()


def test_cases_expect_unread_results() -> None:
    b = ModelBuilder()
    x = b.input(F32, (4,), "x")
    k = b.constant(np.array(2, np.int32))
    values, _ = b.operation("TOPK_V2", [x, k], [(F32, (2,)), (DType.INT32, (2,))])
    (case,) = cases_of(b.build([values]), [np.array([1, 4, 2, 3], np.float32)])
    assert [a.tolist() for a in case.expected] == [[4.0, 3.0], [1, 3]]


def test_unknown_shapes_are_those_of_the_run() -> None:
    case = dynamic()
    first, second = cases_of(case.model, case.inputs)
    assert [c.model.inputs[0].shape for c in (first, second)] == [(4, 3), (4, 3)]
    assert run_whole(second.model, list(second.inputs))[0].tobytes() == second.expected[0].tobytes()


def test_control_flow_is_one_case_with_its_subgraphs() -> None:
    case = branch()
    (found,) = cases_of(case.model, case.inputs)
    assert (found.type, len(found.model.subgraphs)) == ("IF", 3)
    assert found.expected[0].tolist() == case.outputs[0].tolist()


def test_state_comes_in_and_goes_out_and_is_carried_on() -> None:
    case = state()
    memory = State(case.model)
    passes = [list(cases_of(case.model, case.inputs[:1], state=memory)) for _ in range(3)]
    sums = [cases[0].expected[0].tolist() for cases in passes]
    assert sums == [[-3.0, 3.0], [-6.0, 6.0], [-9.0, 9.0]]
    assert memory.as_dict()["count"].tolist() == [-9.0, 9.0]
    assert not passes[0][0].model.entry.states
    fresh = next(cases_of(case.model, case.inputs[:1]))
    assert fresh.expected[0].tolist() == [-3.0, 3.0]


def test_a_file_of_every_case_computes_the_case() -> None:
    model, inputs = two_steps()
    for case in cases_of(model, inputs):
        results = run_whole(penstock.load(case.tflite()), list(case.tflite_inputs))
        assert [a.tobytes() for a in results] == [a.tobytes() for a in case.tflite_expected]


def recurrent() -> tuple[Model, list[NDArray]]:
    b = ModelBuilder()
    x = b.input(F32, (1, 2), "x")
    weights = b.constant(np.array([[1, 0], [0, 1]], np.float32))
    back = b.constant(np.array([[0.5, 0], [0, 0.5]], np.float32))
    bias = b.constant(np.zeros(2, np.float32))
    before = b.operand(Operand(F32, (1, 2), Lifetime.SUBGRAPH_INPUT, "before"))
    shown, after = b.operation(
        "RNN",
        [x, weights, back, bias, before],
        [(F32, (1, 2)), (F32, (1, 2))],
        {"fused_activation_function": "RELU"},
    )
    b.state(b.variable("hidden", F32, (1, 2)), before, after)
    return b.build([shown]), [np.array([[1, 2]], np.float32)]


def test_a_recurrent_operation_keeps_its_state_in_its_file() -> None:
    model, inputs = recurrent()
    memory = State(model)
    (first,) = cases_of(model, inputs, state=memory)
    assert (len(first.inputs), len(first.tflite_inputs)) == (2, 1)
    assert (len(first.expected), len(first.tflite_expected)) == (2, 1)
    results = run_whole(penstock.load(first.tflite()), list(first.tflite_inputs))
    assert results[0].tolist() == first.tflite_expected[0].tolist() == [[1.0, 2.0]]
    (second,) = cases_of(model, inputs, state=memory)
    assert second.expected[0].tolist() == [[1.5, 3.0]]
    with pytest.raises(NotExportable, match="from zeros on"):
        second.tflite()


def test_only_chosen_cases_are_made() -> None:
    model, inputs = two_steps()
    (case,) = cases_of(model, inputs, only=frozenset({1}))
    assert case.index == 1


def test_inputs_are_checked_as_those_of_a_run() -> None:
    model, _ = two_steps()
    with pytest.raises(InputError, match=r"input 0 \(x\)"):
        next(cases_of(model, [np.zeros((2, 2), np.float32)]))
    with pytest.raises(InputError, match="2 inputs given"):
        next(cases_of(model, [np.zeros((2, 3), np.float32)] * 2))


def test_a_device_runs_a_case_alone() -> None:
    model, inputs = two_steps()
    for case in cases_of(model, inputs):
        found = distance(case, run_case(case, "sample"))
        assert (found.value, found.departs) == (0.0, False)
    b = ModelBuilder()
    x = b.input(F32, (2,), "x")
    (case,) = cases_of(b.build(b.operation("TANH", [x], [(F32, (2,))])), [np.ones(2, np.float32)])
    with pytest.raises(PlacementError, match="sample"):
        run_case(case, "sample")


def test_quantised_results_are_measured_in_steps() -> None:
    values = np.array([3, 40, -7], np.int8)
    case = alone("RELU", Operand(INT8, (3,), quantization=HALF), values)
    good = case.expected[0]
    near, far = good + np.array([0, 1, 0], np.int8), good - np.array([2, 1, 0], np.int8)
    assert not distance(case, [near]).departs
    assert distance(case, [near], "exact").departs
    found = distance(case, [far])
    assert (found.measure, found.value, found.limit, found.element) == ("steps", 2, 1, (0,))
    assert found.departs
    assert found.severity == 2
    assert found.show() == "output 0 is off by 2 steps (1 allowed), at [0]: 1, not 3"


def test_the_ends_of_a_type_are_not_near_each_other() -> None:
    case = alone("RELU", Operand(INT8, (1,), quantization=HALF), np.array([127], np.int8))
    assert distance(case, [np.array([-128], np.int8)]).value == 255


def test_other_integers_are_equal_or_not() -> None:
    case = alone("NEG", Operand(DType.INT32, (2,)), np.array([1, 2], np.int32))
    found = distance(case, [np.array([-1, -3], np.int32)], "relaxed")
    assert (found.measure, found.value, found.limit, found.departs) == ("elements", 1, 0, True)
    assert found.severity == math.inf


def test_floats_are_measured_by_the_largest_value() -> None:
    case = alone("NEG", Operand(F32, (2,)), np.array([1000, 1], np.float32))
    assert not distance(case, [np.array([-1000, -1.1], np.float32)]).departs
    found = distance(case, [np.array([-1000, -2], np.float32)])
    assert found.measure == "relative"
    assert found.value == pytest.approx(1e-3)
    assert found.departs


def test_narrow_floats_may_be_off_by_their_last_place() -> None:
    case = alone("NEG", Operand(DType.FLOAT16, (1,)), np.array([1.5], np.float16))
    assert not distance(case, [np.nextafter(case.expected[0], np.float16(-9))]).departs


def test_distance_requires_nan_and_infinity_in_the_same_places() -> None:
    case = alone("NEG", Operand(F32, (2,)), np.array([np.nan, np.inf], np.float32))
    assert not distance(case, [np.array([np.nan, -np.inf], np.float32)]).departs
    found = distance(case, [np.array([np.nan, np.inf], np.float32)])
    assert found.departs
    assert found.problem == "it is inf at [1], not -inf"


def test_a_sum_that_cancels_is_measured_by_what_was_summed() -> None:
    b = ModelBuilder()
    x, axis = b.input(F32, (3,), "x"), b.constant(np.array([0], np.int32))
    model = b.build(b.operation("SUM", [x, axis], [(F32, ())], {"keep_dims": False}))
    (case,) = cases_of(model, [np.array([1000, -1000, 1e-8], np.float32)])
    assert not distance(case, [case.expected[0] + np.float32(1e-5)]).departs
    assert distance(case, [case.expected[0] + np.float32(1)]).departs


def test_relaxed_asks_for_the_root_mean_square() -> None:
    values = np.full(100, 43, np.int8)
    case = alone("RELU", Operand(INT8, (100,), quantization=HALF), values)
    found = distance(case, [case.expected[0] - np.int8(8)], "relaxed")
    assert (found.measure, found.value, found.departs) == ("rms", 0.2, False)
    assert distance(case, [case.expected[0] - np.int8(12)], "relaxed").departs
    assert distance(case, [case.expected[0]], "relaxed").measure == "steps"


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([], "0 outputs, not 1"),
        ([np.zeros((3,), np.float32)], "its shape is (3,), not (2,)"),
        ([np.zeros((2,), np.float64)], "its element type is float64, not float32"),
    ],
)
def test_distance_of_incomparable_outputs_departs(outputs: list[NDArray], problem: str) -> None:
    case = alone("NEG", Operand(F32, (2,)), np.ones(2, np.float32))
    found = distance(case, outputs)
    assert (found.departs, found.problem) == (True, problem)


def test_a_case_as_a_file_has_a_name_for_each_tensor_and_none_twice() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    k = b.constant(np.ones(3, np.float32))
    model = b.build(b.operation("ADD", [x, k], [Operand(F32, (2, 3), name="x")]))
    (case,) = cases_of(model, [np.zeros((2, 3), np.float32)])
    names = [o.name for o in penstock.load(case.tflite()).entry.operands]
    assert len(set(names)) == len(names) == 3
    assert all(names)
    assert names[0] == "x"
