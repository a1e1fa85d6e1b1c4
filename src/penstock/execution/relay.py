"""Fenced runs on device buffers: a driver gets a run behind the fences of other runs' drivers.

A run that waits for another one need not wait until the host has seen it end: where both are on one
device, the device keeps their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock import hal
from penstock.errors import FOREIGN, Cancelled, DriverError, GeneralFailure, MissedDeadlineTransient
from penstock.hal.fence import is_fence, signals_in_time
from penstock.hal.prepared import await_fences

if TYPE_CHECKING:
    from penstock.compilation.prepared import PreparedStep


class RunFence(hal.EventFence):
    """The fence of a run. While the run is under way, the fence of a driver may stand for it."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = hal.EventFence()
        self._driver: hal.Fence | None = None

    def launch(self, fence: hal.Fence) -> None:
        """Makes *fence* stand for the run: when it signals, all outputs are written."""
        self._driver = fence
        self._begun.signal()

    def signal(self, error: DriverError | None = None) -> None:
        super().signal(error)
        self._begun.signal()

    def driver_fence(self, config: hal.ExecutionConfig) -> hal.Fence | None:
        """The fence of a driver that stands for the run, once there is one; None if the run has
        ended. Raises `MissedDeadlineTransient`, `Cancelled`.
        """
        if not signals_in_time(self._begun, config):
            raise MissedDeadlineTransient("a fence did not signal before the deadline")
        return None if self.wait(0) else self._driver


class CallersFenceFailed(Exception):
    """A fence of the caller failed. No fallback device may run the step."""

    def __init__(self, error: DriverError) -> None:
        super().__init__(str(error))
        self.error = error


class Relay:
    """Launches the only step of a run behind the fences of drivers that stand for *wait_for*.

    *launched* is called with the driver's fence if all outputs of the run lie in its device's
    memory. `notes` are for the receipt.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self, wait_for: Sequence[hal.Fence], launched: Callable[[hal.Fence], None] | None = None
    ) -> None:
        self._wait_for, self._launched = wait_for, launched
        self._drivers = list[hal.Fence]()

    def await_others(self, config: hal.ExecutionConfig) -> None:
        """Waits for every fence that no fence of a driver stands for, and for the launch of the
        others. Raises as `await_fences`.
        """
        for fence in self._wait_for:
            driver = fence.driver_fence(config) if isinstance(fence, RunFence) else None
            if driver is None:
                await_fences([fence], config)
            else:
                self._drivers.append(driver)

    def await_drivers(self, config: hal.ExecutionConfig) -> None:
        """Waits for the fences of drivers, before the host reads memory of the device."""
        await_fences(self._drivers, config)

    def execute(
        self,
        prepared: PreparedStep,
        request: hal.Request,
        config: hal.ExecutionConfig,
        written: Callable[[], None] | None,
    ) -> hal.ExecutionResult:
        """Executes *request* behind the fences. *written* is called at the launch if all outputs
        are in the device's memory. Raises as `execute`, and `CallersFenceFailed`.
        """
        name = prepared.device.name
        try:
            fence = prepared.prepared.execute_fenced(request, self._drivers, config)
            if not is_fence(fence):
                raise GeneralFailure(f"execute_fenced returned {type(fence).__name__}")
        except (DriverError, Cancelled):
            self.check(config)
            raise
        except FOREIGN as error:
            text = f"device {name} failed in execute_fenced: {error!r}"
            raise GeneralFailure(text) from error
        if self._drivers:
            self.notes = (f"device {name} got the run before those that it waits for had ended",)
        if written is not None:
            written()
            if self._launched is not None:
                self._launched(fence)
        if not signals_in_time(fence, config):
            raise MissedDeadlineTransient("a driver's fence did not signal before the deadline")
        result = result_of(fence)
        if (failure := fence.error()) is not None:
            failure.copies = result.copies
            self.check(config)
            raise failure
        return result

    def check(self, config: hal.ExecutionConfig) -> None:
        """Waits for the caller's fences. Raises `CallersFenceFailed` if one of them failed."""
        try:
            await_fences(self._wait_for, config)
        except GeneralFailure as error:
            raise CallersFenceFailed(error) from error


def result_of(fence: hal.Fence) -> hal.ExecutionResult:
    """What a driver's fence tells of its run, once it has signalled."""
    from penstock.ipc.codec import driver_copies
    from penstock.ipc.pools import RemoteFence

    if isinstance(fence, RemoteFence):
        return fence.result
    copies = driver_copies(fence)
    return hal.ExecutionResult(copies=copies) if copies else hal.DONE
