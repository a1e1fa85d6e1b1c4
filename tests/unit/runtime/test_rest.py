"""Waiting for threads that go on after an engine's run."""

from __future__ import annotations

import threading
import time

from penstock.runtime.measuring import LONGEST_NS, WINDOW_NS, Rest, used_by_others_ns

MS = 1_000_000


class Process:
    """Whose other threads spin from the beginning of each wait for *spins* nanoseconds, and use a
    little all the time.
    """

    def __init__(self, spins: int) -> None:
        self.now, self.spins, self.began = 0, spins, 0

    def used(self) -> int:
        return min(self.now - self.began, self.spins) + self.now // 100

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)

    def waited(self, rest: Rest) -> int:
        self.began = self.now
        rest()
        return self.now - self.began


def rest_of(process: Process) -> Rest:
    return Rest(process.used, lambda: process.now, process.sleep)


def test_a_rest_takes_one_window_where_no_thread_spins() -> None:
    process = Process(0)
    assert process.waited(rest_of(process)) == WINDOW_NS


def test_rest_waits_until_other_threads_stop() -> None:
    process = Process(22 * MS)
    rest = rest_of(process)
    for _ in range(3):
        assert process.waited(rest) == 6 * WINDOW_NS


def test_threads_that_do_not_end_are_waited_for_less_and_less() -> None:
    process = Process(10**15)
    rest = rest_of(process)
    waits = [process.waited(rest) for _ in range(8)]
    assert waits[:2] == [LONGEST_NS, LONGEST_NS // 2]
    assert waits[-1] == WINDOW_NS
    process.spins = 0
    assert process.waited(rest) == WINDOW_NS
    process.spins = 10**15
    assert process.waited(rest) == LONGEST_NS


def test_time_of_other_threads_excludes_the_own_thread() -> None:
    began = used_by_others_ns()
    until = time.thread_time_ns() + 5 * MS
    while time.thread_time_ns() < until:
        pass
    mine = used_by_others_ns() - began

    def work() -> None:
        until = time.thread_time_ns() + 20 * MS
        while time.thread_time_ns() < until:
            pass

    began = used_by_others_ns()
    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert mine < 5 * MS < used_by_others_ns() - began
