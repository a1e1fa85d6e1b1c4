"""Signatures: their list, their runners, and wrong names, counts, shapes and types."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import attempt, each, opened, results, scenario

LEFT, RIGHT = np.array([[5, 7]], np.float32), np.array([[1, 2]], np.float32)


def _interpreter(tflite: Any, models: Models, name: str) -> Any:
    return tflite.Interpreter(model_content=models[name])


@each(["static", "signature", "signatures", "second_signature", "shared_state"])
def signature_list(tflite: Any, models: Models, name: str) -> object:
    return _interpreter(tflite, models, name).get_signature_list()


@scenario
def signature_list_is_new_each_time(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "signatures")
    interpreter.get_signature_list().clear()
    return interpreter.get_signature_list()


@each(["signature", "signatures"])
def full_signature_list(tflite: Any, models: Models, name: str) -> object:
    return _interpreter(tflite, models, name)._get_full_signature_list()


@scenario
def the_only_signature_needs_no_name(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return runner(left=LEFT, right=RIGHT)


@scenario
def runner_without_allocation(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner("serving")
    return runner(right=RIGHT, left=LEFT)


@each(["add", "negate"])
def each_of_two_signatures(tflite: Any, models: Models, key: str) -> object:
    runner = _interpreter(tflite, models, "signatures").get_signature_runner(key)
    x = np.array([1, -2], np.float32)
    return runner(x=x, y=x) if key == "add" else runner(x=x)


@scenario
def two_runners_in_turn(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "signatures")
    add, negate = (interpreter.get_signature_runner(k) for k in ("add", "negate"))
    x, y = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    first = add(x=x, y=y)
    second = negate(x=first["sum"])
    return [first, second, add(x=second["y"], y=y)]


@scenario
def no_name_for_two_signatures(tflite: Any, models: Models) -> object:
    return _interpreter(tflite, models, "signatures").get_signature_runner()


@scenario
def no_name_for_no_signature(tflite: Any, models: Models) -> object:
    return _interpreter(tflite, models, "static").get_signature_runner()


@each(["nosuch", "Serving", "", "serving "])
def wrong_signature_name(tflite: Any, models: Models, key: str) -> object:
    return _interpreter(tflite, models, "signature").get_signature_runner(key)


@each([5, b"serving", ("serving",)])
def signature_name_of_another_type(tflite: Any, models: Models, key: Any) -> object:
    return _interpreter(tflite, models, "signature").get_signature_runner(key)


@scenario
def signature_name_that_does_not_hash(tflite: Any, models: Models) -> object:
    return _interpreter(tflite, models, "signature").get_signature_runner(["serving"])


@scenario
def named_signature_of_a_model_without_any(tflite: Any, models: Models) -> object:
    return _interpreter(tflite, models, "static").get_signature_runner("serving_default")


@scenario
def runner_details(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return [runner.get_input_details(), runner.get_output_details()]


@each(["add", "negate"])
def runner_details_of_two(tflite: Any, models: Models, key: str) -> object:
    runner = _interpreter(tflite, models, "signatures").get_signature_runner(key)
    return [runner.get_input_details(), runner.get_output_details()]


@scenario
def runner_details_after_another_shape(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    runner(left=np.ones((3, 2), np.float32), right=np.ones((3, 2), np.float32))
    return [runner.get_input_details(), runner.get_output_details()]


@each([0, 1, 3])
def wrong_number_of_inputs(tflite: Any, models: Models, count: int) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    names = ["left", "right", "third"][:count]
    return runner(**dict.fromkeys(names, LEFT))


@scenario
def wrong_input_name(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return runner(left=LEFT, wrong=RIGHT)


@scenario
def tensor_name_for_input_name(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return runner(**{"arg_a:0": LEFT, "arg_b:0": RIGHT})


@scenario
def positional_inputs(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return runner(LEFT, RIGHT)


@each([2, 3, 0])
def inputs_of_another_batch(tflite: Any, models: Models, batch: int) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    value = np.full((batch, 2), 4, np.float32)
    return runner(left=value, right=np.ones((batch, 2), np.float32))


@scenario
def inputs_of_another_batch_and_back(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return [
        runner(left=np.ones((n, 2), np.float32), right=np.zeros((n, 2), np.float32))
        for n in (1, 4, 2)
    ]


@scenario
def inputs_that_broadcast(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return runner(left=np.ones((3, 2), np.float32), right=RIGHT)


@scenario
def inputs_that_do_not_fit_each_other(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    failed = attempt(runner, left=np.ones((3, 2), np.float32), right=np.ones((2, 2), np.float32))
    return [failed, attempt(runner, left=LEFT, right=RIGHT)]


@scenario
def fixed_shape_given_another(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signatures").get_signature_runner("negate")
    return runner(x=np.array([1, 2, 3], np.float32))


@each(["list", "number", "float64", "int32", "none"])
def input_of_another_type(tflite: Any, models: Models, kind: str) -> object:
    value: Any = {
        "list": [[5.0, 7.0]],
        "number": 5.0,
        "float64": LEFT.astype(np.float64),
        "int32": LEFT.astype(np.int32),
        "none": None,
    }[kind]
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    failed = attempt(runner, left=value, right=RIGHT)
    return [failed, attempt(runner, left=LEFT, right=RIGHT)]


@scenario
def numpy_scalars_as_inputs(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signatures").get_signature_runner("negate")
    return runner(x=np.float32(3))


@scenario
def result_is_ones_own(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    first = runner(left=LEFT, right=RIGHT)
    runner(left=RIGHT, right=LEFT)
    return [type(first), first["difference"], first["difference"].flags.writeable]


@scenario
def order_of_the_results(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signatures").get_signature_runner("negate")
    return [list(runner(x=np.ones(2, np.float32))), list(runner.get_output_details())]


@scenario
def interpreter_methods_beside_a_runner(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    runner = interpreter.get_signature_runner()
    return [
        attempt(interpreter.invoke),
        attempt(interpreter.allocate_tensors),
        attempt(interpreter.resize_tensor_input, 0, [2, 2]),
        attempt(interpreter.set_tensor, 0, LEFT),
        attempt(interpreter.get_tensor, 0),
        attempt(interpreter.get_input_details),
        attempt(runner, left=LEFT, right=RIGHT),
    ]


@scenario
def interpreter_methods_after_a_runner_is_gone(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    runner = interpreter.get_signature_runner()
    runner(left=LEFT, right=RIGHT)
    del runner
    return [attempt(interpreter.invoke), results(interpreter)]


@scenario
def runner_sees_the_interpreters_tensors(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "signature")
    interpreter.get_signature_runner()(left=LEFT, right=RIGHT)
    return [interpreter.get_tensor(k) for k in range(3)]


@scenario
def runner_without_an_interpreter(tflite: Any, models: Models) -> object:
    runner = type(_interpreter(tflite, models, "signature").get_signature_runner())
    return [
        attempt(runner),
        attempt(runner, _interpreter(tflite, models, "signature")),
        attempt(runner, _interpreter(tflite, models, "signature"), "serving"),
    ]


@scenario
def runner_class_by_its_name(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "signature")
    return tflite.SignatureRunner(interpreter, "serving")(left=LEFT, right=RIGHT)


@scenario
def runner_keeps_its_interpreter_alive(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return [runner(left=LEFT, right=RIGHT) for _ in range(2)]


@scenario
def runner_of_a_held_view(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signatures")
    view = interpreter.tensor(0)()
    runner = interpreter.get_signature_runner("negate")
    return [attempt(runner, x=np.ones(2, np.float32)), view.shape]


@scenario
def signatures_share_a_variable(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "shared_state")
    put, get, add = (interpreter.get_signature_runner(k) for k in ("put", "get", "add"))
    x = np.array([10, 20], np.float32)
    return [get(), add(x=x), get(), put(x=-x), get(), add(x=x), get()]


@scenario
def signature_without_inputs_given_one(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "shared_state").get_signature_runner("get")
    return [attempt(runner, x=LEFT), attempt(runner), runner.get_input_details()]


@scenario
def variables_of_signatures_after_reset(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "shared_state")
    add, get = (interpreter.get_signature_runner(k) for k in ("add", "get"))
    add(x=np.array([10, 20], np.float32))
    reset = attempt(interpreter.reset_all_variables)
    return [reset, get()]


@scenario
def variables_of_two_interpreters(tflite: Any, models: Models) -> object:
    runners = [
        _interpreter(tflite, models, "shared_state").get_signature_runner("add") for _ in range(2)
    ]
    x = np.array([1, 1], np.float32)
    return [runners[0](x=x), runners[0](x=x), runners[1](x=x)]


@each([[True, False, True, True], [False, True, False, False]])
def signature_whose_result_grows(tflite: Any, models: Models, mask: list[bool]) -> object:
    runner = _interpreter(tflite, models, "where_signature").get_signature_runner()
    return [runner(mask=np.array(mask)), runner(mask=np.array([True] * 6))]


@scenario
def two_names_for_one_output(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "two_names").get_signature_runner()
    return [runner(**{"in": np.array([-1, 1], np.float32)}), runner.get_output_details()]


@scenario
def values_of_a_signatures_subgraph(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "signatures")
    interpreter.get_signature_runner("negate")(x=np.array([1, -2], np.float32))
    return [interpreter.get_tensor(k, 1) for k in range(3)]


@scenario
def runner_after_the_interpreter_was_invoked(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    for index, value in enumerate((LEFT, RIGHT)):
        interpreter.set_tensor(index, value)
    interpreter.invoke()
    first = interpreter.get_tensor(2)
    return [first, interpreter.get_signature_runner()(left=RIGHT, right=LEFT)]


@scenario
def same_signature_by_two_runners(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "signature")
    one, other = (interpreter.get_signature_runner() for _ in range(2))
    big = np.ones((3, 2), np.float32)
    return [one(left=LEFT, right=RIGHT), other(left=big, right=big), one(left=RIGHT, right=LEFT)]


@scenario
def attributes_of_a_runner(tflite: Any, models: Models) -> object:
    runner = _interpreter(tflite, models, "signature").get_signature_runner()
    return [callable(runner), type(runner).__name__, attempt(lambda: runner.invoke)]


@scenario
def only_signature_on_the_second_subgraph(tflite: Any, models: Models) -> object:
    interpreter = _interpreter(tflite, models, "second_signature")
    return [
        interpreter.get_signature_runner()(x=np.array([1, -2], np.float32)),
        interpreter.get_input_details(),
    ]
