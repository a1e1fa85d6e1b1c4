"""Times small models on one device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from penstock import errors
from penstock.hal import AccuracyClass, Device, DeviceType
from penstock.hal.device import is_isolated
from penstock.ir import Model, NDArray
from penstock.ir.validate import subgraph_references
from penstock.partitioning.costs import ENTERING, LOOP, NOTHING, Features, cell_of, features_of
from penstock.partitioning.policy import Policy
from penstock.partitioning.rounds import expected_runs
from penstock.partitioning.work import nbytes_of
from penstock.runtime.calibration.fitting import Timing
from penstock.runtime.calibration.samples import Sample
from penstock.runtime.tuning import examples

BATCHES: Final = 5
"""Batches of runs of one sample. The median counts: a processor whose speed changes is seldom at
its quickest, and a plan is to say what a run usually takes.
"""

BATCH_NS: Final = 400_000
"""Least time of a batch, of at least `LEAST_RUNS` and at most `MOST_RUNS` runs."""

LEAST_RUNS: Final = 2
MOST_RUNS: Final = 50

APART: Final = frozenset({DeviceType.GPU, DeviceType.ACCELERATOR})
"""Types of devices that compute while the processor waits."""


def works_here(device: Device) -> bool:
    """Whether *device* computes in this process, on the processor: then this process's processor
    time is what work on it takes. Otherwise only a clock on the wall knows.
    """
    return device.type not in APART and not is_isolated(device)


def clock_of(device: Device) -> Callable[[], float]:
    """The clock of the work on *device*, in seconds."""
    return time.process_time if works_here(device) else time.perf_counter


def time_samples(
    device: Device,
    samples: Iterable[Sample],
    accuracy: AccuracyClass,
    num_threads: int,
    *,
    seconds: float,
    pause: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """The times of as many of *samples*, in order, as *seconds* of `clock_of` the device allow.

    A sample that the device refuses in the class *accuracy*, or fails at, is left out. *pause* is
    called after each one; its time does not count.
    """
    found: list[Timing] = []
    clock, left = clock_of(device), seconds
    for sample in samples:
        if left <= 0:
            break
        began = clock()
        model = sample.make()
        try:
            ns = _time(model, device, accuracy, num_threads)
        except errors.PenstockError:
            continue
        finally:
            left -= clock() - began
        edge = sum(map(nbytes_of, (*model.inputs, *model.outputs)))
        found.append(Timing(sample.name, sample.cell, _parts(model), edge, ns))
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
        measure = _worked if num_threads == 1 and works_here(device) else _median
        return statistics.median(
            measure(partial(compiled.run, inputs), runs) for _ in range(BATCHES)
        )


def _worked(run: Callable[[], object], runs: int) -> float:
    """Nanoseconds of the processor for one of *runs*: other programs do not lengthen them."""
    began = time.process_time_ns()
    for _ in range(runs):
        run()
    return (time.process_time_ns() - began) / runs


def _median(run: Callable[[], object], runs: int) -> float:
    """Nanoseconds of one of *runs*. The processor time of threads that share the work says less,
    and that of another process or of a graphics processor is not to be had.
    """
    taken = []
    for _ in range(runs):
        began = time.perf_counter_ns()
        run()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken)


def _parts(model: Model) -> tuple[tuple[str, Features], ...]:
    """The cells and features of all operations, those of a loop as often as it runs them."""
    found: list[tuple[str, Features]] = []
    for operation in model.operations:
        runs = expected_runs(model, model.main, operation)
        if operation.type == "WHILE":
            found.append((LOOP, (1.0, runs, 0.0, 0.0)))
        for target in subgraph_references(operation):
            inner = model.subgraphs[target]
            found += [(cell_of(inner, o), features_of(inner, o)) for o in inner.operations] * round(
                runs
            )
        if operation.key not in ENTERING:
            found.append((cell_of(model.entry, operation), features_of(model.entry, operation)))
    return tuple((cell, features) for cell, features in found if features is not NOTHING)
