"""What `CompiledModel.run` and an interpreter cost over the driver's own time: one step, on the null driver."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from pathlib import Path

import numpy as np

import penstock
from benchmarks import interpreter
from benchmarks.measuring import Row
from penstock.drivers.null import NullDevice, NullPreparedModel
from penstock.hal import ExecutionConfig, ExecutionResult, PrepareConfig, Request
from penstock.ir import DType, Model, ModelBuilder

NAME = "overhead"
LIMIT_US = 20.0
SHOWN = 10


class Stopwatch(NullDevice):
    """The null device, with the time its executions take."""

    name = "stopwatch"

    def __init__(self) -> None:
        self.spent_ns = 0

    def prepare_model(self, model: Model, config: PrepareConfig) -> NullPreparedModel:
        return _Timed(model, self)


class _Timed(NullPreparedModel):
    def __init__(self, model: Model, watch: Stopwatch) -> None:
        super().__init__(model)
        self.watch = watch

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        began = time.perf_counter_ns()
        result = super().execute(request, config)
        self.watch.spent_ns = time.perf_counter_ns() - began
        return result


def rows(*, quick: bool) -> list[Row]:
    """Microseconds of a run, of its driver, and their difference; the profile, by function; the interpreter's."""
    watch, image = Stopwatch(), np.zeros((1, 16), np.float32)
    inputs = {"x": image}
    whole: list[int] = []
    own: list[int] = []
    with penstock.compile(one_step(), devices=[watch]) as compiled:
        for count in (2000, 3000 if quick else 30_000):
            whole, own = [], []
            for _ in range(count):
                began = time.perf_counter_ns()
                compiled.run(inputs)
                whole.append(time.perf_counter_ns() - began)
                own.append(watch.spent_ns)
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(2000 if quick else 10_000):
            compiled.run(inputs)
        profile.disable()
    over = statistics.median(w - o for w, o in zip(whole, own, strict=True)) / 1000
    return [
        Row(NAME, "a run on the null driver", statistics.median(whole) / 1000, "us"),
        Row(NAME, "of it the driver's own time", statistics.median(own) / 1000, "us"),
        Row(NAME, "of it the runtime's", over, "us", LIMIT_US),
        *shares(profile, over),
        *interpreter.rows(one_step(), Stopwatch(), quick=quick),
    ]


def shares(profile: cProfile.Profile, overhead_us: float) -> list[Row]:
    """The functions outside the driver that take most time by themselves; shares of the overhead.

    A profiler slows small functions down: the shares say where to look, not how many nanoseconds.
    """
    spent: dict[str, float] = {}
    for (file, line, function), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]  # its stub leaves it out
        if any(part in file for part in ("drivers", "hal/validate", "benchmarks")):
            continue
        place = (
            f"{Path(file).parent.name}/{Path(file).name}:{line} {function}" if line else function
        )
        spent[place] = spent.get(place, 0.0) + own
    total = sum(spent.values()) or 1.0
    largest = sorted(spent.items(), key=lambda item: -item[1])[:SHOWN]
    return [
        Row(
            NAME,
            f"  in {place}",
            100 * own / total,
            "%",
            note=f"about {overhead_us * own / total:.2f} us",
        )
        for place, own in largest
    ]


def one_step() -> Model:
    """One RELU over float32[1, 16]."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 16), "x")
    return builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (1, 16))]))
