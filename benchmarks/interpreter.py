"""Overhead of one TFLite interpreter call over its driver's time: one step, on the null driver."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measuring import Row, medians
from penstock.export.tflite import write
from penstock.ir import Model
from penstock.tflite import Interpreter

NAME = "interpreter"
LIMIT_US = 20.0
CALLS = ("set_tensor", "invoke", "get_tensor")


def rows(model: Model, watch: Any, *, quick: bool) -> list[Row]:
    """Microseconds of each call and all three on *watch*, a device with `spent_ns`; LiteRT's."""
    content = write(model)
    count = 3000 if quick else 30_000
    ours = Interpreter(model_content=content, devices=[watch])
    spent: list[int] = []
    times = _medians(ours, count, lambda: spent.append(watch.spent_ns))
    whole, driver = sum(times.values()), statistics.median(spent) / 1000
    found = [Row(NAME, f"Penstock's {call}", times[call], "us") for call in CALLS]
    found += [
        Row(NAME, "Penstock's three calls", whole, "us"),
        Row(NAME, "of them the driver's own time", driver, "us"),
        Row(NAME, "of them the interpreter's", whole - driver, "us", LIMIT_US),
    ]
    return found + _litert(content, count)


def _litert(content: bytes, count: int) -> list[Row]:
    try:
        from ai_edge_litert.interpreter import Interpreter as LiteRT
    except ImportError:
        return []
    times = _medians(LiteRT(model_content=content), count, lambda: None)
    note = "its kernel with it"
    found = [Row(NAME, f"LiteRT's {call}", times[call], "us", note=note) for call in CALLS]
    return [*found, Row(NAME, "LiteRT's three calls", sum(times.values()), "us", note=note)]


def _medians(interpreter: Any, count: int, after: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each of `CALLS`. Calls *after* after every run."""
    interpreter.allocate_tensors()
    (given,), (got,) = interpreter.get_input_details(), interpreter.get_output_details()
    source, target = given["index"], got["index"]
    image = np.zeros(given["shape"], given["dtype"])
    values: dict[str, list[float]] = {}
    for runs in (1000, count):
        values = {call: [] for call in CALLS}
        for _ in range(runs):
            marks = [time.perf_counter_ns()]
            interpreter.set_tensor(source, image)
            marks.append(time.perf_counter_ns())
            interpreter.invoke()
            marks.append(time.perf_counter_ns())
            interpreter.get_tensor(target)
            marks.append(time.perf_counter_ns())
            after()
            for call, began, ended in zip(CALLS, marks, marks[1:], strict=False):
                values[call].append((ended - began) / 1000)
    return medians(values)
