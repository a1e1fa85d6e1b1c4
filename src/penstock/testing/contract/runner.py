"""Runs the contract suites on a device, in this process or in a child that may hang or crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final

from msgspec import Struct, json, msgpack

from penstock.errors import FOREIGN, InputError, counted
from penstock.hal import Device
from penstock.hal.loading import is_device
from penstock.testing.contract import (
    bursts,
    caching,
    caching_security,
    execute,
    executors,
    extensions,
    memory,
    memory_domain_runs,
    memory_kinds,
    prepare,
    promise,
    support,
)
from penstock.testing.contract.sharing import SharedModels
from penstock.testing.devices import some_usable_devices
from penstock.testing.supervised import Case, collect

_SUITES: Final[Mapping[str, promise.Suite]] = {
    suite.name: suite
    for suite in (
        support.SUITE,
        prepare.SUITE,
        caching.SUITE,
        caching_security.SUITE,
        memory.SUITE,
        memory_kinds.SUITE,
        memory_domain_runs.SUITE,
        execute.SUITE,
        bursts.BURST,
        bursts.FENCED,
        executors.GENERATED,
        executors.QUALITY,
        extensions.SUITE,
        prepare.LIFETIME,
    )
}

SUITES: Final[Mapping[str, tuple[promise.Check, ...]]] = MappingProxyType(
    {name: suite.checks for name, suite in _SUITES.items()}
)
"""Every check, by suite, in the order in which they run."""

CHECKS: Final[tuple[promise.Check, ...]] = tuple(c for checks in SUITES.values() for c in checks)

SHARING: Final = frozenset(c for suite in _SUITES.values() if suite.shares for c in suite.checks)
"""The checks that only execute. They share prepared models within a block of `SharedModels`."""

LIMIT: Final = 60.0
"""Time limit of one check in the command, in seconds."""
MOSTLY: Final = 0.75
"""If at least this share of the checks is not covered, the last line says why."""
SHOWN_REASONS: Final = 2
USABLE: Final = "check_works_here"
MAKER: Final = f"{__name__}:cases"


class CheckResult(Struct, frozen=True):
    """The result of one check on *device*.

    *message* says why it failed or was not covered. *rule* is the promise in a sentence, *read*
    where it is explained.
    """

    suite: str
    check: str
    outcome: promise.Outcome
    message: str
    seconds: float
    device: str = ""
    rule: str = ""
    read: str = ""

    @property
    def label(self) -> str:
        """The first two columns of a table."""
        return f"{self.suite:16} {self.check:56}"


def reading(suite: str) -> str:
    """Where the rules of *suite* are explained; empty for a suite outside this package."""
    return _SUITES[suite].reading if suite in _SUITES else ""


def computes(device: Device) -> bool:
    """Whether *device* claims any cost. If not, checks assume that it computes nothing."""
    if not is_device(device):
        raise InputError(f"a Device is asked, not {type(device).__name__}")
    claims = device.capabilities
    return bool(claims.performance) or claims.default_performance is not None


def run_check(
    device: Device, check: promise.Check, suite: str = "", *, limit: float | None = None
) -> CheckResult:
    """Runs one check and returns its outcome; raises nothing.

    With a *limit* in seconds the check runs in a new thread, and fails when it exceeds the limit.
    That thread keeps running. Only the command can stop a driver that holds the interpreter,
    because it runs each driver in a process.
    """
    began = time.perf_counter()
    found: list[tuple[promise.Outcome, str]] = []
    if limit is None:
        found.append(promise.judge(partial(_try, device, check)))
    else:
        thread = threading.Thread(
            target=lambda: found.append(promise.judge(partial(_try, device, check))),
            name=check.__name__,
            daemon=True,
        )
        thread.start()
        thread.join(limit)
    outcome, message = found[0] if found else ("failed", f"it did not end within {limit:g} s")
    seconds = time.perf_counter() - began
    name, rule = _name_of(device), promise.rule_of(check)
    return CheckResult(suite, check.__name__, outcome, message, seconds, name, rule, reading(suite))


def _try(device: Device, check: promise.Check) -> None:
    if check.__name__ in promise.VALUE_CHECKS and not computes(device):
        raise promise.NotCovered("the device claims no performance and computes nothing")
    check(device)


def _name_of(device: Device) -> str:
    try:
        return str(device.name)
    except FOREIGN as error:  # a check says what is wrong with the name
        return f"({promise.describe(error)})"


def run_contract(
    device: Device,
    *,
    progress: Callable[[CheckResult], None] | None = None,
    limit: float | None = None,
) -> list[CheckResult]:
    """Runs every check of every suite on *device*, in order. Calls *progress* with each result.

    *limit* is the limit of `run_check` for each check. Checks that only execute share prepared
    models, up to the next failure.
    """
    results = []
    shared = SharedModels(device)
    try:
        for suite, check in every_check():
            result = _checked(shared, check, suite, limit)
            results.append(result)
            if progress is not None:
                progress(result)
    finally:
        _close(shared)
    return results


def _checked(
    shared: SharedModels, check: promise.Check, suite: str, limit: float | None = None
) -> CheckResult:
    """As `run_check`. After a failure the next check prepares anew."""
    result = run_check(shared.device, check, suite, limit=limit)
    if result.outcome == "failed":
        shared.forget()
    return result


def _close(shared: SharedModels) -> None:
    """Closes the models. The suite `lifetime` reports a `close` that fails."""
    with suppress(*FOREIGN):
        shared.close()


def every_check() -> Iterator[tuple[str, promise.Check]]:
    """(suite, check) for every check."""
    return ((suite, check) for suite, checks in SUITES.items() for check in checks)


def run(
    driver: str, *, limit: float = LIMIT, progress: Callable[[CheckResult], None] | None = None
) -> list[CheckResult]:
    """Runs every check on every usable device of *driver*, in order, in a separate process.

    Raises `GeneralFailure` if the driver or device does not exist, or no device is usable.
    """
    return collect(MAKER, [driver], CheckResult, limit=limit, progress=progress)


def cases(driver: str) -> list[Case]:
    """Every check on every usable device, for the process that runs them."""
    devices, unusable = some_usable_devices(driver)
    made: list[Case] = []
    for name, reason in unusable:
        result = CheckResult("support", USABLE, "not_covered", reason, 0.0, name)
        made.append((json.encode(result).decode(), partial(msgpack.encode, result)))
    for device in devices:
        shared = SharedModels(device)
        for suite, check in every_check():
            name, rule = check.__name__, promise.rule_of(check)
            lost = CheckResult(suite, name, "failed", "", 0.0, device.name, rule, reading(suite))
            made.append((json.encode(lost).decode(), partial(_answer, shared, check, suite)))
        # The last check of a device closes it.
        label, last = made[-1]
        made[-1] = label, partial(_closing, shared, last)
    return made


def _answer(shared: SharedModels, check: promise.Check, suite: str) -> bytes:
    return msgpack.encode(_checked(shared, check, suite))


def _closing(shared: SharedModels, answer: Callable[[], bytes]) -> bytes:
    data = answer()
    _close(shared)
    shared.device.close()
    return data


def summary(driver: str, results: Sequence[CheckResult]) -> str:
    """The last line of a table. If few checks were covered, it says why."""
    report = promise.Report.of(results)
    line = report.summary(driver)
    if report.not_covered < MOSTLY * len(results):
        return line
    most = islice(report.not_covered_reasons.items(), SHOWN_REASONS)
    why = ", ".join(f"{reason} ({counted(n, 'check')})" for reason, n in most)
    return f"{line}; most was not tried: {why}"
