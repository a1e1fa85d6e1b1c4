"""Running the contract suites on a device and reporting what came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.hal import Device
from penstock.testing.contract import (
    burst,
    caching,
    caching_security,
    execute,
    fenced,
    lifetime,
    memory,
    prepare,
    support,
)
from penstock.testing.contract.promise import VALUE_CHECKS, Check, NotCovered, describe

Outcome: TypeAlias = Literal["passed", "failed", "not_covered"]

SUITES: Final[Mapping[str, tuple[Check, ...]]] = MappingProxyType(
    {
        "support": support.CHECKS,
        "prepare": prepare.CHECKS,
        "caching": caching.CHECKS,
        "caching_security": caching_security.CHECKS,
        "memory": memory.CHECKS,
        "execute": execute.CHECKS,
        "burst": burst.CHECKS,
        "fenced": fenced.CHECKS,
        "lifetime": lifetime.CHECKS,
    }
)
"""Every check, by suite, in the order in which they run."""

CHECKS: Final[tuple[Check, ...]] = tuple(c for checks in SUITES.values() for c in checks)


class CheckResult(msgspec.Struct, frozen=True):
    """What one check found; *message* says why it failed or was not covered."""

    suite: str
    check: str
    outcome: Outcome
    message: str
    seconds: float


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
    claims = device.capabilities
    return bool(claims.performance) or claims.default_performance is not None


def run_check(device: Device, check: Check, suite: str = "") -> CheckResult:
    """One check, its outcome as a value; nothing is raised."""
    began = time.perf_counter()
    outcome: Outcome = "passed"
    message = ""
    try:
        if check.__name__ in VALUE_CHECKS and not computes(device):
            raise NotCovered("the device claims no performance and computes nothing")
        check(device)
    except NotCovered as reason:
        outcome, message = "not_covered", str(reason)
    except AssertionError as violation:
        outcome, message = "failed", str(violation)
    except Exception as error:  # noqa: BLE001  # whatever a driver raises is an outcome
        outcome, message = "failed", f"unexpected {describe(error)}"
    return CheckResult(suite, check.__name__, outcome, message, time.perf_counter() - began)


def run_contract(
    device: Device, *, progress: Callable[[CheckResult], None] | None = None
) -> list[CheckResult]:
    """Every check of every suite on *device*, in order; *progress* sees each result as it comes."""
    results = []
    for suite, check in every_check():
        result = run_check(device, check, suite)
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def every_check() -> Iterator[tuple[str, Check]]:
    """(suite, check) for every check."""
    for suite, checks in SUITES.items():
        for check in checks:
            yield suite, check
