"""What a scenario shows, as plain data that can cross to another process and be compared."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.compat.models import Models

Scenario = Callable[[Any, Models], object]

SCENARIOS: Final[dict[str, Scenario]] = {}
"""Every scenario by name: a function of the interpreter's module and the models."""


@dataclass(frozen=True)
class Raised:
    """An exception where a value was expected."""

    error: BaseException


def scenario(function: Scenario) -> Scenario:
    """Registers a scenario under its function's name."""
    return _register(function.__name__, function)


def each(
    values: Iterable[Any],
) -> Callable[[Callable[[Any, Models, Any], object]], Callable[[Any, Models, Any], object]]:
    """Registers one scenario for each of *values*, the function's third argument."""

    def register(
        function: Callable[[Any, Models, Any], object],
    ) -> Callable[[Any, Models, Any], object]:
        for value in values:
            _register(f"{function.__name__}[{value}]", partial(_with, function, value))
        return function

    return register


def _with(
    function: Callable[[Any, Models, Any], object], value: Any, tflite: Any, models: Models
) -> object:
    return function(tflite, models, value)


def _register(name: str, function: Scenario) -> Scenario:
    if name in SCENARIOS:
        raise ValueError(f"two scenarios are called {name}")
    SCENARIOS[name] = function
    return function


def attempt(function: Callable[..., object], *args: Any, **keywords: Any) -> object:
    """What a call gives, or what it raises."""
    try:
        return function(*args, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is observed
        return Raised(_without_frames(error))


def _without_frames(error: BaseException) -> BaseException:
    """The same without tracebacks, whose frames would keep alive what they hold."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def opened(tflite: Any, models: Models, name: str, **keywords: Any) -> Any:
    """An interpreter of a model, its tensors allocated."""
    interpreter = tflite.Interpreter(model_content=models[name], **keywords)
    interpreter.allocate_tensors()
    return interpreter


def ready(tflite: Any, models: Models, name: str, *inputs: Any, **keywords: Any) -> Any:
    """An interpreter of a model, its inputs set and not yet invoked."""
    interpreter = opened(tflite, models, name, **keywords)
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    return interpreter


def results(interpreter: Any) -> list[Any]:
    """The outputs of an interpreter, in order."""
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def observe(name: str, tflite: Any, directory: Path) -> dict[str, Any]:
    """Runs a scenario: `{"result": ..., "warnings": [...]}`, JSON all through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = plain(attempt(SCENARIOS[name], tflite, Models(directory)))
    said = [[w.category.__name__, str(w.message)] for w in caught]
    observed: dict[str, Any] = _without(str(directory), {"result": result, "warnings": said})
    return observed


def plain(value: object) -> Any:
    """Lists, dictionaries with strings for keys, strings, numbers: what JSON has, and no
    information lost.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": repr(value)}
        case bytes():
            return {"bytes": value.decode("latin-1")}
        case np.ndarray():
            return {"array": value.dtype.name, "shape": list(value.shape), "values": _items(value)}
        case np.generic():
            return {"scalar": value.dtype.name, "value": _items(np.asarray(value))}
        case type():
            return {"type": value.__name__}
        case dict():
            return {"dict": [[plain(k), plain(v)] for k, v in value.items()]}
        case list():
            return [plain(v) for v in value]
        case tuple():
            return {"tuple": [plain(v) for v in value]}
        case Raised(error=error):
            return {"raised": [c.__name__ for c in type(error).__mro__], "message": str(error)}
        case _:
            return {"object": type(value).__name__}


def _items(array: Any) -> list[Any]:
    if array.dtype.kind in "OS":
        return [v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in array.reshape(-1)]
    if array.dtype.kind == "V":
        return [bytes(array.tobytes()).hex()]
    if array.dtype.kind in "iub":
        items: list[Any] = array.reshape(-1).tolist()
        return items
    return [repr(v) for v in array.reshape(-1).tolist()]


def _without(directory: str, value: Any) -> Any:
    """The same with what differs from run to run taken out: directories and addresses."""
    if isinstance(value, str):
        return re.sub(r"0x[0-9a-f]{6,}", "0x…", value.replace(directory, "…"))
    if isinstance(value, list):
        return [_without(directory, v) for v in value]
    if isinstance(value, dict):
        return {k: _without(directory, v) for k, v in value.items()}
    return value
