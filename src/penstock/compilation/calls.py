"""Calls into drivers: whatever else a driver raises or returns becomes a `DriverError`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from penstock import knobs
from penstock.errors import (
    FOREIGN,
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadlinePersistent,
)
from penstock.hal import NO_CACHE_REPORT, CacheReport, Device, PrepareConfig, PreparedModel
from penstock.hal.device import is_isolated
from penstock.hal.prepared import retain_model
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionStep

log = Log(__name__)


def call_driver(device: Device, step: ExecutionStep, config: PrepareConfig) -> PreparedModel:
    """`prepare_model`; what breaks its contract is a `GeneralFailure` that names the device."""
    check_interrupts(config)
    own = config_of(step, config)
    return _checked(device, "prepare_model", lambda: device.prepare_model(step.model, own))


def config_of(step: ExecutionStep, config: PrepareConfig) -> PrepareConfig:
    """*config* with the step's own options, each once."""
    if not step.options:
        return config
    return replace(config, options=tuple(dict.fromkeys((*config.options, *step.options))))


def call_driver_from_cache(
    device: Device, config: PrepareConfig, step: ExecutionStep
) -> PreparedModel:
    """`prepare_model_from_cache`, likewise; an isolated driver is given the model to `retain`."""
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
    except (DriverError, Cancelled):
        raise
    except FOREIGN as error:
        raise GeneralFailure(f"device {device.name} failed in {method}: {error!r}") from error
    if not callable(getattr(prepared, "execute", None)):
        raise GeneralFailure(
            f"device {device.name} returned {type(prepared).__name__} from {method}, "
            "which is no prepared model"
        )
    return prepared  # type: ignore[no-any-return]  # as far as can be known of a driver's object


def concurrency_of(device: Device) -> int:
    """Most concurrent executions on *device*, or the knob's number; 0 for no limit."""
    try:
        told = getattr(device.capabilities, "concurrent_executions", 0)
    except FOREIGN as error:  # a driver may raise anything
        log.warning("device %s failed in capabilities: %r", device.name, error)
        told = 0
    return told if type(told) is int and told > 0 else knobs.concurrent_executions()


def is_simulated(device: Device) -> bool:
    """Whether *device* declares that it only simulates hardware. It may declare anything."""
    try:
        return getattr(device.capabilities, "simulated", False) is True
    except FOREIGN as error:  # a driver may raise anything
        log.warning("device %s failed in capabilities: %r", device.name, error)
        return False


def report_of(prepared: PreparedModel) -> CacheReport:
    """What the driver says of its cache files; a driver written without the member says nothing."""
    try:
        report = getattr(prepared, "cache_report", NO_CACHE_REPORT)
    except FOREIGN as error:  # a driver may raise anything
        log.warning("a driver failed in cache_report: %r", error)
        return NO_CACHE_REPORT
    return report if isinstance(report, CacheReport) else NO_CACHE_REPORT


def check_interrupts(config: PrepareConfig) -> None:
    """Raises once the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise MissedDeadlinePersistent(
            "the compile's timeout had passed before every step was compiled"
        )


def describe(error: BaseException) -> str:
    """An error in one line, with its class. No byte of it may command a terminal."""
    return f"{type(error).__name__}: {in_one_line(error)}"


def in_one_line(error: BaseException) -> str:
    r"""What *error* says, in one line, its control characters as escapes: ESC as `\x1b`."""
    text = " ".join(str(error).split())
    if text.isprintable():
        return text
    # A process that isolates no driver has no other use for this package.
    from penstock.logs import printable

    return printable(text)
