"""Several interpreters, collection, copies, threads, and what the module offers."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import weakref
from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import attempt, each, opened, ready, results, scenario

X = np.array([[-1, 0, 2, 3]], np.float32)


@scenario
def several_interpreters_on_one_content(tflite: Any, models: Models) -> object:
    content = models["static"]
    made = [tflite.Interpreter(model_content=content) for _ in range(3)]
    for k, interpreter in enumerate(made):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, X * k)
    for interpreter in made:
        interpreter.invoke()
    return [results(interpreter) for interpreter in made]


@scenario
def several_interpreters_on_one_file(tflite: Any, models: Models) -> object:
    path = str(models.file("dynamic"))
    one, other = (tflite.Interpreter(model_path=path) for _ in range(2))
    one.resize_tensor_input(0, [2, 4])
    for interpreter in (one, other):
        interpreter.allocate_tensors()
    return [one.get_input_details()[0]["shape"], other.get_input_details()[0]["shape"]]


@scenario
def collected_when_let_go(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", X)
    interpreter.invoke()
    gone = weakref.ref(interpreter)
    del interpreter
    return gone() is None


@scenario
def collected_with_a_view_held(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", X)
    view = interpreter.tensor(0)()
    gone = weakref.ref(interpreter)
    del interpreter
    gc.collect()
    return [gone() is None, view.copy()]


@scenario
def made_and_let_go_many_times(tflite: Any, models: Models) -> object:
    content = models["static"]
    for _ in range(20):
        tflite.Interpreter(model_content=content).allocate_tensors()
    return opened(tflite, models, "static").get_input_details()


@each(["pickle", "copy", "deepcopy"])
def interpreter_copied(tflite: Any, models: Models, how: str) -> object:
    interpreter = ready(tflite, models, "static", X)
    copier: Any = {"pickle": pickle.dumps, "copy": copy.copy, "deepcopy": copy.deepcopy}[how]
    return copier(interpreter)


@scenario
def copy_of_an_interpreter_and_the_rule_of_references(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", X)
    other = copy.copy(interpreter)
    refused = [attempt(interpreter.invoke), attempt(other.invoke)]
    del other
    return [refused, attempt(interpreter.invoke), results(interpreter)]


@scenario
def details_pickled(tflite: Any, models: Models) -> object:
    return len(pickle.dumps(opened(tflite, models, "static").get_input_details())) > 0


@scenario
def used_from_another_thread(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", X)
    failures: list[object] = []

    def work() -> None:
        failures.append(attempt(interpreter.invoke))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return [failures, results(interpreter)]


@scenario
def one_interpreter_for_each_thread(tflite: Any, models: Models) -> object:
    answers: dict[int, object] = {}

    def work(k: int) -> None:
        interpreter = ready(tflite, models, "static", X * k)
        for _ in range(5):
            interpreter.invoke()
        answers[k] = results(interpreter)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[k] for k in range(4)]


@scenario
def attributes_may_be_added(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.label = "mine"
    return interpreter.label


@scenario
def class_may_be_derived_from(tflite: Any, models: Models) -> object:
    class Classifier(tflite.Interpreter):  # type: ignore[misc]
        def __init__(self, content: bytes) -> None:
            super().__init__(model_content=content, num_threads=1)
            self.allocate_tensors()

        def classify(self, x: Any) -> object:
            self.set_tensor(0, x)
            self.invoke()
            return results(self)

    return Classifier(models["static"]).classify(X)


@scenario
def truth_and_equality(tflite: Any, models: Models) -> object:
    one, other = opened(tflite, models, "static"), opened(tflite, models, "static")
    return [bool(one), one == other, one == one, isinstance(hash(one), int)]  # noqa: PLR0124


@each(
    [
        "Interpreter",
        "InterpreterWithCustomOps",
        "SignatureRunner",
        "Delegate",
        "load_delegate",
        "OpResolverType",
    ]
)
def name_of_the_module(tflite: Any, models: Models, name: str) -> object:
    return [hasattr(tflite, name), getattr(tflite, name).__name__]


@each(
    [
        "allocate_tensors",
        "get_input_details",
        "get_output_details",
        "get_signature_list",
        "get_signature_runner",
        "get_tensor",
        "get_tensor_details",
        "invoke",
        "num_subgraphs",
        "reset_all_variables",
        "resize_tensor_input",
        "set_tensor",
        "tensor",
        "__init__",
    ]
)
def parameters_of_a_method(tflite: Any, models: Models, name: str) -> object:
    parameters = inspect.signature(getattr(tflite.Interpreter, name)).parameters.values()
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}
    return [
        [p.name, p.default is not p.empty, str(p.default) if p.default is not p.empty else None]
        for p in parameters
        if p.kind in kinds
    ]


@scenario
def parameters_of_load_delegate(tflite: Any, models: Models) -> object:
    return [
        [p.name, p.default is not p.empty]
        for p in inspect.signature(tflite.load_delegate).parameters.values()
    ]
