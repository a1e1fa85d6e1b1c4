"""Late writes that hold nobody up: when an attempt writes, and what is said until then."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from penstock.driverkit.postponed_write import LEAST_NS, Payloads, PostponedWrite
from penstock.errors import GeneralFailure
from penstock.sealed import LateWriter, SaveReport


class Writer:
    """Stands for a `LateWriter`: *free* as of `is_free`, *answers* of `write` in turn."""

    def __init__(self, *answers: SaveReport, free: bool = True) -> None:
        self.free, self.answers = free, list(answers)
        self.written: list[object] = []
        self.closed = 0

    def is_free(self) -> bool:
        return self.free

    def write(self, *, model: Sequence[bytes], data: Sequence[bytes]) -> SaveReport:
        self.written.append((model, data))
        return self.answers.pop(0)

    def close(self) -> None:
        self.closed += 1


SAVED = SaveReport(bytes(16))
TAKEN = SaveReport(reason="Unreadable: in use", in_use=True)


class Made:
    """The payloads, and how often they were asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Payloads:
        self.times += 1
        return [b"program"], [b"weights"]


def postponed(writer: Writer, made: Made, compile_ns: int = 0) -> PostponedWrite:
    late: LateWriter = writer  # type: ignore[assignment]  # as far as it is used
    return PostponedWrite(late, made, "optimised", compile_ns)


def test_an_attempt_writes_where_the_entry_is_free() -> None:
    writer, made = Writer(SAVED), Made()
    write = postponed(writer, made)
    assert (write.report.save, write.report.later, write.is_over) == ("none", True, False)
    assert write.attempt()
    assert writer.written == [([b"program"], [b"weights"])]
    report = write.report
    assert (report.save, report.later, report.reason) == ("saved", False, "")
    assert report.artefact == "optimised"
    assert write.is_over
    assert not write.attempt()
    assert (len(writer.written), writer.closed) == (1, 1)


def test_an_attempt_that_finds_the_entry_in_use_makes_no_payloads() -> None:
    writer, made = Writer(SAVED, free=False), Made()
    write = postponed(writer, made)
    for _ in range(3):
        assert not write.attempt()
    assert (made.times, writer.written, writer.closed) == (0, [], 0)
    assert write.report.later
    assert write.report.reason.startswith("NotYetWritten: another process uses the entry")
    writer.free = True
    assert write.attempt()
    assert write.report.save == "saved"


def test_an_entry_that_is_taken_at_the_last_moment_is_left_to_a_later_attempt() -> None:
    writer, made = Writer(TAKEN, SAVED), Made()
    write = postponed(writer, made)
    assert not write.attempt()
    assert write.report.later
    assert write.attempt()
    assert made.times == 2


@pytest.mark.parametrize(
    ("compile_ns", "left_ns", "writes"),
    [
        (0, LEAST_NS // 2, False),
        (0, 2 * LEAST_NS, True),
        (60 * LEAST_NS, 30 * LEAST_NS, False),
        (60 * LEAST_NS, 90 * LEAST_NS, True),
        (0, -LEAST_NS, False),
    ],
)
def test_a_run_writes_only_if_it_has_the_time(compile_ns: int, left_ns: int, writes: bool) -> None:
    write = postponed(Writer(SAVED), Made(), compile_ns)
    assert write.attempt(time.monotonic_ns() + left_ns) is writes
    assert write.report.later is not writes
    assert writes or "had time for it" in write.report.reason
    assert writes or write.attempt()


def test_a_write_that_fails_is_not_tried_again() -> None:
    writer = Writer(SaveReport(reason="NoEntry: the entry was replaced"))
    write = postponed(writer, Made())
    assert write.attempt()
    assert (write.report.save, write.report.later) == ("failed", False)
    assert write.report.reason == "NoEntry: the entry was replaced"
    assert not write.attempt()
    assert writer.closed == 1


def test_payloads_that_cannot_be_made_are_a_write_that_failed() -> None:
    def broken() -> Payloads:
        raise GeneralFailure("no export")

    late: LateWriter = Writer()  # type: ignore[assignment]  # as far as it is used
    write = PostponedWrite(late, broken, "optimised")
    assert write.attempt()
    assert write.report.reason == "GeneralFailure: no export"


def test_closed_write_writes_nothing() -> None:
    writer, made = Writer(SAVED), Made()
    write = postponed(writer, made)
    write.close()
    write.close()
    assert not write.attempt()
    assert (made.times, writer.written) == (0, [])
    report = write.report
    assert (report.save, report.later) == ("failed", False)
    assert report.reason.startswith("NotYetWritten: the model was closed first")


def test_closing_keeps_what_was_written() -> None:
    write = postponed(Writer(SAVED), Made())
    assert write.attempt()
    write.close()
    assert write.report.save == "saved"


def test_one_of_two_concurrent_runs_writes() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Payloads:
        begun.set()
        assert go_on.wait(30)
        return [b"program"], []

    writer = Writer(SAVED)
    late: LateWriter = writer  # type: ignore[assignment]  # as far as it is used
    write = PostponedWrite(late, slow, "optimised")
    thread = threading.Thread(target=write.attempt)
    thread.start()
    assert begun.wait(30)
    assert not write.attempt()
    go_on.set()
    thread.join()
    assert write.report.save == "saved"
    assert len(writer.written) == 1
