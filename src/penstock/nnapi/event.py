"""`Event`: the end of a started execution, or a sync fence."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from penstock.closing import Closing
from penstock.hal.fence import DescriptorFence, EventFence, Fence, FenceStatus, as_descriptor
from penstock.nnapi import codes, parameters


class Event(Closing):
    """The completion of a run or fence: `ANeuralNetworksEvent` (NNAPI section 7.2).

    It ends once, with success or a result code. Created by `Execution.start_compute`,
    `Execution.start_compute_with_dependencies` and `create_from_sync_fence_fd`.
    """

    def __init__(self, fence: Fence) -> None:
        self._fence, self._closed = fence, False
        self._failure: codes.NnapiError | None = None

    @staticmethod
    def create_from_sync_fence_fd(sync_fence_fd: int) -> Event:
        """The event of a sync fence.

        The fence is a descriptor that `poll` reports as readable once it is signalled, and in error
        if it failed. The descriptor is duplicated. Raises BAD_DATA for a negative descriptor and
        one that is not open.
        """
        number = parameters.whole(sync_fence_fd, "the sync fence", -(2**31), 2**31 - 1)
        if number < 0:
            raise codes.bad_data(f"{number} is no file descriptor")
        with codes.translated():
            return ForeignFence(DescriptorFence(number))

    def wait(self) -> None:
        """Waits for completion.

        Raises the `NnapiError` of a failed execution, at each call; OP_FAILED for a fence that
        failed without a code.
        """
        failure = self.outcome(None)
        if failure is not None:
            raise failure

    @property
    def fence(self) -> Fence:
        """The fence that is signalled on completion, for runs that wait for it."""
        self._check_open()
        return self._fence

    def outcome(self, timeout_ns: int | None) -> codes.NnapiError | None:
        """The error that `wait` raises. Raises `TimeoutError` after *timeout_ns*."""
        self._check_open()
        if not self._ends(timeout_ns):
            raise TimeoutError("the event has not ended yet")
        failure = self._failure
        return None if failure is None else codes.NnapiError(failure.code, failure.message)

    def get_sync_fence_fd(self) -> int:
        """A descriptor that `poll` reports as readable after completion; the caller closes it.

        `create_from_sync_fence_fd` makes an event of it in any process, which also reports a
        failure. Raises BAD_DATA unless the execution was started with dependencies, or the event
        was made from such a descriptor.
        """
        self._check_open()
        return self._fence_fd()

    def close(self) -> None:
        """Waits for an execution in flight and frees the event. A second call has no effect."""
        if not self._closed:
            self._closed = True
            self._free()

    def _check_open(self) -> None:
        if self._closed:
            raise codes.bad_state("the event is closed")

    def _ends(self, timeout_ns: int | None) -> bool:
        """Whether it completes within *timeout_ns*; None waits without limit."""
        raise NotImplementedError

    def _fence_fd(self) -> int:
        """A new descriptor of its fence."""
        raise NotImplementedError

    def _free(self) -> None:
        """Frees its resources."""
        raise NotImplementedError


class ForeignFence(Event):
    """The event of a sync fence."""

    _fence: DescriptorFence

    def _ends(self, timeout_ns: int | None) -> bool:
        if self._fence.status(timeout_ns) is FenceStatus.ACTIVE:
            return False
        if (error := self._fence.error()) is not None:
            self._failure = codes.NnapiError(codes.code_of(error), str(error))
        return True

    def _fence_fd(self) -> int:
        return os.dup(self._fence.fileno())

    def _free(self) -> None:
        self._fence.close()


class Started(Event):
    """Runs *work* in a new thread. *work* raises `NnapiError` if it fails."""

    _fence: EventFence

    def __init__(self, work: Callable[[], object], *, fenced: bool) -> None:
        super().__init__(EventFence())
        self._work, self._fenced = work, fenced
        # A thread that waits for an unsignalled fence must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="penstock-nnapi", daemon=True)
        self._thread.start()

    def _ends(self, timeout_ns: int | None) -> bool:
        return self._fence.wait(timeout_ns)

    def _fence_fd(self) -> int:
        if not self._fenced:
            raise codes.bad_data(
                "the event has no sync fence: only executions with dependencies have one"
            )
        shared = as_descriptor(self._fence)
        try:
            return os.dup(shared.fileno())
        finally:
            shared.close()

    def _free(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except codes.NnapiError as error:
            self._failure = error
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            self._failure = codes.NnapiError(codes.ResultCode.OP_FAILED, text)
            raise
        finally:
            failure = self._failure
            self._fence.signal(None if failure is None else codes.driver_error(failure))


def check_events(events: object) -> list[Event]:
    """The events of a list. Raises UNEXPECTED_NULL for None, BAD_DATA for other objects."""
    found = parameters.listed(events, "the dependencies", "a dependency")
    listed = [event for event in found if isinstance(event, Event)]
    if len(listed) != len(found):
        raise codes.bad_data("a dependency must be a penstock.nnapi.Event")
    return listed
