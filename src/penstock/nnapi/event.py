"""`Event`: the end of an execution that was started, or somebody's sync fence."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Self

from penstock.closing import Closing
from penstock.hal.fence import DescriptorFence, EventFence, Fence, FenceStatus, as_descriptor
from penstock.nnapi import parameters
from penstock.nnapi.codes import (
    NnapiError,
    ResultCode,
    bad_data,
    bad_state,
    code_of,
    driver_error,
    translated,
    unexpected_null,
)


class Event(Closing):
    """Something that ends once, well or with a result code: `ANeuralNetworksEvent` (NNAPI section
    7.2).

    Made by `Execution.start_compute`, by `Execution.start_compute_with_dependencies`, or by
    `create_from_sync_fence_fd`.
    """

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._closed = False

    @classmethod
    def create_from_sync_fence_fd(cls, sync_fence_fd: int) -> Self:
        """The event of a sync fence, any descriptor that `poll` finds readable once it is
        signalled, and in error where it failed. It is duplicated. BAD_DATA for a negative
        descriptor and one that is not open.
        """
        number = parameters.whole(sync_fence_fd, "the sync fence", -(2**31), 2**31 - 1)
        if number < 0:
            raise bad_data(f"{number} is no file descriptor")
        with translated():
            return cls(ForeignFence(number))

    def wait(self) -> None:
        """Waits for the end. Raises the `NnapiError` of an execution that failed, each time it is
        called; OP_FAILED for a fence that says no more than that it failed.
        """
        failure = self.outcome(None)
        if failure is not None:
            raise failure

    @property
    def fence(self) -> Fence:
        """The fence that it ends with, for runs that wait for it."""
        self._check_open()
        return self._ending.fence

    def outcome(self, timeout_ns: int | None) -> NnapiError | None:
        """What `wait` raises; `TimeoutError` where the event has not ended within *timeout_ns*."""
        self._check_open()
        if not self._ending.wait(timeout_ns):
            raise TimeoutError("the event has not ended yet")
        failure = self._ending.failure
        return None if failure is None else NnapiError(failure.code, failure.message)

    def get_sync_fence_fd(self) -> int:
        """A descriptor that `poll` finds readable after the end; the caller closes it. What is made
        of it by `create_from_sync_fence_fd`, in whichever process, also knows whether the end was
        well. Only an execution that was started with dependencies has one, and what was made of
        one: BAD_DATA for others.
        """
        self._check_open()
        return self._ending.fence_fd()

    def close(self) -> None:
        """Waits for an execution under way, whatever comes of it, and frees the event; twice is
        harmless.
        """
        if not self._closed:
            self._closed = True
            self._ending.close()

    def _check_open(self) -> None:
        if self._closed:
            raise bad_state("the event is closed")


class Ending:
    """How an event ends, as far as it has."""

    failure: NnapiError | None = None
    """What it ended with; None before it has, and where it went well."""

    @property
    def fence(self) -> Fence:
        """What other runs wait for."""
        raise NotImplementedError

    def wait(self, timeout_ns: int | None) -> bool:
        """Whether it ended within *timeout_ns*, None for any time."""
        raise NotImplementedError

    def fence_fd(self) -> int:
        """A new descriptor of its fence."""
        raise bad_data("the event has no sync fence: only executions with dependencies have one")

    def close(self) -> None:
        """Frees it."""


class ForeignFence(Ending):
    """The sync fence behind a descriptor, which is duplicated; `InvalidArgument` for what is none."""

    def __init__(self, fd: int) -> None:
        self._fence = DescriptorFence(fd)

    @property
    def fence(self) -> Fence:
        return self._fence

    def wait(self, timeout_ns: int | None) -> bool:
        if self._fence.status(timeout_ns) is FenceStatus.ACTIVE:
            return False
        if (error := self._fence.error()) is not None:
            self.failure = NnapiError(code_of(error), str(error))
        return True

    def fence_fd(self) -> int:
        return os.dup(self._fence.fileno())

    def close(self) -> None:
        self._fence.close()


class Started(Ending):
    """*work* in a thread of its own; it raises `NnapiError` where it fails."""

    def __init__(self, work: Callable[[], object], *, fenced: bool) -> None:
        self._work, self._fenced = work, fenced
        self._done = EventFence()
        # A fence that nobody signals must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="penstock-nnapi", daemon=True)
        self._thread.start()

    @property
    def fence(self) -> Fence:
        return self._done

    def wait(self, timeout_ns: int | None) -> bool:
        return self._done.wait(timeout_ns)

    def fence_fd(self) -> int:
        if not self._fenced:
            return super().fence_fd()
        shared = as_descriptor(self._done)
        try:
            return os.dup(shared.fileno())
        finally:
            shared.close()

    def close(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except NnapiError as error:
            self.failure = error
        except BaseException as error:
            self.failure = NnapiError(ResultCode.OP_FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            failure = self.failure
            self._done.signal(None if failure is None else driver_error(failure))


def check_events(events: object) -> list[Event]:
    """A list of events; UNEXPECTED_NULL for None among them, BAD_DATA for what is none."""
    found = parameters.listed(events, "the dependencies")
    if any(event is None for event in found):
        raise unexpected_null("a dependency")
    listed = [event for event in found if isinstance(event, Event)]
    if len(listed) != len(found):
        raise bad_data("a dependency must be a penstock.nnapi.Event")
    return listed
