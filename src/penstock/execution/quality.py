"""What a caller asks of one run beside its values: time, priority, measuring (NNAPI section 7.3)."""

from __future__ import annotations

import math
import time

from msgspec.structs import replace

from penstock.errors import InputError
from penstock.execution.variant import deadline_of, is_number
from penstock.hal import (
    MAXIMUM_LOOP_TIMEOUT_NS,
    PRIORITIES,
    CancelToken,
    ExecutionConfig,
    Priority,
)


def execution_config(
    plain: ExecutionConfig,
    timeout: float | None,
    cancel: CancelToken | None,
    measure: bool,
    priority: Priority | None,
    loop_timeout: float | None,
) -> ExecutionConfig:
    """*plain* with what the caller asks for; times are in seconds.

    Raises `InputError` for what makes no sense, `MissedDeadlinePersistent` where *timeout* leaves no time.
    """
    if measure is not False and measure is not True:
        raise InputError(f"measure must be true or false, not {measure!r}")
    if cancel is not None and not isinstance(cancel, CancelToken):
        raise InputError(f"cancel must be a CancelToken, not {type(cancel).__name__}")
    if priority is None:
        priority = plain.priority
    elif priority not in PRIORITIES:
        raise InputError(f"priority {priority!r} is not one of {', '.join(PRIORITIES)}")
    return replace(
        plain,
        deadline_ns=deadline_of(timeout, time.monotonic_ns()),
        measure=measure,
        cancel=cancel,
        priority=priority,
        loop_timeout_ns=_loop_timeout(loop_timeout, plain.loop_timeout_ns),
    )


def _loop_timeout(seconds: object, default: int) -> int:
    """Nanoseconds, no more than a driver may be asked to wait."""
    if seconds is None:
        return default
    if not is_number(seconds) or seconds <= 0:
        raise InputError(f"loop_timeout must be a number of seconds above 0, not {seconds!r}")
    if math.isinf(seconds):
        return MAXIMUM_LOOP_TIMEOUT_NS
    return min(int(seconds * 1e9), MAXIMUM_LOOP_TIMEOUT_NS)
