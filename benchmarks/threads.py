"""Two threads over one on the device llvm, in one interleaved run, for networks that take long.

What two processors can do together, the machine decides: they may share a core, or other programs
use one. So the same run has a third subject, two runs of one thread each at the same time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import penstock
from benchmarks.engine_race import draw, recorded
from benchmarks.engines import networks
from benchmarks.isolation import every_processor
from benchmarks.measuring import Row, interleaved, medians, other_shapes, seconds

NAME: Final = "threads"
THREADS: Final = 2
LONG_S: Final = 0.005
"""Seconds of a run on one thread from which on threads are to help."""

LIMIT: Final = 1 / 1.6
DEVICES: Final = ("llvm", "reference")
EXACT: Final = penstock.Policy(accuracy="exact")


def rows(*, quick: bool) -> list[Row]:
    """The time on two threads over that on one, by network. Empty without the corpus, and on one
    processor.
    """
    if (os.cpu_count() or 1) < THREADS:
        return []
    with every_processor(), tempfile.TemporaryDirectory(prefix="penstock-bench-") as cache:
        return [row for entry in networks() for row in _network(entry, cache, quick=quick)]


def _network(entry: dict[str, Any], cache: str, *, quick: bool) -> Iterator[Row]:
    path = Path(entry["path"])
    inputs = recorded(path) or draw(path)
    # An entry fits any number of threads: the network is compiled once.
    with compiled(path, inputs, 1, cache) as one:
        devices = {step.device for step in one.plan.steps}
        if devices != {DEVICES[0]} or min(seconds(partial(one.run, inputs)) for _ in "ab") < LONG_S:
            return
        with (
            compiled(path, inputs, THREADS, cache) as two,
            compiled(path, inputs, 1, cache) as other,
            ThreadPoolExecutor(1) as helper,
        ):

            def both() -> None:
                beside = helper.submit(other.run, inputs)
                one.run(inputs)
                beside.result()

            runs: dict[str, Callable[[], object]] = {
                "one": partial(one.run, inputs),
                "two": partial(two.run, inputs),
                "both": both,
            }
            subjects = {name: partial(seconds, run) for name, run in runs.items()}
            interleaved(subjects, 1)
            found = medians(interleaved(subjects, 7 if quick else 25))
    ratio = found["two"] / found["one"]
    note = (
        f"{1 / ratio:.2f} times as fast; {1e3 * found['one']:.1f} ms, {1e3 * found['two']:.1f}; "
        f"two runs at once: {2 * found['one'] / found['both']:.2f} times"
    )
    yield Row(NAME, f"{entry['id']}: two threads over one", ratio, "x", LIMIT, note)


def compiled(path: Path, inputs: list[Any], threads: int, cache: str) -> penstock.CompiledModel:
    """The network on the device llvm, with so many threads."""
    model = penstock.load(path)
    return penstock.compile(
        model, devices=list(DEVICES), shapes=other_shapes(model, inputs) or None,
        cache=cache, policy=EXACT, num_threads=threads, isolate=False,
    )  # fmt: skip
