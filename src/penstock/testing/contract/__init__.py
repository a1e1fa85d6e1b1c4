"""Contract suites that every driver must pass.

There is one function for each promise of `penstock.hal`, callable without pytest. A check takes a
device. It returns if the promise holds, raises `Violation` if the device breaks it, and
`NotCovered` if this device cannot show it.
"""

from penstock.testing.contract.promise import VALUE_CHECKS, Check, NotCovered, Report, Violation
from penstock.testing.contract.runner import (
    CHECKS,
    SHARING,
    SUITES,
    CheckResult,
    computes,
    run_check,
    run_contract,
)
from penstock.testing.contract.sharing import SharedModels

__all__ = [
    "CHECKS",
    "SHARING",
    "SUITES",
    "VALUE_CHECKS",
    "Check",
    "CheckResult",
    "NotCovered",
    "Report",
    "SharedModels",
    "Violation",
    "computes",
    "run_check",
    "run_contract",
]
