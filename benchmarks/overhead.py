"""Overhead of `CompiledModel.run`, a burst and an interpreter over the driver's own time.

It measures one step on the null driver, and the cost of each further step on devices that compute
nothing.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import penstock
from benchmarks import interpreter
from benchmarks.measuring import Row
from penstock.drivers.null import NullDevice, NullPreparedModel
from penstock.hal import (
    DONE,
    Capabilities,
    DeviceBase,
    ExecutionConfig,
    ExecutionResult,
    PerformanceInfo,
    PrepareConfig,
    PreparedModelBase,
    Request,
    Support,
)
from penstock.ir import DType, Model, ModelBuilder

NAME = "overhead"
LIMIT_US = 3.0
TIMEOUT_LIMIT_US = 5.0
TIMEOUT_S = 60.0
BURST_LIMIT_US = {"the same arrays": 2.5, "other arrays": 6.0}
BOUNDARY_LIMIT_US = 0.6
STEPS = (1, 2, 5, 20)
KINDS = ("RELU", "LOGISTIC")
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
    """Microseconds of a run, its driver, the difference; profile by function; interpreter."""
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
        limited: list[int] = []
        for _ in range(3000 if quick else 30_000):
            began = time.perf_counter_ns()
            compiled.run(inputs, timeout=TIMEOUT_S)
            limited.append(time.perf_counter_ns() - began - watch.spent_ns)
        in_bursts = bursts(compiled, watch, quick=quick)
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
        Row(
            NAME,
            "the runtime's with a timeout",
            statistics.median(limited) / 1000,
            "us",
            TIMEOUT_LIMIT_US,
        ),
        *in_bursts,
        *shares(profile, over),
        *boundaries(quick=quick),
        *interpreter.rows(one_step(), Stopwatch(), quick=quick),
    ]


def bursts(compiled: penstock.CompiledModel, watch: Stopwatch, *, quick: bool) -> list[Row]:
    """Microseconds of a burst's run over its driver's: on the same arrays, and on new ones."""
    images = [np.zeros((1, 16), np.float32) for _ in range(2)]
    found = []
    with compiled.burst() as burst:
        for what, given in (("the same arrays", images[:1] * 2), ("other arrays", images)):
            over: list[int] = []
            for count in (2000, 3000 if quick else 30_000):
                over = []
                for turn in range(count):
                    image = given[turn % 2]
                    began = time.perf_counter_ns()
                    burst.run(image)
                    over.append(time.perf_counter_ns() - began - watch.spent_ns)
            median = statistics.median(over) / 1000
            found.append(Row(NAME, f"a burst's run on {what}", median, "us", BURST_LIMIT_US[what]))
    return found


class Idle(DeviceBase):
    """Supports operations of one *kind* and computes nothing."""

    version = "1"
    capabilities = Capabilities(default_performance=PerformanceInfo(0.1, 0.1), dispatch_ns=1)

    def __init__(self, kind: str) -> None:
        self.name, self._kind = kind.lower(), kind

    def supported_operations(self, model: Model) -> list[Support]:
        return [Support(o.type == self._kind, "", "exact") for o in model.operations]

    def prepare_model(self, model: Model, config: PrepareConfig) -> IdlePreparedModel:
        return IdlePreparedModel()


class IdlePreparedModel(PreparedModelBase):
    """Returns at once without computing."""

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        return DONE


def boundaries(*, quick: bool) -> list[Row]:
    """Microseconds of a run of 1 to 20 steps that alternate between two idle devices.

    Rounds run one after another. Also the cost of a boundary, from the lower quartiles, and the
    bytes copied.
    """
    plans = {steps: chain(steps) for steps in STEPS}
    spent: dict[int, list[int]] = {steps: [] for steps in STEPS}
    image = np.zeros((1, 16), np.float32)
    with ExitStack() as opened:
        devices = [Idle(kind) for kind in KINDS]
        compiled = {
            steps: opened.enter_context(penstock.compile(model, devices=devices, cache=False))
            for steps, model in plans.items()
        }
        for steps, one in compiled.items():
            if len(one.plan.steps) != steps:
                raise RuntimeError(f"{steps} steps were wanted: {one.plan.summary()}")
        for _ in range(1000 if quick else 10_000):
            for steps, one in compiled.items():
                began = time.perf_counter_ns()
                one.run([image])
                spent[steps].append(time.perf_counter_ns() - began)
        receipts = [one.run([image]).receipt for one in compiled.values()]
        copied = sum(copy.nbytes for receipt in receipts for copy in receipt.copies)
    quartiles = {n: statistics.quantiles(times, n=4)[0] / 1000 for n, times in spent.items()}
    first, last = min(STEPS), max(STEPS)
    added = (quartiles[last] - quartiles[first]) / (last - first)
    return [
        *(
            Row(NAME, f"a run of {n} steps on idle devices", us, "us")
            for n, us in quartiles.items()
        ),
        Row(NAME, "a boundary adds", added, "us", BOUNDARY_LIMIT_US),
        Row(NAME, "copied between steps", copied, "bytes", 0.0),
    ]


def chain(steps: int) -> Model:
    """Operations over float32[1, 16] that alternate between two kinds."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 16), "x")
    for place in range(steps):
        (x,) = builder.operation(KINDS[place % 2], [x], [(DType.FLOAT32, (1, 16))])
    return builder.build([x])


def shares(profile: cProfile.Profile, overhead_us: float) -> list[Row]:
    """The functions outside the driver with the most time of their own, as shares of the overhead.

    A profiler slows small functions down. The shares say where to look, not how many nanoseconds a
    function takes.
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
