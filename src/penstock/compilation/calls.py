"""Calls into drivers, and the token that cancels those of a compile in the background.

What the HAL does not allow becomes a `DriverError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from penstock import errors, knobs
from penstock.compilation.step_receipt import CacheOutcome, StepReceipt
from penstock.hal import (
    NO_CACHE_REPORT,
    CacheReport,
    CancelToken,
    Device,
    PrepareConfig,
    PreparedModel,
)
from penstock.hal.device import is_isolated
from penstock.hal.prepared import retain_model
from penstock.interrupts import LATE
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionStep

log = Log(__name__)


def call_driver(device: Device, step: ExecutionStep, config: PrepareConfig) -> PreparedModel:
    """Calls `prepare_model`. A breach of its contract raises `GeneralFailure`."""
    check_interrupts(config)
    own = config_of(step, config)
    return _checked(device, "prepare_model", lambda: device.prepare_model(step.model, own))


def config_of(step: ExecutionStep, config: PrepareConfig) -> PrepareConfig:
    """*config* with the step's own options added; no option appears twice."""
    if not step.options:
        return config
    return replace(config, options=tuple(dict.fromkeys((*config.options, *step.options))))


def call_driver_from_cache(
    device: Device, config: PrepareConfig, step: ExecutionStep
) -> PreparedModel:
    """Calls `prepare_model_from_cache`. An isolated driver also receives the model to `retain`."""
    check_interrupts(config)
    prepared = _checked(
        device, "prepare_model_from_cache", lambda: device.prepare_model_from_cache(config)
    )
    if is_isolated(device):
        retain_model(prepared, step.model)
    return prepared


def _checked(device: Device, method: str, call: Callable[[], Any]) -> PreparedModel:
    try:
        prepared = call()
    except (errors.DriverError, errors.Cancelled):
        raise
    except errors.FOREIGN as error:
        text = f"device {device.name} failed in {method}: {error!r}"
        raise errors.GeneralFailure(text) from error
    if not callable(getattr(prepared, "execute", None)):
        what = f"{type(prepared).__name__} from {method}, which is no prepared model"
        raise errors.GeneralFailure(f"device {device.name} returned {what}")
    return prepared  # type: ignore[no-any-return]  # not verifiable for a driver's object


def concurrency_of(device: Device) -> int:
    """The number of concurrent executions that *device* or the knob allows; 0 for no limit."""
    try:
        claimed = getattr(device.capabilities, "concurrent_executions", 0)
    except errors.FOREIGN as error:  # a driver may raise anything
        log.warning("device %s failed in capabilities: %r", device.name, error)
        claimed = 0
    return claimed if type(claimed) is int and claimed > 0 else knobs.concurrent_executions()


def is_simulated(device: Device) -> bool:
    """Whether *device* declares that it simulates hardware. False if the declaration is invalid."""
    try:
        return getattr(device.capabilities, "simulated", False) is True
    except errors.FOREIGN as error:  # a driver may raise anything
        log.warning("device %s failed in capabilities: %r", device.name, error)
        return False


def receipt_of(
    step: ExecutionStep, device: Device, began: int, outcome: CacheOutcome, **more: Any
) -> StepReceipt:
    """The receipt of *step*, compiled by *device* since *began*; *more* are further fields."""
    return StepReceipt(
        device.name,
        step.operations,
        time.perf_counter_ns() - began,
        cache=outcome,
        step=step.index,
        start_ns=began,
        simulated=is_simulated(device),
        **more,
    )


def report_of(prepared: PreparedModel) -> CacheReport:
    """The driver's report on its cache files; an empty report if the driver has no such member."""
    try:
        report = getattr(prepared, "cache_report", NO_CACHE_REPORT)
    except errors.FOREIGN as error:  # a driver may raise anything
        log.warning("a driver failed in cache_report: %r", error)
        return NO_CACHE_REPORT
    return report if isinstance(report, CacheReport) else NO_CACHE_REPORT


def check_interrupts(config: PrepareConfig) -> None:
    """Raises if the token of *config* is set or its deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise errors.MissedDeadlinePersistent(LATE)


def describe(error: BaseException) -> str:
    """*error* in one line, with its class. Control characters are escaped."""
    return f"{type(error).__name__}: {in_one_line(error)}"


def in_one_line(error: BaseException) -> str:
    r"""The message of *error* in one line. Control characters are escaped, ESC as `\x1b`."""
    text = " ".join(str(error).split())
    if text.isprintable():
        return text
    # Imported here because a process without isolated drivers needs nothing else of this package.
    from penstock.logs import printable

    return printable(text)


class BackgroundToken(CancelToken):
    """The cancel token of a compile in the background."""

    def while_waiting(self) -> CancelToken:
        """The token for waits, in which nothing is lost: the end of the program also sets it."""
        return _EndOfProgram(self)


class _EndOfProgram(CancelToken):
    def __init__(self, given: CancelToken) -> None:
        super().__init__()
        self._given = given

    def is_set(self) -> bool:
        return self._given.is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        if self.is_set():
            raise errors.Cancelled("the compile in the background is no longer wanted")


def token_while_waiting(cancel: CancelToken | None) -> CancelToken | None:
    """The token of a compile's waits for other processes; *cancel* is the token of that compile."""
    return cancel.while_waiting() if isinstance(cancel, BackgroundToken) else cancel
