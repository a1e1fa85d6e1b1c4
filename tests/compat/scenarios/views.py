"""`tensor()`: views of the interpreter's own memory, and the rule that none is held."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import attempt, each, opened, ready, scenario

ONES = np.ones((1, 4), np.float32)


def _moves(interpreter: Any) -> list[object]:
    """The calls that may move memory."""
    return [
        attempt(interpreter.invoke),
        attempt(interpreter.allocate_tensors),
        attempt(interpreter.resize_tensor_input, 0, [1, 4]),
        attempt(interpreter.reset_all_variables),
    ]


@scenario
def view_reads_and_writes(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    given, answer = interpreter.tensor(0), interpreter.tensor(1)
    given().fill(3)
    interpreter.invoke()
    return [answer().copy(), given().copy(), interpreter.get_tensor(0)]


@scenario
def view_sees_what_is_set(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    view = interpreter.tensor(0)()
    interpreter.set_tensor(0, ONES * 5)
    return [view.copy(), view.flags.writeable, view.flags.owndata, view.base is not None]


@scenario
def function_may_be_held(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    functions = [interpreter.tensor(k) for k in (0, 1)]
    return [_moves(interpreter), [f().shape for f in functions]]


@scenario
def held_view(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    view = interpreter.tensor(0)()
    return [_moves(interpreter), view.shape]


@scenario
def held_view_of_an_output(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", ONES)
    interpreter.invoke()
    view = interpreter.tensor(1)()
    return [_moves(interpreter), view]


@each(["slice", "reshaped", "element", "transposed", "ravelled", "typed", "memoryview", "asarray"])
def held_derived_view(tflite: Any, models: Models, kind: str) -> object:
    interpreter = opened(tflite, models, "static")
    derive: Any = {
        "slice": lambda v: v[0, 1:],
        "reshaped": lambda v: v.reshape(2, 2),
        "element": lambda v: v[0, 1],
        "transposed": lambda v: v.T,
        "ravelled": lambda v: v.ravel(),
        "typed": lambda v: v.view(np.int32),
        "memoryview": memoryview,
        "asarray": np.asarray,
    }[kind]
    held = derive(interpreter.tensor(0)())
    gc.collect()
    return [attempt(interpreter.invoke), type(held)]


@each(["copy", "sum", "tolist", "float64", "array"])
def result_that_is_no_view(tflite: Any, models: Models, kind: str) -> object:
    interpreter = opened(tflite, models, "static")
    derive: Any = {
        "copy": lambda v: v.copy(),
        "sum": lambda v: v.sum(),
        "tolist": lambda v: v.tolist(),
        "float64": lambda v: v.astype(np.float64),
        "array": lambda v: np.array(v),  # noqa: PLW0108 - the copy is the point
    }[kind]
    # What lies there before anything is written may be any numbers, whose sum is none.
    interpreter.tensor(0)()[...] = 0
    held = derive(interpreter.tensor(0)())
    return [attempt(interpreter.invoke), type(held)]


@scenario
def deleted_view(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    view = interpreter.tensor(0)()
    refused = attempt(interpreter.invoke)
    del view
    return [refused, _moves(interpreter)]


@scenario
def two_views_one_deleted(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    first, second = interpreter.tensor(0)(), interpreter.tensor(1)()
    del first
    refused = attempt(interpreter.invoke)
    del second
    return [refused, attempt(interpreter.invoke)]


@scenario
def view_kept_in_a_list(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    kept = [interpreter.tensor(0)()]
    refused = attempt(interpreter.allocate_tensors)
    kept.clear()
    return [refused, attempt(interpreter.allocate_tensors)]


@scenario
def view_in_a_cycle(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    cycle: list[object] = [interpreter.tensor(0)()]
    cycle.append(cycle)
    del cycle
    refused = attempt(interpreter.invoke)
    gc.collect()
    return [refused, attempt(interpreter.invoke)]


@scenario
def held_view_lets_values_be_set_and_got(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    view = interpreter.tensor(0)()
    return [
        attempt(interpreter.set_tensor, 0, ONES),
        attempt(interpreter.get_tensor, 0),
        attempt(interpreter.get_input_details),
        view.copy(),
    ]


@scenario
def held_view_of_one_interpreter_leaves_the_other_free(tflite: Any, models: Models) -> object:
    one, other = opened(tflite, models, "static"), opened(tflite, models, "static")
    view = one.tensor(0)()
    return [attempt(one.invoke), attempt(other.invoke), view.shape]


@scenario
def held_view_and_a_signature(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    runner = interpreter.get_signature_runner()
    view = interpreter.tensor(0)()
    ones = np.ones((1, 2), np.float32)
    return [attempt(runner, left=ones, right=ones), view.shape]


@scenario
def view_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"])
    function = interpreter.tensor(0)
    return attempt(function)


@scenario
def view_of_an_unknown_tensor_is_refused_when_called(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return [[callable(f := interpreter.tensor(k)), attempt(f)] for k in (-1, 2, 99, "0", None)]


@scenario
def function_made_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"])
    function = interpreter.tensor(0)
    interpreter.allocate_tensors()
    function().fill(2)
    return interpreter.get_tensor(0)


@scenario
def function_follows_a_resize(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    given, answer = interpreter.tensor(0), interpreter.tensor(1)
    before = [given().shape, answer().shape]
    interpreter.resize_tensor_input(0, [3, 4])
    between = [attempt(lambda: given().shape), attempt(lambda: answer().shape)]
    interpreter.allocate_tensors()
    given()[:] = np.arange(12, dtype=np.float32).reshape(3, 4) - 6
    interpreter.invoke()
    return [before, between, answer().copy()]


@scenario
def view_of_a_constant(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "per_channel")
    view = interpreter.tensor(1)()
    return [view.copy(), view.dtype.name]


@scenario
def view_of_a_string_tensor(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "pass_string")
    return attempt(interpreter.tensor(0))


@scenario
def view_of_an_empty_tensor(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "empty_tensor")
    return attempt(lambda: interpreter.tensor(0)().shape)


@scenario
def view_of_a_scalar(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "scalar", np.array(4, np.float32))
    value = interpreter.tensor(0)()
    return [value, attempt(interpreter.invoke), interpreter.tensor(1)()]


@each(["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float64", "complex64"])
def view_of_a_type(tflite: Any, models: Models, dtype: str) -> object:
    interpreter = opened(tflite, models, f"pass_{dtype}")
    view = interpreter.tensor(0)()
    view[:] = np.array([[0, 1, 0], [1, 1, 0]]).astype(dtype)
    del view
    interpreter.invoke()
    return interpreter.tensor(interpreter.get_output_details()[0]["index"])().copy()


@each(["pass_int4", "pass_uint4"])
def view_of_four_bit_values(tflite: Any, models: Models, name: str) -> object:
    value = np.array([[1, 2, 3], [4, 5, 6]], name[5:].replace("4", "8"))
    interpreter = ready(tflite, models, name, value)
    view = interpreter.tensor(0)()
    return [view.shape, view.dtype.name]


@scenario
def view_outlives_its_interpreter(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.set_tensor(0, ONES)
    view = interpreter.tensor(0)()
    del interpreter
    gc.collect()
    return view.copy()


@scenario
def function_outlives_its_interpreter(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.set_tensor(0, ONES)
    function = interpreter.tensor(0)
    del interpreter
    gc.collect()
    return function().copy()


@scenario
def output_view_after_each_run(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    given, answer = interpreter.tensor(0), interpreter.tensor(1)
    seen = []
    for k in range(3):
        given().fill(k)
        interpreter.invoke()
        seen.append(answer().copy())
    return seen


@scenario
def view_of_a_dynamic_output(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "where", np.array([True, False, True, False]))
    before = attempt(lambda: interpreter.tensor(1)().shape)
    interpreter.invoke()
    return [before, interpreter.tensor(1)().copy()]
