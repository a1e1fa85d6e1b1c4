"""Running the contract suites on a device and reporting what came out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.errors import FOREIGN, InputError
from penstock.hal import Device
from penstock.hal.loading import is_device
from penstock.testing.contract import (
    burst,
    caching,
    caching_security,
    execute,
    extensions,
    fenced,
    generated,
    lifetime,
    memory,
    memory_domains,
    memory_kinds,
    prepare,
    quality_of_service,
    support,
)
from penstock.testing.contract.promise import (
    VALUE_CHECKS,
    Check,
    NotCovered,
    describe,
    rule_of,
)

Outcome: TypeAlias = Literal["passed", "failed", "not_covered"]

SUITES: Final[Mapping[str, tuple[Check, ...]]] = MappingProxyType(
    {
        "support": support.CHECKS,
        "prepare": prepare.CHECKS,
        "caching": caching.CHECKS,
        "caching_security": caching_security.CHECKS,
        "memory": memory.CHECKS,
        "memory_kinds": memory_kinds.CHECKS,
        "memory_domains": memory_domains.CHECKS,
        "execute": execute.CHECKS,
        "burst": burst.CHECKS,
        "fenced": fenced.CHECKS,
        "generated": generated.CHECKS,
        "quality": quality_of_service.CHECKS,
        "extensions": extensions.CHECKS,
        "lifetime": lifetime.CHECKS,
    }
)
"""Every check, by suite, in the order in which they run."""

CHECKS: Final[tuple[Check, ...]] = tuple(c for checks in SUITES.values() for c in checks)


PAGE: Final = "docs/writing-a-driver.md"
READING: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "support": ("saying-no-with-a-reason", "Device.supported_operations"),
        "prepare": ("preparing", "Device.prepare_model"),
        "caching": ("caching", "Device.prepare_model_from_cache"),
        "caching_security": ("caching", "Device.prepare_model_from_cache"),
        "memory": ("memory", "Buffer"),
        "memory_kinds": ("memory", "Memory"),
        "memory_domains": ("memory", "Device.allocate"),
        "execute": ("executing", "PreparedModel.execute"),
        "burst": ("bursts-fences-and-reusable-executions", "Burst"),
        "fenced": ("bursts-fences-and-reusable-executions", "PreparedModel.execute_fenced"),
        "generated": ("executing", "PreparedModel"),
        "quality": ("executing", "ExecutionConfig"),
        "extensions": ("extensions", "Extension"),
        "lifetime": ("letting-go", "PreparedModel.close"),
    }
)
"""For each suite the section of `PAGE` that explains it, and the name in `penstock.hal` whose
docstring is the rule.
"""


class CheckResult(msgspec.Struct, frozen=True):
    """What one check found on *device*; *message* says what was seen where it failed or was not
    covered.

    *rule* is the promise in a sentence, *read* where it is explained.
    """

    suite: str
    check: str
    outcome: Outcome
    message: str
    seconds: float
    device: str = ""
    rule: str = ""
    read: str = ""


def reading(suite: str) -> str:
    """Where the rules of *suite* are explained; empty for a suite that is not of this package."""
    if suite not in READING:
        return ""
    section, name = READING[suite]
    return f"{PAGE}#{section}, help(penstock.hal.{name})"


class Report(msgspec.Struct, frozen=True):
    """Counts by outcome, and the failures by name."""

    passed: int
    failed: int
    not_covered: int
    failures: tuple[CheckResult, ...]

    @classmethod
    def of(cls, results: Sequence[CheckResult]) -> Report:
        """The counts of *results*."""
        outcomes = [r.outcome for r in results]
        failures = tuple(r for r in results if r.outcome == "failed")
        return cls(outcomes.count("passed"), len(failures), outcomes.count("not_covered"), failures)


def computes(device: Device) -> bool:
    """Whether the device claims a cost for anything: one that does not is taken to compute nothing."""
    if not is_device(device):
        raise InputError(f"a Device is asked, not {type(device).__name__}")
    claims = device.capabilities
    return bool(claims.performance) or claims.default_performance is not None


def run_check(
    device: Device, check: Check, suite: str = "", *, limit: float | None = None
) -> CheckResult:
    """One check, its outcome as a value; nothing is raised.

    With a *limit* in seconds the check runs in a thread of its own, and has failed when it takes
    longer: the thread, which nobody can stop, is left to itself. What holds the interpreter for
    good is stopped by the command alone, which gives each driver a process.
    """
    began = time.perf_counter()
    found: list[tuple[Outcome, str]] = []
    if limit is None:
        found.append(_outcome(device, check))
    else:
        thread = threading.Thread(
            target=lambda: found.append(_outcome(device, check)), name=check.__name__, daemon=True
        )
        thread.start()
        thread.join(limit)
    outcome, message = found[0] if found else ("failed", f"it did not end within {limit:g} s")
    seconds = time.perf_counter() - began
    return CheckResult(
        suite,
        check.__name__,
        outcome,
        message,
        seconds,
        _name_of(device),
        rule_of(check),
        reading(suite),
    )


def _outcome(device: Device, check: Check) -> tuple[Outcome, str]:
    try:
        if check.__name__ in VALUE_CHECKS and not computes(device):
            raise NotCovered("the device claims no performance and computes nothing")
        check(device)
    except NotCovered as reason:
        return "not_covered", str(reason)
    except AssertionError as violation:
        return "failed", str(violation)
    except FOREIGN as error:  # whatever a driver raises is an outcome
        return "failed", f"unexpected {describe(error)}"
    return "passed", ""


def _name_of(device: Device) -> str:
    try:
        return str(device.name)
    except FOREIGN as error:  # a check says what is wrong with the name
        return f"({describe(error)})"


def run_contract(
    device: Device,
    *,
    progress: Callable[[CheckResult], None] | None = None,
    limit: float | None = None,
) -> list[CheckResult]:
    """Every check of every suite on *device*, in order; *progress* sees each result as it comes.

    *limit* is `run_check`'s, for each check.
    """
    results = []
    for suite, check in every_check():
        result = run_check(device, check, suite, limit=limit)
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def every_check() -> Iterator[tuple[str, Check]]:
    """(suite, check) for every check."""
    for suite, checks in SUITES.items():
        for check in checks:
            yield suite, check
