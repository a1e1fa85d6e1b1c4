"""Runs that end with their submit: fences that signal once the device has ended the work.

The queue of a device keeps the order of its work. So a run that waits for the fence of another one
in the same queue is submitted at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from penstock.driverkit.engine import POLL_SECONDS, Limits, check_limits
from penstock.drivers.webgpu.watchdog import LOOK_SECONDS
from penstock.errors import Cancelled, DeadObject, DriverError, GeneralFailure
from penstock.hal.fence import DescriptorFence, Fence, FenceSignal, fence_pair, identity_of

if TYPE_CHECKING:
    from penstock.drivers.webgpu.engine import Gpu

MARK_BYTES: Final = 4
"""Bytes of the buffer that the last command of a launch writes."""

Submits: TypeAlias = Callable[[Any], None]
"""Submits work whose last command writes the given buffer."""


class Launch(Struct, eq=False):
    """Work in the queue of a device. *fence* signals its end, and fails if a launch that it is
    *behind* does, or at the limits of *config*.

    *ended* is set when *buffer*, which the work writes last, is mapped by *promise*. *turn* is its
    turn on the device.
    """

    fence: DescriptorFence
    signal: FenceSignal
    identity: tuple[int, int] | None
    buffer: Any
    promise: Any
    ended: threading.Event
    config: Limits
    behind: Sequence[Launch]
    seconds: float
    began_ns: int
    learn: Callable[[int], None]
    turn: ExitStack
    error: DriverError | None = None
    has_signalled: bool = False

    @property
    def has_limits(self) -> bool:
        return self.config.cancel is not None or self.config.deadline_ns is not None

    def finish(self, error: DriverError | None) -> None:
        """Signals the fence. A second call does nothing."""
        if not self.has_signalled:
            self.has_signalled, self.error = True, error
            self.signal.signal(error)


class Launches:
    """The launches in the queue of *gpu* that have not ended. Thread-safe.

    A thread, which sleeps while there are none, signals their fences.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._changed = threading.Condition()
        self._pending = list[Launch]()
        self._marks = list[Any]()
        self._thread: threading.Thread | None = None
        self._ended_ns = 0

    @property
    def seconds(self) -> float:
        """The most that the work in the queue may still take."""
        return sum(launch.seconds for launch in list(self._pending))

    def find(self, fence: Fence) -> Launch | None:
        """The launch whose fence *fence* is, in this process or by descriptor, if it has neither
        ended nor failed.
        """
        if not self._pending:
            return None
        identity = identity_of(fence)
        for launch in list(self._pending):
            same = launch.fence is fence or (identity is not None and launch.identity == identity)
            if same and not launch.has_signalled:
                return launch
        return None

    def launch(
        self,
        submit: Submits,
        seconds: float,
        config: Limits,
        behind: Sequence[Launch],
        learn: Callable[[int], None],
    ) -> DescriptorFence:
        """The fence of the work of *submit*, which may take so many *seconds* once it begins.

        *learn* is called with the nanoseconds that it took.
        """
        signal, fence = fence_pair()
        gpu, whole = self._gpu, seconds + self.seconds
        with ExitStack() as turn:
            turn.enter_context(gpu.turns.run())
            mark = self._mark()
            with gpu.watchdog.watching(whole) as work:
                submit(mark)
                promise = mark.map_async("READ")
                # The event of a promise is the only way to wait with a limit.
                work.ended, work.buffer = promise._thread_event, mark  # noqa: SLF001
            launch = Launch(
                fence, signal, identity_of(fence), mark, promise, work.ended, config, behind,
                seconds, perf_counter_ns(), learn, turn.pop_all(),
            )  # fmt: skip
        with self._changed:
            self._pending.append(launch)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="penstock-webgpu-fences", daemon=True
                )
                self._thread.start()
        return fence

    def _mark(self) -> Any:
        import wgpu

        with suppress(IndexError):
            return self._marks.pop()
        usage = wgpu.BufferUsage
        return self._gpu.buffer(MARK_BYTES, usage.MAP_READ | usage.COPY_DST)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._gpu.lost and not self._pending:
                    self._thread = None
                    return
                self._changed.wait_for(lambda: self._pending)
                pending = list(self._pending)
            limited = any(launch.has_limits for launch in pending)
            if pending[0].ended.wait(POLL_SECONDS if limited else LOOK_SECONDS):
                self._end(pending[0])
            elif self._gpu.lost:
                for launch in pending:
                    self._end(launch)
            for launch in pending if limited else ():
                self._check(launch)

    def _check(self, launch: Launch) -> None:
        """Fails the fence at the limits of its run. The work goes on, and stays watched."""
        try:
            check_limits(launch.config)
        except DriverError as error:
            launch.finish(error)
        except Cancelled as error:
            launch.finish(GeneralFailure(str(error)))

    def _end(self, launch: Launch) -> None:
        error: DriverError | None = None
        if launch.ended.is_set():
            try:
                launch.promise.sync_wait()
                launch.buffer.unmap()
                self._marks.append(launch.buffer)
            except Exception as failure:  # noqa: BLE001  # wgpu raises errors of several classes
                with suppress(DeadObject):
                    self._gpu.lose(f"{type(failure).__name__}: {failure}")
        if self._gpu.lost:
            error = DeadObject(self._gpu.lost)
        first = next((other.error for other in launch.behind if other.error is not None), None)
        if error is None and first is not None:
            error = GeneralFailure(f"a fence this execution waits for failed: {first}")
        now = perf_counter_ns()
        if error is None:
            launch.learn(now - max(launch.began_ns, self._ended_ns))
        self._ended_ns = now
        launch.turn.close()
        # `find` knows it until its fence has signalled.
        launch.finish(error)
        with self._changed:
            self._pending.remove(launch)
