"""Contenders in turns under a clock of their own, and who wins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import Cancelled, GeneralFailure
from penstock.partitioning.plan import Measured
from penstock.runtime.measuring import (
    FIRST_ROUNDS,
    LEAST_ROUNDS,
    MOST_ROUNDS,
    SAMPLE_NS,
    Contender,
    choose,
    measure,
)


class Clock:
    """Moves only when a contender runs; counts a microjoule for each 100 ns, times *power*."""

    def __init__(self) -> None:
        self.now, self.energy = 0, 0.0
        self.order: list[str] = []

    def __call__(self) -> int:
        return self.now

    def read(self) -> int:
        return int(self.energy)

    def contender(
        self, name: str, durations: int | Callable[[int], int], power: float = 1.0
    ) -> Contender:
        runs = 0

        def run() -> None:
            nonlocal runs
            took = durations if isinstance(durations, int) else durations(runs)
            runs += 1
            self.now += took
            self.energy += took * power / 100
            self.order.append(name)

        return Contender(name, run)


def test_medians_runs_and_the_distance_between_quartiles() -> None:
    clock = Clock()
    noisy = clock.contender("noisy", lambda run: 1_000_000 + 100_000 * (run % 5))
    steady = clock.contender("steady", 1_300_000)
    one, other = measure([noisy, steady], clock=clock)
    assert one.median_ns == 1_200_000
    assert one.spread_ns == 200_000
    assert (other.median_ns, other.spread_ns) == (1_300_000, 0)
    assert one.energy_uj is None


def test_everyone_takes_turns() -> None:
    clock = Clock()
    measure([clock.contender(name, SAMPLE_NS) for name in "abc"], clock=clock)
    measured = clock.order[6:]
    assert "".join(measured[:9]) == "abcbcacab"
    assert len(measured) >= 3 * LEAST_ROUNDS
    assert len(measured) <= 3 * MOST_ROUNDS


def test_short_runs_share_a_sample() -> None:
    clock = Clock()
    short, long = measure(
        [clock.contender("short", 1_000), clock.contender("long", 900)], clock=clock
    )
    assert short.runs >= LEAST_ROUNDS * SAMPLE_NS // 1_000
    assert long.median_ns == 900


def test_who_is_hopeless_is_timed_no_longer() -> None:
    clock = Clock()
    measured = measure(
        [
            clock.contender(name, ns)
            for name, ns in (("a", 300_000), ("b", 310_000), ("c", 900_000), ("d", 3_000_000))
        ],
        clock=clock,
    )
    assert [m.runs for m in measured] == [MOST_ROUNDS, MOST_ROUNDS, LEAST_ROUNDS, FIRST_ROUNDS]


def test_a_failure_puts_a_contender_out() -> None:
    clock = Clock()

    def broken() -> None:
        raise GeneralFailure("no")

    good, bad = measure([clock.contender("good", 1_000), Contender("bad", broken)], clock=clock)
    assert good.error is None
    assert bad.error == "GeneralFailure: no"
    assert choose([good, bad], ["bad"])[0] == "good"


def test_an_interrupt_ends_it() -> None:
    def check() -> None:
        raise Cancelled("enough")

    clock = Clock()
    with pytest.raises(Cancelled):
        measure([clock.contender("a", 1_000)], clock=clock, check=check)


def test_energy_is_counted_by_run() -> None:
    clock = Clock()
    quick, thrifty = measure(
        [clock.contender("quick", 100_000, 3.0), clock.contender("thrifty", 200_000, 1.0)],
        clock=clock,
        energy=clock,
    )
    assert quick.energy_uj == pytest.approx(3_000, rel=0.01)
    assert thrifty.energy_uj == pytest.approx(2_000, rel=0.01)
    assert choose([quick, thrifty], ["quick", "thrifty"])[0] == "quick"
    assert choose([quick, thrifty], ["quick", "thrifty"], by_energy=True)[0] == "thrifty"


def of(name: str, median: int, spread: int = 0) -> Measured:
    return Measured(name, median, spread, 10)


@pytest.mark.parametrize(
    ("cut", "winner"),
    [
        (of("cut", 900_000, 0), "cut"),
        (of("cut", 980_000, 100_000), "gpu"),
        (of("cut", 940_000, 100_000), "cut"),
        (of("cut", 1_000_000, 0), "gpu"),
        (of("cut", 2_000_000, 0), "gpu"),
    ],
)
def test_a_cut_has_to_beat_the_best_single_device_by_more_than_the_noise(
    cut: Measured, winner: str
) -> None:
    name, reason = choose([cut, of("gpu", 1_000_000, 10_000), of("cpu", 3_000_000)], ["gpu", "cpu"])
    assert name == winner
    if cut.median_ns == 980_000:
        assert reason == "cut is faster than gpu by 20 us, noise 50 us: not beyond the noise"


def test_nothing_to_choose_from() -> None:
    with pytest.raises(ValueError, match="none of the placements"):
        choose([Measured("a", 0, 0, 0, error="x")], ["a"])
    assert choose([of("cut", 5)], ["a"]) == ("cut", "no single device could be measured")
