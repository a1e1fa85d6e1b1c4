"""The client's side of a ring: numbered requests, and waiting for their answers."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns
from typing import Final

from penstock import errors
from penstock.hal import DONE, PRIORITIES, CancelToken, ExecutionConfig, ExecutionResult, Timing
from penstock.ipc import ring, wire
from penstock.ipc.codec import decode_reply, error_of
from penstock.ipc.ring import ANSWER, REQUEST, Doorbell, Listener, Region, Watch
from penstock.ipc.transport import close_all

CANCEL_LOOK_NS: Final = 5_000_000
"""Nanoseconds between two checks of the cancel token during a wait for an answer."""

STOP_GRACE_NS: Final = 100_000_000
"""Nanoseconds the device has to answer after its cancel token was set."""

LONG_NS: Final = 1_000_000_000
"""Longer runs count as this long in the estimate for the next call."""

LONG_ENOUGH_NS: Final = 1_000_000
"""Longer runs: the client sleeps until shortly before their end, since spinning costs more."""

NAP_SHARE: Final = 32
"""Part of the usual time, at its end, during which the client does not sleep."""

NAP_MARGIN_NS: Final = 150_000
"""Nanoseconds that waking a thread takes."""

CHEAP_NS: Final = 10_000
"""A round trip this short is not compared with the other way of waiting."""

MOST_WAY_NS: Final = 500_000
"""Longer round trips count as this: one missed time slice must not decide."""

TRY_EVERY: Final = 16
"""Every n-th call tries the way of waiting that has been slower."""

MOST_FALSE_ALARMS: Final = 10_000
"""Most times that one wait may be woken without an answer."""


_looking = threading.Lock()
"""Only one thread of a process spins for answers at a time: more would slow each other down."""

NOT_ANSWERED: Final = "the device had not answered by the deadline"
NOT_STOPPED: Final = "the cancel token was set, and the device did not stop"


class Pace:
    """The duration of the runs of one prepared model: *usual_ns* is a moving mean."""

    __slots__ = ("usual_ns",)

    def __init__(self) -> None:
        self.usual_ns = 0


class RingClient:
    """Numbered requests and their answers; for one thread at a time. It closes *life_fd*, which is
    readable once the other process ended; *end_reason* also detects a process that hangs.
    """

    def __init__(
        self,
        region: Region,
        to_device: Doorbell,
        to_client: Doorbell,
        life_fd: int | None,
        end_reason: Callable[[], str] = str,
        spin_ns: int | None = None,
    ) -> None:
        self._region, self._end_reason = region, end_reason
        self._to_device, self._to_client = to_device, to_client
        budget = ring.spin_budget_ns() if spin_ns is None else spin_ns
        listener = Listener(to_client, life_fd)
        self._close_life = weakref.finalize(self, close_all, [] if life_fd is None else [life_fd])
        self._watch = Watch(region, ring.ANSWERED, ring.CLIENT_WAITS, listener, budget)
        self._process = _process
        self._sent = self._answered = self._calls = 0
        self._pace = Pace()
        # Overhead of a call beyond the device's own time: when sleeping, and when spinning.
        self._way_ns = [0, 0]
        self.broken: str | None = None

    def call(
        self,
        kind: int,
        bound: int = 0,
        config: ExecutionConfig | None = None,
        payload: bytes = b"",
        pace: Pace | None = None,
    ) -> ExecutionResult:
        """Sends one request and returns its answer; *pace* is that of the prepared model.

        Raises the answer's error. Raises `DeadObject` if the other side ended or broke the
        protocol, which closes this ring. Raises `MissedDeadlineTransient` or `Cancelled` without an
        answer: until a later call returns, outputs may still be written.
        """
        if self.broken is not None:
            raise errors.DeadObject(self.broken)
        if self._process is not _process:
            raise errors.StateError("a ring of a driver's process cannot be used after a fork")
        if pace is None:
            pace = self._pace
        region, number = self._region, self._sent + 1
        layout = region.layout
        if number - self._answered > layout.slots:
            value = region.words[ring.ANSWERED] if ring.TOTAL_STORE_ORDER else self._sent
            self._due(value, self._sent)
            self._answered = value
            if number - value > layout.slots:
                raise errors.GeneralFailure(
                    f"the device has not answered the last {layout.slots} calls of this ring"
                )
        at = layout.request_at(number)
        deadline_ns, loop_ns, flags, cancel = None, 0, 0, None
        if config is not None:
            deadline_ns, cancel = config.deadline_ns, config.cancel
            if config.loop_timeout_ns is not None:
                loop_ns = min(max(config.loop_timeout_ns, 1), ring.LONGEST_LOOP_NS)
            flags = _FLAGS.get((config.measure, config.priority), 0)
            if deadline_ns is not None or cancel is not None:
                flags |= ring.STOPPABLE
                if deadline_ns is not None:
                    deadline_ns = max(1, deadline_ns)
        looks = self._looks(pace)
        if looks or self._watch.spin_ns <= pace.usual_ns:
            # A client that sleeps through a long run soon sends the next request.
            flags |= ring.LINGER
        REQUEST.pack_into(
            region.data, at, number, kind, bound, deadline_ns or 0, loop_ns, flags, len(payload)
        )
        if payload:
            start = at + REQUEST.size
            region.data[start : start + len(payload)] = payload
        self._sent = number
        watch = self._watch
        began = monotonic_ns()
        ring.publish(region, watch, ring.REQUESTED, number, ring.SERVER_WAITS, self._to_device)
        value = self._answered
        if looked := looks and _looking.acquire(blocking=False):
            try:
                value = watch.spin(value, watch.spin_ns)
            finally:
                _looking.release()
        if value != number:
            self._wait(number, value, deadline_ns, cancel, pace)
        self._answered = number
        return self._taken(number, at + layout.slot_bytes, looked, monotonic_ns() - began, pace)

    @property
    def is_behind(self) -> bool:
        """Whether a request runs that no caller waits for. Raises nothing: a bad ring is broken."""
        if self._answered == self._sent or self.broken is not None:
            return False
        with suppress(errors.DeadObject):
            value = self._watch.glance(self._answered)
            self._due(value, self._sent)
            self._answered = value
        return self._answered != self._sent

    @property
    def is_inherited(self) -> bool:
        """Whether `fork` copied this client into a child process."""
        return self._process is not _process

    def close(self) -> None:
        self.broken = "this ring is closed"
        self._to_device.close()
        self._to_client.close()
        self._region.close()
        self._close_life()

    def _wait(
        self,
        number: int,
        value: int,
        deadline_ns: int | None,
        cancel: CancelToken | None,
        pace: Pace,
    ) -> None:
        """Waits for answer *number*; *value* is the last value of the word."""
        stop_at: int | None = None
        alarms = 0
        watch = self._watch
        nap_ns = 0
        if watch.spin_ns and pace.usual_ns >= LONG_ENOUGH_NS:
            nap_ns = pace.usual_ns - pace.usual_ns // NAP_SHARE - NAP_MARGIN_NS
        while True:
            if value == number:
                break
            self._due(value, number)
            self._answered = value
            now = monotonic_ns()
            if stop_at is None and cancel is not None and cancel.is_set():
                self._region.words[ring.CANCELLED] = number
                stop_at = now + STOP_GRACE_NS
            if deadline_ns is not None and now >= deadline_ns:
                self._region.words[ring.CANCELLED] = number
                raise errors.MissedDeadlineTransient(NOT_ANSWERED)
            if stop_at is not None and now >= stop_at:
                raise errors.Cancelled(NOT_STOPPED)
            ends = [at - now for at in (deadline_ns, stop_at) if at is not None]
            if cancel is not None and stop_at is None:
                ends.append(CANCEL_LOOK_NS)
            if nap_ns:
                ends.append(nap_ns)
            limit = min(ends, default=None)
            value, heard = watch.sleep(value, limit)
            has_napped = nap_ns and heard == "nothing" and limit == nap_ns
            if has_napped and _looking.acquire(blocking=False):
                try:
                    value = watch.spin(value, 2 * pace.usual_ns // NAP_SHARE + NAP_MARGIN_NS)
                finally:
                    _looking.release()
            nap_ns = 0
            if heard == "dead" and value != number:
                raise self._break("the device's process has ended")
            if heard == "nothing" and value != number and (why := self._end_reason()):
                raise self._break(why)
            if heard == "rung" and value == self._answered:
                alarms += 1
                if alarms > MOST_FALSE_ALARMS:
                    raise self._break("the device rings without an answer")

    def _looks(self, pace: Pace) -> bool:
        """Whether to spin for the next answer rather than sleep.

        True if runs are short and spinning has been cheaper. If every processor is busy, a sleeping
        thread is woken sooner than a spinning thread is scheduled again after it yields.
        """
        if self._watch.spin_ns <= pace.usual_ns:
            return False
        sleeping, looking = self._way_ns
        looks = looking <= sleeping or looking < CHEAP_NS
        if (looking if looks else sleeping) < CHEAP_NS:
            return looks
        self._calls += 1
        return looks if self._calls % TRY_EVERY else not looks

    def _taken(
        self, number: int, at: int, looked: bool, passed_ns: int, pace: Pace
    ) -> ExecutionResult:
        region = self._region
        given, kind, took_ns, device_ns, driver_ns, nbytes = ANSWER.unpack_from(region.data, at)
        if given != number or nbytes > region.layout.slot_bytes - ANSWER.size:
            raise self._break(f"answer {given} of {nbytes} bytes in the place of {number}")
        # Counts the run's time without the wake-up: one late answer must not stop spinning for the
        # next. A client that sleeps past the end of a run pays for two wake-ups, its own and the
        # server's. The estimates fall quickly and rise slowly.
        took_ns = min(took_ns, LONG_NS)
        longer = took_ns - pace.usual_ns
        pace.usual_ns += longer // (8 if longer > 0 else 2)
        way = self._way_ns
        further = min(max(passed_ns - took_ns, 0), MOST_WAY_NS) - way[looked]
        way[looked] += further // (8 if further > 0 else 2)
        if kind == ring.DONE:
            if device_ns < 0 and driver_ns < 0:
                return DONE
            device, driver = (ns if ns >= 0 else None for ns in (device_ns, driver_ns))
            return ExecutionResult((), Timing(device, driver))
        if kind == ring.EMPTY:
            return DONE
        if kind != ring.REPLY:
            raise self._break(f"an answer of kind {kind}")
        try:
            reply = decode_reply(region.payload(at + ANSWER.size, nbytes))
            if isinstance(reply, wire.Failure | wire.Stopped):
                failure = error_of(reply)
            elif isinstance(reply, wire.Executed):
                return reply.result
            else:
                raise errors.WireError(f"a {type(reply).__name__} for an answer")
        except errors.WireError as error:
            raise errors.GeneralFailure(f"the device's answer is malformed: {error}") from error
        raise failure

    def _due(self, value: int, newest: int) -> None:
        if value == ring.CLOSED:
            raise self._break("the device's side has closed it")
        try:
            ring.due(value, self._answered, newest, "answer")
        except errors.WireError as error:
            raise self._break(str(error)) from None

    def _break(self, why: str) -> errors.DeadObject:
        self.broken = f"the ring is over: {why}"
        return errors.DeadObject(self.broken)


_process = object()
"""Identifies this process: a child made by `fork` has another object."""


def _forked() -> None:
    global _process, _looking  # the only code that changes them
    _process, _looking = object(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

_FLAGS: Final = {
    (measure, priority): (ring.MEASURE if measure else 0) | index << ring.PRIORITY_SHIFT
    for measure in (False, True)
    for index, priority in enumerate(PRIORITIES)
}
