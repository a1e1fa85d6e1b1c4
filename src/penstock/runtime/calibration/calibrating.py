"""`calibrate`: measures devices, and keeps their costs beside the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from msgspec import Struct

from penstock.hal import AccuracyClass, Device
from penstock.partitioning.costs import EngineCosts
from penstock.runtime.calibration.fitting import fit
from penstock.runtime.calibration.samples import (
    EDGE,
    FIRST_TYPES,
    NETWORK,
    STEP,
    TINY,
    Sample,
    samples,
)
from penstock.runtime.calibration.tables import (
    MEASURED_SOURCE,
    MODES,
    keep,
    shipped_costs,
    shipped_times,
)
from penstock.runtime.calibration.timing import clock_of, time_samples, works_here

SECONDS: Final = 3.0
"""Processor time that one device is measured for, unless told otherwise."""

APART_SECONDS: Final = 30.0
"""The same in time of the wall, for a device that computes in another process or beside the
processor: there a sample takes longer, first of all to compile its shaders.
"""


class Calibrated(Struct, frozen=True):
    """The measurement of one *device*: how many *samples*, in *seconds* of `timing.clock_of` it,
    the *costs* found, None if it ran no sample, and why they are not kept, or an empty text.
    """

    device: str
    samples: int
    seconds: float
    costs: EngineCosts | None
    not_kept: str = ""


def calibrate(
    device: Device,
    directory: str | None,
    *,
    accuracy: AccuracyClass = "faithful",
    num_threads: int = 1,
    seconds: float | None = None,
    cells: Collection[str] = (),
    pause: Callable[[], None] = lambda: None,
) -> Calibrated:
    """Measures small models on *device* for *seconds*: of processor time of this process, or of
    the wall if the device does not compute in this process. None means `SECONDS` or
    `APART_SECONDS`.

    The costs are kept in the cache *directory*, if one is given, and used by every later compile
    with this version of the device, this processor, class and number of threads. *cells* are
    measured first. *pause* is called between two samples.
    """
    mode = MODES[accuracy]
    clock = clock_of(device)
    if seconds is None:
        seconds = SECONDS if works_here(device) else APART_SECONDS
    began = clock()
    order = in_order(samples(), set(cells))
    timings = time_samples(device, order, mode, num_threads, seconds=seconds, pause=pause)
    costs, not_kept = None, ""
    if timings:
        shipped = shipped_costs(device, mode, num_threads)
        before = shipped_times(device, mode, num_threads)
        costs = fit(timings, shipped, MEASURED_SOURCE, before)
        if directory is not None:
            not_kept = keep(directory, device, mode, num_threads, len(timings), costs)
    return Calibrated(device.name, len(timings), clock() - began, costs, not_kept)


STEPS_AT: Final = (0, 12, 36)
"""Positions of the samples of a step. They are apart, so that other work of the machine
disturbs few of them.
"""


EARLY: Final = frozenset({f"{TINY} {dtype}" for dtype in FIRST_TYPES})
"""What small operations cost is wrong by several times without these."""


def in_order(every: Iterable[Sample], wanted: set[str]) -> list[Sample]:
    """*every* sample, those first that all costs need, then those of *wanted* cells."""

    def rank(sample: Sample) -> int:
        if sample.cell == EDGE or sample.cell in EARLY:
            return 0
        # Networks take longest, and shipped tables know what they tell.
        if sample.cell.startswith(NETWORK):
            return 3
        return 1 if sample.cell in wanted or not wanted else 2

    given = list(every)
    steps = [sample for sample in given if sample.cell == STEP]
    order = sorted((sample for sample in given if sample.cell != STEP), key=rank)
    for position, step in zip(STEPS_AT, steps, strict=False):
        order.insert(position, step)
    return order
