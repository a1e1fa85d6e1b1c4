"""`invoke`, `reset_all_variables`, preserved tensors: what a run leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import attempt, each, opened, ready, results, scenario

X = np.array([[1, -2, 3, -4]], np.float32)


@scenario
def invoke_before_allocation(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=models["static"]).invoke()


@scenario
def invoke_before_allocation_then_after(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["no_input"])
    failed = attempt(interpreter.invoke)
    interpreter.allocate_tensors()
    interpreter.invoke()
    return [failed, results(interpreter)]


@scenario
def allocate_twice(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", X)
    again = interpreter.allocate_tensors()
    interpreter.invoke()
    return [again, results(interpreter)]


@scenario
def invoke_takes_no_argument(tflite: Any, models: Models) -> object:
    return opened(tflite, models, "static").invoke(0)


@scenario
def run_that_fails_names_its_operation(tflite: Any, models: Models) -> object:
    a, b = np.array([6, 6], np.int32), np.array([2, 0], np.int32)
    interpreter = ready(tflite, models, "division", a, b)
    failed = attempt(interpreter.invoke)
    interpreter.set_tensor(1, np.array([2, 3], np.int32))
    interpreter.invoke()
    return [failed, results(interpreter)]


@scenario
def run_that_fails_leaves_the_inputs(tflite: Any, models: Models) -> object:
    a, b = np.array([6, 6], np.int32), np.array([0, 1], np.int32)
    interpreter = ready(tflite, models, "division", a, b)
    return [attempt(interpreter.invoke), interpreter.get_tensor(0), interpreter.get_tensor(1)]


@scenario
def shape_that_does_not_fit_at_run_time(tflite: Any, models: Models) -> object:
    interpreter = ready(
        tflite, models, "dynamic_output", np.arange(6, dtype=np.float32), np.array([2, 2], np.int32)
    )
    return attempt(interpreter.invoke)


@scenario
def outputs_whose_shape_changes_from_run_to_run(tflite: Any, models: Models) -> object:
    x = np.arange(6, dtype=np.float32)
    interpreter = ready(tflite, models, "dynamic_output", x, np.array([2, 3], np.int32))
    seen = []
    for shape in ([2, 3], [6, 1], [-1, 2]):
        interpreter.set_tensor(1, np.array(shape, np.int32))
        interpreter.invoke()
        seen.append(results(interpreter))
    return seen


@each([[True] * 4, [False] * 4, [False, True, False, False]])
def where_it_holds(tflite: Any, models: Models, condition: list[bool]) -> object:
    interpreter = ready(tflite, models, "where", np.array(condition))
    interpreter.invoke()
    return results(interpreter)


@scenario
def dynamic_output_before_the_run(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "where")
    return attempt(interpreter.get_tensor, 1)


@each([True, False])
def branch(tflite: Any, models: Models, choice: bool) -> object:
    a, b = np.array([2, 3], np.float32), np.array([4, 5], np.float32)
    interpreter = ready(tflite, models, "branches", np.array([choice]), a, b)
    interpreter.invoke()
    return results(interpreter)


@each([1, 50, 100, 7])
def loop(tflite: Any, models: Models, start: int) -> object:
    interpreter = ready(tflite, models, "loop", np.array([start], np.int32))
    interpreter.invoke()
    return [results(interpreter), interpreter.get_tensor(0)]


@scenario
def resource_variable_lasts_from_run_to_run(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "accumulator", np.array([1, 1], np.float32))
    seen = []
    for _ in range(3):
        interpreter.invoke()
        seen.append(results(interpreter))
    return seen


@scenario
def resource_variable_after_reset(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "accumulator", np.array([1, 1], np.float32))
    interpreter.invoke()
    interpreter.invoke()
    reset = interpreter.reset_all_variables()
    interpreter.invoke()
    return [reset, results(interpreter)]


@scenario
def resource_variable_after_allocation(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "accumulator", np.array([1, 1], np.float32))
    interpreter.invoke()
    interpreter.allocate_tensors()
    interpreter.set_tensor(
        interpreter.get_input_details()[0]["index"], np.array([1, 1], np.float32)
    )
    interpreter.invoke()
    return results(interpreter)


@scenario
def variable_tensor_lasts_from_run_to_run(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "svdf", np.array([[1, 2]], np.float32))
    seen = []
    for _ in range(3):
        interpreter.invoke()
        seen.append([results(interpreter), interpreter.get_tensor(4)])
    return seen


@scenario
def variable_tensor_starts_at_zeros(tflite: Any, models: Models) -> object:
    return opened(tflite, models, "svdf").get_tensor(4)


@scenario
def variable_tensor_after_reset(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "svdf", np.array([[1, 2]], np.float32))
    interpreter.invoke()
    reset = interpreter.reset_all_variables()
    state = interpreter.get_tensor(4)
    interpreter.invoke()
    return [reset, state, results(interpreter)]


@scenario
def variable_tensor_after_allocation(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "svdf", np.array([[1, 2]], np.float32))
    interpreter.invoke()
    interpreter.allocate_tensors()
    return interpreter.get_tensor(4)


@scenario
def variable_tensor_set_by_hand(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "svdf", np.array([[1, 2]], np.float32))
    interpreter.set_tensor(4, np.arange(12, dtype=np.float32).reshape(1, 12))
    interpreter.invoke()
    return [results(interpreter), interpreter.get_tensor(4)]


@scenario
def variable_tensor_seen_through_a_view(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "svdf", np.array([[1, 2]], np.float32))
    state = interpreter.tensor(4)
    interpreter.invoke()
    first = state().copy()
    state().fill(1)
    interpreter.invoke()
    return [first, results(interpreter)]


@scenario
def variable_tensor_of_another_shape(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "svdf")
    return [
        attempt(interpreter.set_tensor, 4, np.zeros((1, 6), np.float32)),
        attempt(interpreter.resize_tensor_input, 4, [1, 6]),
    ]


@scenario
def reset_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["svdf"])
    return attempt(interpreter.reset_all_variables)


@scenario
def reset_without_variables(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", X)
    interpreter.invoke()
    return [interpreter.reset_all_variables(), results(interpreter), interpreter.get_tensor(0)]


@scenario
def two_interpreters_have_two_states(tflite: Any, models: Models) -> object:
    content = models["accumulator"]
    one, other = (tflite.Interpreter(model_content=content) for _ in range(2))
    for interpreter in (one, other):
        interpreter.allocate_tensors()
        index = interpreter.get_input_details()[0]["index"]
        interpreter.set_tensor(index, np.array([1, 1], np.float32))
    one.invoke()
    one.invoke()
    other.invoke()
    return [results(one), results(other)]


@each(["BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def intermediate_values_preserved(tflite: Any, models: Models, resolver: str) -> object:
    interpreter = ready(
        tflite,
        models,
        "chain",
        X,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tflite.OpResolverType[resolver],
    )
    interpreter.invoke()
    return [
        [d["name"], interpreter.get_tensor(d["index"])] for d in interpreter.get_tensor_details()
    ]


@scenario
def intermediate_values_through_views_when_preserved(tflite: Any, models: Models) -> object:
    interpreter = ready(
        tflite,
        models,
        "chain",
        X,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tflite.OpResolverType.BUILTIN_REF,
    )
    interpreter.invoke()
    return [interpreter.tensor(k)().copy() for k in range(3)]


@scenario
def intermediate_shape_when_not_preserved(tflite: Any, models: Models) -> object:
    interpreter = ready(
        tflite, models, "chain", X, experimental_op_resolver_type=tflite.OpResolverType.BUILTIN_REF
    )
    interpreter.invoke()
    value = interpreter.get_tensor(1)
    return [value.shape, value.dtype.name]


@scenario
def preserved_values_of_a_branch(tflite: Any, models: Models) -> object:
    a, b = np.array([2, 3], np.float32), np.array([4, 5], np.float32)
    interpreter = ready(
        tflite,
        models,
        "branches",
        np.array([True]),
        a,
        b,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tflite.OpResolverType.BUILTIN_REF,
    )
    interpreter.invoke()
    return [results(interpreter), attempt(interpreter.get_tensor, 2, 1)]


@scenario
def quantised_layer(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "per_channel", np.array([[9, -7]], np.int8))
    interpreter.invoke()
    return results(interpreter)


@each(["int4_weights", "float16_weights", "sparse"])
def stored_weights(tflite: Any, models: Models, name: str) -> object:
    interpreter = opened(tflite, models, name)
    detail = interpreter.get_input_details()[0]
    interpreter.set_tensor(detail["index"], np.ones(detail["shape"], np.float32))
    interpreter.invoke()
    return results(interpreter)


@scenario
def output_before_the_first_run(tflite: Any, models: Models) -> object:
    output = opened(tflite, models, "static").get_tensor(1)
    return [output.shape, output.dtype.name]


@scenario
def output_named_twice(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "output_twice", np.array([-1, 1], np.float32))
    interpreter.invoke()
    return results(interpreter)


@scenario
def input_named_twice(tflite: Any, models: Models) -> object:
    x = np.array([-1, 1], np.float32)
    interpreter = ready(tflite, models, "input_twice", x, x * 2)
    interpreter.invoke()
    return results(interpreter)


@scenario
def preserved_values_of_a_loop(tflite: Any, models: Models) -> object:
    interpreter = ready(
        tflite,
        models,
        "loop",
        np.array([30], np.int32),
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tflite.OpResolverType.BUILTIN_REF,
    )
    interpreter.invoke()
    return [results(interpreter), attempt(interpreter.get_tensor, 0, 2)]


@each(["get", "set", "view"])
def handle_of_a_variable(tflite: Any, models: Models, how: str) -> object:
    interpreter = ready(tflite, models, "accumulator", np.array([1, 1], np.float32))
    interpreter.invoke()
    use: Any = {
        "get": lambda: interpreter.get_tensor(0).dtype.kind,
        "set": lambda: interpreter.set_tensor(0, np.array(0, np.int32)),
        "view": lambda: interpreter.tensor(0)().dtype.kind,
    }[how]
    return attempt(use)


@scenario
def many_runs_one_after_another(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "chain")
    total = np.zeros((1, 4))
    for k in range(50):
        interpreter.set_tensor(0, np.full((1, 4), k, np.float32))
        interpreter.invoke()
        total += results(interpreter)[0]
    return total


@scenario
def resized_and_set_in_every_order(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["two"])
    seen = []
    for order in ((0, 1), (1, 0)):
        for index in order:
            interpreter.resize_tensor_input(index, [3])
        interpreter.allocate_tensors()
        for index in reversed(order):
            interpreter.set_tensor(index, np.full(3, index + 2, np.float32))
        interpreter.invoke()
        seen.append(results(interpreter))
    return seen


@scenario
def variable_tensor_after_a_resize(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "svdf", np.array([[1, 2]], np.float32))
    interpreter.invoke()
    interpreter.resize_tensor_input(0, [1, 2])
    interpreter.allocate_tensors()
    return interpreter.get_tensor(4)


@scenario
def hash_table_after_reset(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "hash_table", np.array([5, 6], np.int64))
    interpreter.invoke()
    reset = attempt(interpreter.reset_all_variables)
    interpreter.invoke()
    return [reset, results(interpreter)]
