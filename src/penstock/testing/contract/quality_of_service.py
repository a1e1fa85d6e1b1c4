"""NNAPI's quality-of-service tests: deadlines and priorities, of preparing and of every way to
execute (section 5.4).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from penstock.errors import MissedDeadline
from penstock.hal import PRIORITIES, Device, ExecutionConfig, PrepareConfig
from penstock.testing.contract.cases import one_case, static_cases
from penstock.testing.contract.executors import EXECUTORS
from penstock.testing.contract.promise import Check, allowed, needs_values, require
from penstock.testing.contract.trial import PREPARE, Trial, compare, prepare

SHORT_NS: Final = 5_000_000
FAR_NS: Final = 600 * 10**9

SOON: Final[dict[str, Callable[[], int]]] = {
    "now": time.monotonic_ns,
    "in 5 ms": lambda: time.monotonic_ns() + SHORT_NS,
}
"""Deadlines that may be missed, made when they are needed."""
LATE: Final[dict[str, Callable[[], int | None]]] = {
    "never": lambda: None,
    "in 10 min": lambda: time.monotonic_ns() + FAR_NS,
}
"""Deadlines that may not."""


@needs_values
def check_prepare_by_a_deadline(device: Device) -> None:
    """QualityOfServiceTest: preparing is missed, `MissedDeadline*`, or what it makes is right; with
    time enough it is not missed.
    """
    for case in static_cases(device)[:3]:
        for name, deadline in SOON.items():
            with allowed(f"preparing by a deadline {name}", MissedDeadline):
                config = PrepareConfig(deadline_ns=deadline())
                with closing(prepare(device, case, config)) as prepared, Trial(case) as trial:
                    compare(device, case, trial.run(prepared), case.outputs, f"prepared {name}")
        for name, late in LATE.items():
            config = PrepareConfig(deadline_ns=late())
            with closing(prepare(device, case, config)) as prepared, Trial(case) as trial:
                compare(device, case, trial.run(prepared), case.outputs, f"prepared {name}")


@needs_values
def check_every_way_by_a_deadline(device: Device) -> None:
    """QualityOfServiceTest: an execution is missed, `MissedDeadline*`, or right; with time enough
    it is not missed.
    """
    case = one_case(device)
    with closing(prepare(device, case, PREPARE)) as prepared:
        for executor in EXECUTORS:
            for name, soon in SOON.items():
                what = f"{executor.name}, by a deadline {name}"
                with Trial(case) as trial, allowed(what, MissedDeadline):
                    config = ExecutionConfig(deadline_ns=soon())
                    result = executor.execute(prepared, trial.request, config)
                    compare(device, case, trial.outputs(result), case.outputs, what)
            for name, late in LATE.items():
                what = f"{executor.name}, by a deadline {name}"
                with Trial(case) as trial:
                    config = ExecutionConfig(deadline_ns=late())
                    result = executor.execute(prepared, trial.request, config)
                    compare(device, case, trial.outputs(result), case.outputs, what)


@needs_values
def check_every_way_at_every_priority(device: Device) -> None:
    """QualityOfServiceTest: priorities change no answer."""
    case = one_case(device)
    for prepared_at in PRIORITIES:
        config = PrepareConfig(priority=prepared_at)
        with closing(prepare(device, case, config)) as prepared:
            for executor in EXECUTORS:
                for priority in PRIORITIES:
                    what = f"{executor.name}, priority {priority}, prepared at {prepared_at}"
                    with Trial(case) as trial:
                        asked = ExecutionConfig(priority=priority)
                        result = executor.execute(prepared, trial.request, asked)
                        compare(device, case, trial.outputs(result), case.outputs, what)


def check_concurrency_is_a_count(device: Device) -> None:
    """How many executions it takes at a time: a whole number, 0 where that is the engine's own."""
    count: object = device.capabilities.concurrent_executions
    require(type(count) is int and count >= 0, f"{count!r} executions at a time")


CHECKS: Final[tuple[Check, ...]] = (
    check_prepare_by_a_deadline,
    check_every_way_by_a_deadline,
    check_every_way_at_every_priority,
    check_concurrency_is_a_count,
)
