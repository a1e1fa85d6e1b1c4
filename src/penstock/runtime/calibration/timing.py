"""Times small models on one device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock import errors
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model, NDArray
from penstock.partitioning.costs import NOTHING, Features, cell_of, features_of
from penstock.partitioning.policy import Policy
from penstock.partitioning.work import nbytes_of
from penstock.runtime.calibration.fitting import Timing
from penstock.runtime.calibration.samples import Sample
from penstock.runtime.tuning import examples

BATCHES: Final = 5
"""Batches of runs of one sample. The quickest counts: a disturbance makes a run longer."""

BATCH_NS: Final = 400_000
"""Least time of a batch, of at least `LEAST_RUNS` and at most `MOST_RUNS` runs."""

LEAST_RUNS: Final = 2
MOST_RUNS: Final = 50


def time_samples(
    device: Device,
    samples: Iterable[Sample],
    accuracy: AccuracyClass,
    num_threads: int,
    *,
    seconds: float,
    pause: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """The times of as many of *samples*, in order, as *seconds* of processor time allow.

    A sample that the device refuses in the class *accuracy*, or fails at, is left out. *pause* is
    called after each one.
    """
    found: list[Timing] = []
    until = time.process_time() + seconds
    for sample in samples:
        if time.process_time() >= until:
            break
        model = sample.make()
        try:
            ns = _time(model, device, accuracy, num_threads)
        except errors.PenstockError:
            continue
        edge = sum(map(nbytes_of, (*model.inputs, *model.outputs)))
        found.append(Timing(sample.cell, _parts(model), edge, ns))
        pause()
    return found


def _time(model: Model, device: Device, accuracy: AccuracyClass, num_threads: int) -> float:
    """Nanoseconds of a run of *model*, all on *device*. Raises `PenstockError`."""
    from penstock.runtime.compiling import compile_model

    policy = Policy(accuracy=accuracy, allow_fallback=False)
    with compile_model(
        model, [device], num_threads=num_threads, cache=None, policy=policy
    ) as compiled:
        inputs: list[NDArray] = examples(model)
        compiled.run(inputs)
        began = time.perf_counter_ns()
        compiled.run(inputs)
        once = max(1, time.perf_counter_ns() - began)
        runs = max(LEAST_RUNS, min(MOST_RUNS, BATCH_NS // once))
        batches = []
        for _ in range(BATCHES):
            taken = []
            for _ in range(runs):
                began = time.perf_counter_ns()
                compiled.run(inputs)
                taken.append(time.perf_counter_ns() - began)
            batches.append(statistics.median(taken))
        return float(min(batches))


def _parts(model: Model) -> tuple[tuple[str, Features], ...]:
    found = ((cell_of(model.entry, o), features_of(model.entry, o)) for o in model.operations)
    return tuple((cell, features) for cell, features in found if features is not NOTHING)
