"""Timing candidates against each other: in turns, by medians, with the noise that was seen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from msgspec import Struct

from penstock.compilation.failing import told
from penstock.errors import PenstockError
from penstock.partitioning.plan import Measured
from penstock.partitioning.reasons import duration

LEAST_ROUNDS: Final = 7
MOST_ROUNDS: Final = 101
"""Samples of each candidate."""

SAMPLE_NS: Final = 300_000
"""A sample is as many runs as take about this long, at least one."""

ENERGY_SAMPLE_NS: Final = 50_000_000
"""The same where energy is counted, whose counters move about once a millisecond."""

MOST_RUNS: Final = 10_000
"""Runs of one sample, at most."""

BUDGET_NS: Final = 3_000_000_000
"""How long all rounds after the least number may take."""

HOPELESS: Final = 1.5
"""A candidate whose shortest sample is so many times that of the best after the least rounds is timed no longer: what
else the machine does makes samples longer, never shorter.
"""

FAR: Final = 4.0
"""The same after `FIRST_ROUNDS`."""

FIRST_ROUNDS: Final = 2


class Counter(Protocol):
    """Energy consumed so far in microjoules."""

    def read(self) -> int: ...


class Contender(Struct, frozen=True):
    """A placement to be measured: *run* runs it once."""

    name: str
    run: Callable[[], None]


class _Samples:
    def __init__(self, contender: Contender) -> None:
        self.name, self.run = contender.name, contender.run
        self.times: list[float] = []
        self.energies: list[float] = []
        self.error: str | None = None
        self.runs = 1

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def shortest(self) -> float:
        return min(self.times)


def measure(
    contenders: Sequence[Contender],
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    energy: Counter | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Each contender's median time of a run, and its energy where *energy* counts it, in the same order.

    All take one sample in each round, in an order that is turned by one from round to round. One whose run
    raises a `PenstockError` is out, with that as its error. *check* is called before each round, and may raise.
    """
    every = [_Samples(contender) for contender in contenders]
    for samples in every:
        _warm_up(samples, clock, ENERGY_SAMPLE_NS if energy else SAMPLE_NS)
    began = clock()
    for turn in range(MOST_ROUNDS):
        check()
        racing = _racing(every, turn)
        if not racing or (turn >= LEAST_ROUNDS and clock() - began > BUDGET_NS):
            break
        start = turn % len(racing)
        for samples in (*racing[start:], *racing[:start]):
            _sample(samples, clock, energy)
    return [_measured(samples) for samples in every]


def choose(
    measured: Sequence[Measured], alone: Collection[str], *, by_energy: bool = False
) -> tuple[str, str]:
    """The name of the winner, and why it is.

    The best of those in *alone*, the single devices, unless another is better by more than the noise: half the
    larger distance between the quartiles of the two. Raises `ValueError` where none could be measured.
    """
    ran = [m for m in measured if m.error is None]
    if by_energy:
        ran = [m for m in ran if m.energy_uj is not None]
    if not ran:
        raise ValueError("none of the placements could be measured")

    def score(m: Measured) -> float:
        return (m.energy_uj or 0.0) if by_energy else m.median_ns

    def spread(m: Measured) -> float:
        return (m.energy_spread_uj or 0.0) if by_energy else m.spread_ns

    better = "takes less energy" if by_energy else "is faster"
    show = joules if by_energy else duration
    best = min(ran, key=score)
    singles = [m for m in ran if m.name in alone]
    if not singles:
        return best.name, "no single device could be measured"
    single = min(singles, key=score)
    if best.name == single.name or score(best) >= score(single):
        return single.name, f"no placement {better} than this one device"
    gain, noise = score(single) - score(best), max(spread(best), spread(single)) / 2
    told = f"{better} than {single.name} by {show(gain)}, noise {show(noise)}"
    if gain > noise:
        return best.name, told
    return single.name, f"{best.name} {told}: not beyond the noise"


def _warm_up(samples: _Samples, clock: Callable[[], int], sample_ns: int) -> None:
    """Two runs, the second of which says how many a sample takes."""
    try:
        samples.run()
        began = clock()
        samples.run()
        took = max(1, clock() - began)
    except PenstockError as error:
        samples.error = told(error)
        return
    samples.runs = max(1, min(MOST_RUNS, sample_ns // took))


def _racing(every: Sequence[_Samples], turn: int) -> list[_Samples]:
    racing = [samples for samples in every if samples.error is None]
    if turn < FIRST_ROUNDS or not racing:
        return racing
    best = min(samples.shortest for samples in racing)
    most = HOPELESS if turn >= LEAST_ROUNDS else FAR
    kept = [samples for samples in racing if samples.shortest <= most * best]
    return kept if len(kept) > 1 or turn < LEAST_ROUNDS else []


def _sample(samples: _Samples, clock: Callable[[], int], energy: Counter | None) -> None:
    try:
        before = energy.read() if energy else 0
        began = clock()
        for _ in range(samples.runs):
            samples.run()
        ended = clock()
        after = energy.read() if energy else 0
    except PenstockError as error:
        samples.error = told(error)
        return
    samples.times.append((ended - began) / samples.runs)
    if energy:
        samples.energies.append((after - before) / samples.runs)


def _measured(samples: _Samples) -> Measured:
    if samples.error is not None or not samples.times:
        return Measured(samples.name, 0, 0, 0, error=samples.error or "not measured")
    return Measured(
        samples.name,
        round(samples.median),
        round(_spread(samples.times)),
        len(samples.times) * samples.runs,
        statistics.median(samples.energies) if samples.energies else None,
        _spread(samples.energies) if samples.energies else None,
    )


def joules(microjoules: float) -> str:
    """Microjoules for people."""
    return f"{microjoules / 1e3:.3g} mJ"


def _spread(values: Sequence[float]) -> float:
    """The distance between the quartiles."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first
