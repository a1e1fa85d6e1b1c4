"""What a caller asks of one run beside its values: time, priority, measuring (NNAPI section 7.3)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.arguments import LONGEST_SECONDS, check_kind, deadline_of, is_number
from penstock.errors import InputError, InvalidArgument
from penstock.hal import (
    PRIORITIES,
    CancelToken,
    ExecutionConfig,
    ExtensionAttribute,
    Priority,
)
from penstock.hal.extensions import check_attributes


def execution_config(
    plain: ExecutionConfig,
    timeout: float | None,
    cancel: CancelToken | None,
    measure: bool,
    priority: Priority | None,
    loop_timeout: float | None,
    extension_attributes: Sequence[ExtensionAttribute] = (),
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
        attributes=checked_attributes(extension_attributes),
    )


def checked_attributes(attributes: Sequence[ExtensionAttribute]) -> tuple[ExtensionAttribute, ...]:
    """*attributes* as drivers get them; `InputError` for what no driver need look at."""
    check_kind(
        attributes,
        (tuple, list),
        "extension_attributes is a list of penstock.hal.ExtensionAttribute",
    )
    if attributes:
        try:
            check_attributes(attributes)
        except InvalidArgument as error:
            raise InputError(f"extension_attributes: {error}") from None
    return tuple(attributes)


def _loop_timeout(seconds: object, default: int | None) -> int | None:
    """Nanoseconds; None where only the run's deadline and its cancellation end a loop."""
    if seconds is None:
        return default
    if not is_number(seconds) or seconds <= 0:
        raise InputError(f"loop_timeout must be a number of seconds above 0, not {seconds!r}")
    return int(seconds * 1e9) if seconds <= LONGEST_SECONDS else None
