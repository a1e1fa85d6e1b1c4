"""One network, one number of threads, one accuracy class: Penstock's tuned plan and every engine used directly, in turns.

A program of its own, so that each race has a process, and its threads, to itself:

    python -m benchmarks.engine_race MODEL THREADS ACCURACY ROUNDS [DEVICE,...]

It prints one line of JSON: seconds of a run by subject, why an engine does not compete or not as it runs by default,
and what the plan was.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.competitors import Array, competitors, hold_recorded

if TYPE_CHECKING:
    from penstock import CompiledModel

TURN_S: Final = 0.05
"""How long a subject runs in its turn, at the least one run."""

OURS: Final = "penstock"


def main(model: str, threads: str, accuracy: str, rounds: str, devices: str = "") -> None:
    use_cores(int(threads))
    path = Path(model)
    inputs = recorded(path) or draw(path)
    compiled = ours(path, int(threads), accuracy, inputs, devices)
    if accuracy == "faithful":
        hold_recorded(path, inputs, lambda given: compiled.run(given, state=compiled.new_state()))
    others, refused = competitors(path, int(threads), accuracy, inputs)
    subjects = {OURS: compiled.run, **others}
    times = race({name: partial(call, inputs) for name, call in subjects.items()}, int(rounds))
    plan = [(step.device, len(step.operations)) for step in compiled.plan.steps]
    print(json.dumps({"times": times, "refused": refused, "plan": plan}))


def recorded(path: Path) -> list[Array]:
    """The first recorded inputs of a network with unknown dimensions behind the first, of which not every size makes
    sense; none of any other.
    """
    import penstock
    from tests.golden.recorded import cases_of_file

    shapes = [operand.shape for operand in penstock.load(path).inputs]
    if all(shape is not None and None not in shape[1:] for shape in shapes):
        return []
    return next((inputs for inputs, _ in cases_of_file(path)), [])


def use_cores(threads: int) -> None:
    """As many cores as threads, before anything that starts threads is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def race(subjects: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The median run of each subject's turn in each round. Every round begins with another subject, every second one goes
    the other way round, and each turn begins when the threads of the subject before have stopped spinning.
    """
    from penstock.runtime.rest import Rest

    rest = Rest()
    names = list(subjects)
    counts = {}
    for name, run in subjects.items():
        rest()
        run()
        began = time.perf_counter()
        run()
        took = max(time.perf_counter() - began, 1e-7)
        counts[name] = max(1, min(1000, round(TURN_S / took)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        order = [names[(turn + position) % len(names)] for position in range(len(names))]
        for name in order if turn % 2 == 0 else reversed(order):
            rest()
            times[name].append(turn_of(subjects[name], counts[name]))
    return times


def turn_of(run: Callable[[], Any], count: int) -> float:
    run()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def draw(path: Path) -> list[Array]:
    """Seeded inputs in the shapes and types of the network, unknown dimensions 1."""
    import numpy as np

    import penstock

    rng = np.random.default_rng(0)
    drawn: list[Array] = []
    for operand in penstock.load(path).inputs:
        shape = [d or 1 for d in operand.shape or ()]
        dtype = operand.dtype.numpy
        if dtype.kind == "f":
            drawn.append(rng.uniform(-1, 1, shape).astype(dtype))
        elif dtype.kind == "b":
            drawn.append(rng.integers(0, 2, shape).astype(dtype))
        elif dtype.itemsize == 1:
            drawn.append(rng.integers(0, 256, shape).astype(np.uint8).view(dtype))
        elif dtype.kind in "iu":
            drawn.append(rng.integers(0, 2, shape).astype(dtype))
        else:
            drawn.append(np.full(shape, b"word", object))
    return drawn


def ours(
    path: Path, threads: int, accuracy: str, inputs: Sequence[Array], devices: str
) -> CompiledModel:
    """Penstock's tuned plan, over every usable device or those named."""
    import penstock

    model = penstock.load(path)
    shapes = {
        operand.name: array.shape
        for operand, array in zip(model.inputs, inputs, strict=True)
        if operand.shape is None or None in operand.shape
    }
    return penstock.compile(
        model,
        devices=devices.split(",") if devices else None,
        shapes=shapes or None,
        policy=penstock.Policy(accuracy=accuracy),  # type: ignore[arg-type]  # told on the command line
        num_threads=threads,
        tune=True,
        cache=os.environ.get("PENSTOCK_CACHE_DIR") or False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
