"""The scenarios that NNAPI's VTS has for memory domains (NNAPI section 6.7), under its names, and
what they leave out.
"""

from __future__ import annotations

from typing import Final

from penstock.testing.contract.memory_domains import allocating, beyond, copying, executing
from penstock.testing.contract.promise import Check

CHECKS: Final[tuple[Check, ...]] = (
    *allocating.CHECKS,
    *copying.CHECKS,
    *executing.CHECKS,
    *beyond.CHECKS,
)
