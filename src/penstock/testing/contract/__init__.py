"""Suites every driver must pass: one function a promise of `penstock.hal`, callable without pytest.

A check takes a device, returns when the promise holds, and raises `Violation` when it is broken or
`NotCovered` when this device cannot show it.
"""

from penstock.testing.contract.promise import VALUE_CHECKS, Check, NotCovered, Report, Violation
from penstock.testing.contract.runner import (
    CHECKS,
    SUITES,
    CheckResult,
    computes,
    run_check,
    run_contract,
)

__all__ = [
    "CHECKS",
    "SUITES",
    "VALUE_CHECKS",
    "Check",
    "CheckResult",
    "NotCovered",
    "Report",
    "Violation",
    "computes",
    "run_check",
    "run_contract",
]
