"""Contenders in turns under a clock of their own, and who wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from penstock.errors import Cancelled, GeneralFailure
from penstock.partitioning.placements import Measured
from penstock.runtime.measuring import (
    COLD_NS,
    FIRST_ROUNDS,
    LEAST_ROUNDS,
    LONG_NS,
    MOST_ROUNDS,
    SAMPLE_NS,
    SPREADING_NS,
    Series,
    choose,
    measure,
)

MS = 1_000_000
STOP_NS = 4 * MS


class Clock:
    """Moves only when a contender runs; counts a microjoule for each 100 ns, times *power*. *load*
    is how many times as long everything takes at a moment.
    """

    def __init__(self, load: Callable[[int], float] = lambda _: 1.0) -> None:
        self.now, self.energy, self.load = 0, 0.0, load
        self.order: list[str] = []

    def __call__(self) -> int:
        return self.now

    def read(self) -> int:
        return int(self.energy)

    def contender(
        self, name: str, durations: int | Callable[[int], int], power: float = 1.0
    ) -> Series:
        runs = 0

        def run() -> None:
            nonlocal runs
            took = durations if isinstance(durations, int) else durations(runs)
            took = int(took * self.load(self.now))
            runs += 1
            self.now += took
            self.energy += took * power / 100
            self.order.append(name)

        return Series(name, run)


def told(every: Sequence[Series]) -> list[Measured]:
    return [series.measured() for series in every]


def test_medians_runs_and_the_distance_between_quartiles() -> None:
    clock = Clock()
    noisy = clock.contender("noisy", lambda run: 10 * MS + 500_000 * (run % 5))
    steady = clock.contender("steady", 11 * MS)
    one, other = told(measure([noisy, steady], clock=clock))
    assert one.median_ns == 11 * MS
    assert one.spread_ns == MS
    assert (other.median_ns, other.spread_ns) == (11 * MS, 0)
    assert one.runs == other.runs == MOST_ROUNDS
    assert one.energy_uj is None


def test_everyone_takes_turns_and_follows_everyone() -> None:
    clock = Clock()
    measure([clock.contender(name, COLD_NS) for name in "abc"], clock=clock)
    measured = "".join(clock.order[6:])
    assert measured[:12] == "abcacbcabcba"
    assert 3 * LEAST_ROUNDS <= len(measured) <= 3 * MOST_ROUNDS


def test_short_runs_share_a_sample() -> None:
    clock = Clock()
    short, long = told(
        measure([clock.contender("short", 20_000), clock.contender("long", 18_000)], clock=clock)
    )
    assert short.runs >= LEAST_ROUNDS * (SAMPLE_NS // 20_000)
    assert long.median_ns == 18_000


def test_a_run_finds_in_the_caches_what_the_one_before_left() -> None:
    """Each loses 2 ms after another one has run; small is the quicker one that runs again and
    again.
    """
    clock, before = Clock(), [""]

    def after_others(name: str, warm: int, cold: int) -> Series:
        def took(_: int) -> int:
            mine, before[0] = before[0] == name, name
            return warm if mine else cold

        return clock.contender(name, took)

    small, large = after_others("small", 2 * MS, 6 * MS), after_others("large", 3 * MS, 4 * MS)
    measured = measure([small, large], clock=clock)
    assert [m.median_ns for m in told(measured)] == [2 * MS, 3 * MS]
    assert choose(measured, ["small", "large"])[0] == "small"


SPIN_NS = 40 * MS


class Crowd(Clock):
    """Engines whose threads spin on for `SPIN_NS` after a run: until then another's run takes three
    times as long. Each engine's first runs after another's take twice as long until it has run for
    *waking*.
    """

    def __init__(self, waking: int = 0) -> None:
        super().__init__()
        self.waking, self.last, self.own, self.spinning = waking, "", 0, {"": 0}

    def engine(self, name: str, ns: int, *, spins: bool) -> Series:
        def took(_: int) -> int:
            if name != self.last:
                self.last, self.own = name, 0
            held = any(self.now < end for who, end in self.spinning.items() if who != name)
            mine = ns * (3 if held else 1) * (2 if self.own < self.waking else 1)
            self.own += mine
            if spins:
                self.spinning[name] = self.now + mine + SPIN_NS
            return mine

        return self.contender(name, took)

    def alone(self, name: str, ns: int) -> Series:
        """One without threads to be woken; who follows has to wake again."""

        def took(_: int) -> int:
            self.last = name
            return ns

        return self.contender(name, took)

    def rest(self) -> None:
        self.now = max(self.now, *self.spinning.values())


@pytest.mark.parametrize("ns", [300_000, 6 * MS])
def test_an_engine_that_spins_on_does_not_hold_up_the_next(ns: int) -> None:
    """Without a rest the slower one wins, by what its threads do to the others."""
    for rests, winner in ((False, "spinning"), (True, "calm")):
        crowd = Crowd()
        every = measure(
            [
                crowd.engine("calm", ns, spins=False),
                crowd.engine("spinning", ns * 5 // 4, spins=True),
            ],
            clock=crowd,
            rest=crowd.rest if rests else lambda: None,
        )
        assert choose(every, ["calm", "spinning"])[0] == winner
        if rests:
            assert [m.median_ns for m in told(every)] == [ns, ns * 5 // 4]


def test_an_engine_is_timed_when_its_threads_have_woken() -> None:
    crowd = Crowd(waking=3 * MS)
    every = measure([crowd.engine(name, 200_000, spins=False) for name in "ab"], clock=crowd)
    assert [m.median_ns for m in told(every)] == [200_000, 200_000]
    assert [m.spread_ns for m in told(every)] == [0, 0]


def test_an_engine_of_several_threads_is_timed_when_they_have_processors_of_their_own() -> None:
    """One takes twice as long until then, the other computes at once."""
    for warm_ns, winner in ((4 * MS, "steady"), (SPREADING_NS, "spreading")):
        crowd = Crowd(waking=12 * MS)
        every = measure(
            [crowd.alone("steady", 2 * MS), crowd.engine("spreading", 3 * MS // 2, spins=False)],
            clock=crowd,
            warm_ns=warm_ns,
        )
        assert choose(every, ["steady", "spreading"])[0] == winner


def test_rejected_candidate_is_closed_before_others_run_on() -> None:
    clock = Clock()
    events: list[str] = []

    def contender(name: str, ns: int) -> Series:
        made = clock.contender(name, ns)

        def run() -> None:
            if events[-1:] != [name]:
                events.append(name)
            made.run()

        return Series(name, run, lambda: events.append(f"{name} closed"))

    def broken() -> None:
        raise GeneralFailure("no")

    failing = Series("bad", broken, lambda: events.append("bad closed"))
    slow, far = 2 * COLD_NS, 20 * LONG_NS
    measure(
        [contender("a", COLD_NS), contender("b", slow), contender("c", far), failing], clock=clock
    )
    first = events.index("bad closed")
    assert events[: first + 1] == ["a", "b", "c", "c closed", "bad closed"]
    assert events.count("b closed") == 1
    assert set(events[first + 1 :]) == {"a", "b", "b closed"}
    assert "b" not in events[events.index("b closed") :]
    assert "a closed" not in events


def test_slower_candidate_is_dropped() -> None:
    clock = Clock()
    slow = 2 * LONG_NS
    given = (
        ("a", COLD_NS),
        ("b", COLD_NS),
        ("c", 2 * COLD_NS),
        ("d", 5 * COLD_NS),
        ("e", 2 * slow),
    )
    every = measure([clock.contender(name, ns) for name, ns in given], clock=clock)
    assert [m.runs for m in told(every)][2:] == [LEAST_ROUNDS, FIRST_ROUNDS, 1]
    assert [series.out for series in every] == [False, False, True, True, True]
    assert every[0].measured().runs == every[1].measured().runs > LEAST_ROUNDS


def test_slightly_slower_candidate_is_dropped_early() -> None:
    clock = Clock()
    every = measure([clock.contender("a", 100 * MS), clock.contender("b", 103 * MS)], clock=clock)
    assert [m.runs for m in told(every)] == [LEAST_ROUNDS, LEAST_ROUNDS]
    assert choose(every, ["a", "b"]) == ("a", "no placement is faster than this one device")


def test_dropped_candidate_does_not_win_by_a_quiet_moment() -> None:
    """From the third round on everything takes ten times as long: the best has the largest median
    of all.
    """
    clock = Clock(lambda now: 1.0 if now < 22 * COLD_NS else 10.0)
    every = measure(
        [clock.contender("slow", 5 * COLD_NS), clock.contender("quick", COLD_NS)], clock=clock
    )
    slow, quick = told(every)
    assert every[0].out
    assert slow.median_ns < quick.median_ns
    assert choose(every, ["slow", "quick"])[0] == "quick"
    assert choose(every, ["slow"])[0] == "quick"


def test_a_failure_puts_a_contender_out() -> None:
    clock = Clock()

    def broken() -> None:
        raise GeneralFailure("no")

    every = measure([clock.contender("good", 1_000), Series("bad", broken)], clock=clock)
    good, bad = told(every)
    assert good.error is None
    assert bad.error == "GeneralFailure: no"
    assert choose(every, ["bad"])[0] == "good"


def test_an_interrupt_ends_it() -> None:
    def check() -> None:
        raise Cancelled("enough")

    clock = Clock()
    with pytest.raises(Cancelled):
        measure([clock.contender("a", 1_000)], clock=clock, check=check)


def test_energy_is_counted_by_run() -> None:
    clock = Clock()
    contenders = [clock.contender("quick", 100_000, 3.0), clock.contender("thrifty", 500_000, 0.4)]
    every = measure(contenders, clock=clock, energy=clock)
    quick, thrifty = told(every)
    assert quick.energy_uj == pytest.approx(3_000, rel=0.01)
    assert thrifty.energy_uj == pytest.approx(2_000, rel=0.01)
    assert choose(every, ["quick", "thrifty"])[0] == "thrifty"
    assert choose(measure(contenders, clock=clock), ["quick", "thrifty"])[0] == "quick"


def of(name: str, *times: float) -> Series:
    series = Series(name, lambda: None)
    series.times = list(times)
    return series


def around(name: str, middle: float, share: float) -> Series:
    """Seven rounds: half of the samples within *share* of the middle one."""
    return of(name, *(middle * (1 + share * k) for k in (-2, -1, -0.5, 0, 0.5, 1, 2)))


@pytest.mark.parametrize(
    ("cut", "winner"),
    [
        (around("cut", 900_000, 0.0), "cut"),
        (around("cut", 980_000, 0.1), "gpu"),
        (around("cut", 900_000, 0.1), "cut"),
        (of("cut", *[1_000_000] * 7), "gpu"),
        (of("cut", *[2_000_000] * 7), "gpu"),
    ],
)
def test_a_cut_has_to_beat_the_best_single_device_by_more_than_the_noise(
    cut: Series, winner: str
) -> None:
    gpu, cpu = of("gpu", *[1_000_000] * 7), of("cpu", *[3_000_000] * 7)
    name, reason = choose([cut, gpu, cpu], ["gpu", "cpu"])
    assert name == winner
    if cut.times[3] == 980_000:
        assert reason == "cut is faster than gpu by 20 us, noise 87.2 us: not beyond the noise"


def test_load_common_to_a_round_is_no_noise() -> None:
    loads = [1.0, 3.0, 1.2, 2.5, 1.0, 7.0, 1.4]
    gpu = of("gpu", *(1_000_000 * load for load in loads))
    cut = of("cut", *(990_000 * load for load in loads))
    assert choose([gpu, cut], ["gpu"])[0] == "cut"


def test_single_devices_are_compared_with_each_other_and_the_best_with_the_rest() -> None:
    """Which of two is ahead may depend on who else is counted: a single device never has to beat
    another one.
    """
    one = of("one", 10, 10, 10, 30, 30, 30, 30)
    other = of("other", 11, 11, 11, 20, 20, 20, 29)
    cut = of("cut", 10, 10, 10, 90, 90, 90, 90)
    name, reason = choose([one, other, cut], ["one", "other"])
    assert name == "other"
    assert reason == "no placement is faster than this one device"


def test_nothing_to_choose_from() -> None:
    failed = of("a")
    failed.error = "x"
    with pytest.raises(ValueError, match="none of the placements"):
        choose([failed], ["a"])
    assert choose([of("cut", 5)], ["a"]) == ("cut", "no single device could be measured")


@dataclass(frozen=True)
class Machine:
    """What a run takes on a machine with other work, drawn: jitter, a load that comes and goes, and
    how often in 4 ms of its own it is stopped for 4 ms.
    """

    jitter: float
    load: float
    stops: float

    def clock(self, rng: np.random.Generator) -> Clock:
        period = float(rng.uniform(40, 400)) * MS
        phase = float(rng.uniform(0, 2 * np.pi))
        return Clock(lambda now: 1 + self.load * (1 + np.sin(now / period + phase)) / 2)

    def contender(self, clock: Clock, rng: np.random.Generator, name: str, ns: int) -> Series:
        def took(_: int) -> int:
            stops = int(rng.poisson(self.stops * ns / STOP_NS))
            return int(ns * np.exp(rng.normal(0, self.jitter))) + stops * STOP_NS

        return clock.contender(name, took)


MACHINES = {
    "quiet": Machine(0.01, 0.0, 0.0),
    "busy": Machine(0.03, 0.5, 0.2),
    "full": Machine(0.1, 1.0, 1.0),
}


@pytest.mark.parametrize(
    ("name", "most"), [("quiet", 1.0), ("busy", 1.05), ("full", 1.25)], ids=MACHINES
)
@pytest.mark.parametrize(
    ("quick", "others"),
    [
        (400_000, {"second": 520_000, "reference": 3_200_000}),
        (4 * MS, {"second": 5 * MS, "third": 8 * MS, "reference": 40 * MS}),
        (50 * MS, {"second": 62 * MS, "third": 58 * MS, "reference": 70 * MS}),
    ],
)
def test_the_best_wins_on_a_machine_with_other_work(
    name: str, most: float, quick: int, others: dict[str, int]
) -> None:
    """Of twenty machines: always on a quiet one, and on a full one, where a run of 50 ms takes 100
    to 200, nobody who is much slower.
    """
    machine = MACHINES[name]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        clock = machine.clock(rng)
        given = {**others, "quick": quick}
        every = measure(
            [machine.contender(clock, rng, each, ns) for each, ns in given.items()], clock=clock
        )
        winner, _ = choose(every, [each for each in given if each != "reference"])
        assert given[winner] <= quick * most


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_cut_that_is_no_better_seldom_wins(machine: Machine) -> None:
    """Nor where every run that is timed has been stopped, by chance, and the cut's have not."""
    wins = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        clock = machine.clock(rng)
        every = measure(
            [machine.contender(clock, rng, name, 8 * MS) for name in ("cut", "engine")], clock=clock
        )
        wins += choose(every, ["engine"])[0] == "cut"
    assert wins <= 4
