"""`python -m penstock.testing contract DRIVER [--json] [--limit SECONDS]`.

The checks run in a process of their own: a driver that hangs or crashes fails that check, and the
next one finds a new process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.errors import PlacementError, counted
from penstock.hal import Device
from penstock.testing.contract.promise import Check, rule_of
from penstock.testing.contract.runner import (
    SUITES,
    CheckResult,
    Report,
    every_check,
    reading,
    run_check,
)
from penstock.testing.devices import usable_devices
from penstock.testing.supervised import Case, supervise

LIMIT: Final = 60.0
"""Seconds that one check may take."""

MOSTLY: Final = 0.75
"""Of all checks: where so many are not covered the last line says why."""
SHOWN_REASONS: Final = 2

USABLE: Final = "check_works_here"
MAKER: Final = f"{__name__}:cases"


def run(
    driver: str, *, limit: float = LIMIT, progress: Callable[[CheckResult], None] | None = None
) -> list[CheckResult]:
    """Every check on every device of *driver* that can work here, in order.

    Raises `GeneralFailure` where there is no such driver or device, or none that can work here.
    """
    rules = {check.__name__: rule_of(check) for checks in SUITES.values() for check in checks}
    results = []
    for answer in supervise(MAKER, [driver], limit=limit):
        if answer.data is not None:
            result = msgspec.msgpack.decode(answer.data, type=CheckResult)
        else:
            device, suite, check = answer.label.split("\t")
            result = CheckResult(
                suite,
                check,
                "failed",
                answer.problem,
                answer.seconds,
                device,
                rules[check],
                reading(suite),
            )
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def cases(driver: str) -> list[Case]:
    """Every check on every usable device, as the process that runs them wants them."""
    devices, unusable = usable_devices(driver)
    if not devices:
        raise PlacementError("; ".join(sentence for _, sentence in unusable))
    made: list[Case] = []
    for name, reason in unusable:
        result = CheckResult("support", USABLE, "not_covered", reason, 0.0, name)
        made.append((f"{name}\tsupport\t{USABLE}", partial(msgspec.msgpack.encode, result)))
    for device in devices:
        for suite, check in every_check():
            label = f"{device.name}\t{suite}\t{check.__name__}"
            made.append((label, partial(_answer, device, check, suite)))
        # The last check of a device is where it is closed.
        label, last = made[-1]
        made[-1] = label, partial(_closing, device, last)
    return made


def _answer(device: Device, check: Check, suite: str) -> bytes:
    return msgspec.msgpack.encode(run_check(device, check, suite))


def _closing(device: Device, answer: Callable[[], bytes]) -> bytes:
    data = answer()
    device.close()
    return data


def show(result: CheckResult) -> str:
    """The lines of *result* in a table: one, and for a failure the rule, what was seen, and where
    to read.
    """
    word = {"passed": "ok", "failed": "FAILED", "not_covered": "-"}[result.outcome]
    line = f"{result.suite:16} {result.check:56} {word:7} {result.seconds * 1e3:8.1f} ms"
    if result.outcome == "not_covered":
        return f"{line}  {result.message}"
    if result.outcome == "passed":
        return line
    about = (("rule", result.rule), ("seen", result.message), ("read", result.read))
    return "\n".join([line, *(f"    {label}: {text}" for label, text in about if text)])


def summary(driver: str, report: Report, results: Sequence[CheckResult]) -> str:
    """The last line of a table. Where so few checks could be tried that their success says little,
    it says why.
    """
    counts = f"{report.passed} passed, {report.failed} failed, {report.not_covered} not covered"
    if report.not_covered < MOSTLY * len(results):
        return f"{driver}: {counts}"
    reasons = Counter(r.message for r in results if r.outcome == "not_covered")
    why = ", ".join(
        f"{reason} ({counted(n, 'check')})" for reason, n in reasons.most_common(SHOWN_REASONS)
    )
    return f"{driver}: {counts}; most was not tried: {why}"
