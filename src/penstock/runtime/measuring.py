"""Times candidate plans against each other, interleaved in rounds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.compilation.failing import driver_message
from penstock.errors import PenstockError
from penstock.partitioning.placements import Measured
from penstock.partitioning.show import duration
from penstock.runtime.compile_arguments import Counter

POWERCAP: Final = Path("/sys/class/powercap")


class _Domain(Struct, frozen=True):
    counter: Path
    range_uj: int


class EnergyCounter:
    """Energy in microjoules since the object was made: the sum over the processor packages (RAPL).

    A counter that wraps around twice between two readings is not noticed. The counters include
    everything that runs on the machine.
    """

    def __init__(self, domains: tuple[_Domain, ...]) -> None:
        self._domains = domains
        self._last = [_number(domain.counter) for domain in domains]
        self._total = 0

    @classmethod
    def find(cls, root: Path = POWERCAP) -> EnergyCounter | None:
        """The machine's counters below *root*; None if none is readable."""
        domains = []
        try:
            zones = sorted(root.glob("intel-rapl:*"))
            for zone in zones:
                # intel-rapl:0 is a package; intel-rapl:0:1 is a part, which may be unreadable.
                if zone.name.count(":") != 1:
                    continue
                if (zone / "name").read_text(encoding="ascii").strip().startswith("package"):
                    most = _number(zone / "max_energy_range_uj")
                    domains.append(_Domain(zone / "energy_uj", most))
            return cls(tuple(domains)) if domains else None
        except (OSError, ValueError):
            return None

    def read(self) -> int:
        """Microjoules consumed since the object was made. Raises `OSError`, `ValueError`."""
        for index, domain in enumerate(self._domains):
            now = _number(domain.counter)
            gone = now - self._last[index]
            self._total += gone if gone >= 0 else gone + domain.range_uj
            self._last[index] = now
        return self._total


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


WINDOW_NS: Final = 5_000_000
"""Time window for measuring idleness. Some systems account thread time in ticks of 4 ms."""

BUSY: Final = 0.05
"""Other threads count as idle if together they use less than this share of one processor."""

LONGEST_NS: Final = 100_000_000
"""Longest wait for engines' threads that spin after a run. ONNX Runtime's spin up to 50 ms."""


def used_by_others_ns() -> int:
    """The processor time used by all threads of this process except the calling one."""
    return time.process_time_ns() - time.thread_time_ns()


class Rest:
    """Waits until other threads are idle. After a wait without success the next one is halved."""

    def __init__(
        self,
        used: Callable[[], int] = used_by_others_ns,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._used, self._clock, self._sleep = used, clock, sleep
        self._longest_ns = LONGEST_NS

    def __call__(self) -> None:
        """Returns when the other threads are idle, or when the longest wait has passed."""
        began = self._clock()
        while not self._at_rest():
            if self._clock() - began >= self._longest_ns:
                self._longest_ns //= 2
                return
        self._longest_ns = LONGEST_NS

    def _at_rest(self) -> bool:
        began, used = self._clock(), self._used()
        self._sleep(WINDOW_NS / 1e9)
        return self._used() - used < BUSY * (self._clock() - began)


LEAST_ROUNDS: Final = 9
MOST_ROUNDS: Final = 51
"""Samples of each candidate."""

SAMPLE_NS: Final = 8_000_000
"""Minimum time of a sample, as a number of runs (at least one). Outlasts a short disturbance."""

ENERGY_SAMPLE_NS: Final = 50_000_000
"""Minimum time of a sample if energy is measured: its counters update about once a millisecond."""

MOST_RUNS: Final = 10_000
"""Maximum runs of one sample."""

BUDGET_NS: Final = 5_000_000_000
"""Time limit for all rounds after the minimum number of rounds."""

COLD_NS: Final = 20_000_000
"""Runs shorter than this are warmed up before each sample.

Before the warm-up, the caches hold the previous candidate's data and the engine's threads sleep. A
plan that runs repeatedly does not have that cost. Longer runs need no warm-up.
"""

WARM_NS: Final = 4_000_000
"""Time of the warm-up, at least one run."""

SPREADING_NS: Final = 16_000_000
"""Time of the warm-up if an engine has several threads.

Systems often wake a thread on the processor of the thread that wakes it, and move it to an idle one
some ticks later. Until then two threads take as long as one. A plan that runs repeatedly does not
have that cost.
"""

LONG_NS: Final = 100_000_000
"""Runs longer than any other disturbance on the machine."""

VERY_FAR: Final = 10.0
"""A candidate of long runs that takes this many times the best is dropped before the rounds."""

FAR: Final = 4.0
"""Without warm-up, a candidate whose best sample is this many times the best is dropped early."""

FIRST_ROUNDS: Final = 2

HOPELESS: Final = 1.5
"""After the minimum rounds, a candidate whose best sample is this many times the best is dropped.

It must also be slower by more than the noise. A disturbance makes a sample larger, never smaller.
On a busy machine, however, each of a few long runs may have been disturbed.
"""

SURE: Final = 3.0
"""In later rounds, a candidate slower than the best by this many times the noise is dropped."""

NOTCH: Final = 1.57
"""Factor of the 95 % confidence interval of a median.

Half the interval equals this factor times the interquartile range, divided by the square root of
the number of samples (McGill, Tukey and Larsen, "Variations of Box Plots", 1978).
"""


class Series:
    """The samples of one candidate, one for each round.

    *run* runs it once, *close* frees it when it is dropped. *times* are nanoseconds of a run;
    *energies* are microjoules, if measured. *error* says why it failed. *out* means that it was
    dropped because it was clearly slower.
    """

    def __init__(
        self, name: str, run: Callable[[], None], close: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.run, self.close = name, run, close
        self.times: list[float] = []
        self.energies: list[float] = []
        self.error: str | None = None
        self.out = self.by_energy = False
        self.runs, self.run_ns, self.counted, self.warm_ns = 1, 0, 0, WARM_NS

    @property
    def values(self) -> list[float]:
        """The values to compare."""
        return self.energies if self.by_energy else self.times

    @property
    def races(self) -> bool:
        return self.error is None and not self.out

    def measured(self) -> Measured:
        """The summary of the samples for the plan."""
        if self.error is not None or not self.times:
            return Measured(self.name, 0, 0, 0, error=self.error or "not measured")
        return Measured(
            self.name,
            round(statistics.median(self.times)),
            round(_spread(self.times)),
            self.counted,
            statistics.median(self.energies) if self.energies else None,
            _spread(self.energies) if self.energies else None,
        )


def measure(
    every: list[Series],
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    energy: Counter | None = None,
    check: Callable[[], None] = lambda: None,
    rest: Callable[[], None] = lambda: None,
    warm_ns: int = WARM_NS,
) -> list[Series]:
    """Measures the run time of each candidate, and its energy if *energy* is given, in order.

    Every remaining candidate takes one sample in each round. Each round starts with another
    candidate, and every second round goes in reverse order, so that no candidate always follows the
    same one. A candidate whose run raises a `PenstockError` is dropped, with that error. A
    candidate far behind the best is dropped, and later also one that is certainly behind. A dropped
    candidate is closed.

    *check* is called before each round, and may raise. *rest* is called before each sample; it
    returns when the previous engine has released the processors. Short runs are then repeated for
    *warm_ns* before they are timed.
    """
    for series in every:
        series.by_energy, series.warm_ns = energy is not None, warm_ns
        rest()
        _warm_up(series, clock, energy)
    ran = [series for series in every if series.error is None]
    best = min((series.run_ns for series in ran), default=0)
    for series in ran:
        # A long run very far behind the best one ends the candidate before the rounds.
        series.out = series.run_ns > max(VERY_FAR * best, LONG_NS)
    _free(every)
    began = clock()
    for turn in range(MOST_ROUNDS):
        check()
        racing = [series for series in every if series.races]
        may_end = turn >= LEAST_ROUNDS and (len(racing) == 1 or clock() - began > BUDGET_NS)
        if not racing or may_end:
            break
        start = turn % len(racing)
        order = [*racing[start:], *racing[:start]]
        for series in order if turn % 2 == 0 else reversed(order):
            if turn == 0:
                series.times, series.energies, series.counted = [], [], 0
            rest()
            _sample(series, clock, energy)
        _drop(racing, turn + 1)
        _free(racing)
    return every


def _free(every: Sequence[Series]) -> None:
    """Closes dropped candidates, so that their engines no longer disturb the others."""
    for series in every:
        if not series.races:
            series.close()


def choose(every: Sequence[Series], alone: Collection[str]) -> tuple[str, str]:
    """The name of the winner, and the reason.

    The winner is the best of *alone*, unless another candidate is better by more than the noise.
    Two candidates are compared by the median, over the rounds, of the ratio of their times in the
    same round, because a disturbance affects both. The noise is that of this median. Only a
    candidate that took part in all rounds can win. Raises `ValueError` if none could be measured.
    """
    ran = [series for series in every if series.error is None and series.values]
    if not ran:
        raise ValueError("none of the placements could be measured")
    finalists = [series for series in ran if not series.out] or ran
    singles = [series for series in finalists if series.name in alone]
    singles = singles or [series for series in ran if series.name in alone]
    others = [series for series in finalists if series.name not in alone]
    if not singles:
        return _best(others).name, "no single device could be measured"
    single = _best(singles)
    best = _best(others) if others else single
    share, noise = _compared(best, single)
    better = "takes less energy" if single.by_energy else "is faster"
    is_out = single.out and not best.out
    if best is single or (share >= 1 and not is_out):
        return single.name, f"no placement {better} than this one device"
    show = joules if single.by_energy else duration
    took = statistics.median(single.values)
    margin = (
        f"{better} than {single.name} by {show((1 - share) * took)}, noise {show(noise * took)}"
    )
    if is_out or 1 - share > noise:
        return best.name, margin
    return single.name, f"{best.name} {margin}: not beyond the noise"


def _best(every: Sequence[Series]) -> Series:
    """The candidate with the smallest median share of the rounds' total times."""
    rounds = min(len(series.values) for series in every)
    sums = [sum(series.values[turn] for series in every) or 1.0 for turn in range(rounds)]
    return min(
        every,
        key=lambda series: statistics.median(
            value / total for value, total in zip(series.values, sums, strict=False)
        ),
    )


def _compared(one: Series, other: Series) -> tuple[float, float]:
    """The median ratio of *one* to *other* in the same round, and its noise."""
    ratios = [a / b if b else 1.0 for a, b in zip(one.values, other.values, strict=False)]
    return statistics.median(ratios), NOTCH * _spread(ratios) / math.sqrt(len(ratios))


def _warm_up(series: Series, clock: Callable[[], int], energy: Counter | None) -> None:
    """Runs twice, short runs more often; the second decides the number of runs in a sample."""
    try:
        series.run()
        before = energy.read() if energy else 0
        took = _timed(series, clock)
        after = energy.read() if energy else 0
        series.run_ns = took if took >= COLD_NS else min(took, *_run_warm(series, clock))
    except PenstockError as error:
        series.error = driver_message(error)
        return
    series.times, series.counted = [took], 1
    if energy:
        series.energies = [after - before]
    sample_ns = ENERGY_SAMPLE_NS if energy else SAMPLE_NS
    series.runs = max(1, min(MOST_RUNS, sample_ns // series.run_ns))


def _timed(series: Series, clock: Callable[[], int]) -> int:
    began = clock()
    series.run()
    return max(1, clock() - began)


def _run_warm(series: Series, clock: Callable[[], int]) -> list[int]:
    """Repeats short runs until caches and threads are warm; returns their times."""
    began = clock()
    taken = [_timed(series, clock)]
    while clock() - began < series.warm_ns:
        taken.append(_timed(series, clock))
    return taken


def _drop(racing: Sequence[Series], rounds: int) -> None:
    """Drops slow candidates: first by their smallest samples, later by the noise."""
    racing = [series for series in racing if series.error is None]
    if rounds < FIRST_ROUNDS or len(racing) < 2:
        return
    smallest = min(min(series.values) for series in racing)
    best = _best(racing)
    for series in racing:
        if series is best:
            continue
        behind = min(series.values) / (smallest or 1.0)
        if rounds < LEAST_ROUNDS:
            series.out = behind > FAR and series.run_ns >= COLD_NS
        else:
            share, noise = _compared(series, best)
            series.out = share - 1 > noise * (1 if behind > HOPELESS else SURE)


def _sample(series: Series, clock: Callable[[], int], energy: Counter | None) -> None:
    """Takes one sample: the median of its runs, because other work may disturb some of them."""
    try:
        if series.run_ns < COLD_NS:
            _run_warm(series, clock)
        before = energy.read() if energy else 0
        taken = [_timed(series, clock) for _ in range(series.runs)]
        after = energy.read() if energy else 0
    except PenstockError as error:
        series.error = driver_message(error)
        return
    series.times.append(statistics.median(taken))
    series.counted += series.runs
    if energy:
        series.energies.append((after - before) / series.runs)


def joules(microjoules: float) -> str:
    """Formats microjoules for display."""
    return f"{microjoules / 1e3:.3g} mJ"


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first
