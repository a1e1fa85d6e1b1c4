"""When a call that has a deadline is given up because the process at the other end stands still."""

from __future__ import annotations

import pytest

from penstock.compilation.failing import with_last_crash
from penstock.errors import DeadObject
from penstock.ipc.deadlines import CHECK_NS, RESTART_NS, Silence, StoppedProcess

SECOND = 1_000_000_000
LIMIT = 5 * SECOND


class Process:
    """One that is stopped from *since* on, until *until*; and the clock."""

    def __init__(self, since: float, until: float = 1e9) -> None:
        self.now = 0
        self.since, self.until = since * SECOND, until * SECOND
        self.looks = 0

    def is_stopped(self) -> bool:
        self.looks += 1
        return self.since <= self.now < self.until

    def given_up_at(self, deadline: float) -> float | None:
        """Seconds after its begin at which a call with that deadline is given up; None if it waits
        for all of it.
        """
        deadline_ns = int(deadline * SECOND)
        clock = StoppedProcess(self.is_stopped, "it", LIMIT, deadline_ns, lambda: self.now)
        while self.now < deadline_ns:
            try:
                clock.check()
            except DeadObject:
                return self.now / SECOND
            assert self.now < clock.next_ns <= deadline_ns
            self.now = clock.next_ns
        return None


@pytest.mark.parametrize("deadline", [0.1, 1, 4, (LIMIT + RESTART_NS) / SECOND - 0.1])
def test_the_fall_back_has_the_other_half(deadline: float) -> None:
    given_up = Process(0).given_up_at(deadline)
    assert given_up is not None
    assert deadline / 2 <= given_up <= deadline / 2 + CHECK_NS / SECOND


@pytest.mark.parametrize("deadline", [6.5, 8, 60])
def test_process_that_resumes_in_time_is_kept(deadline: float) -> None:
    assert Process(0).given_up_at(deadline) is None


def test_stopped_process_is_reported_before_it_is_killed() -> None:
    process = Process(0)
    clock = StoppedProcess(process.is_stopped, "it", LIMIT, SECOND, lambda: process.now)
    told = ""
    while not told:
        process.now = clock.next_ns
        try:
            clock.check()
        except DeadObject as error:
            told = str(error)
    assert with_last_crash(told) == (
        "it is stopped, and does not answer before the deadline; SIGCONT lets it go on, or it is "
        "killed after 5 s "
        "without a sign of life, and penstock doctor --last-crash has a record from then on"
    )


def test_process_that_stops_late_is_given_up() -> None:
    given_up = Process(17).given_up_at(20)
    assert given_up is not None
    assert 17 < given_up < 17.5


def test_a_moments_pause_and_a_long_compile_are_waited_for() -> None:
    assert Process(1.0, 1.0 + CHECK_NS / SECOND / 2).given_up_at(2) is None
    process = Process(1e9)
    assert process.given_up_at(20) is None
    assert process.looks < 300


class TestSilence:
    def test_counts_the_seconds_since_the_last_heartbeat(self) -> None:
        silence = Silence(7, 10.0, 0.5)
        assert silence.at_look(7, 10.25) == 0.25
        assert silence.at_look(7, 10.75) == 0.75
        assert silence.at_look(8, 11.0) == 0.0
        assert silence.at_look(8, 11.5) == 0.5

    @pytest.mark.parametrize("pause", [0.75, 60.0])
    def test_a_pause_of_the_whole_machine_counts_as_one_look(self, pause: float) -> None:
        silence = Silence(7, 10.0, 0.5)
        assert silence.at_look(7, 10.0 + pause) == 0.5
