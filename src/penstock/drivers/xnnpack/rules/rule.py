"""The table of rules, and what fills it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.driverkit.site import Refused
from penstock.drivers.xnnpack.site import Classes, Site
from penstock.ir import DType, Operand

Check: TypeAlias = Callable[[Site], Classes]
"""The classes in which an operation is computed; raises `Refused` where it is not."""

RULES: Final[dict[str, Check]] = {}
"""Filled by the modules of this package."""


def rule(*types: str) -> Callable[[Check], Check]:
    """Registers a function as the check of *types*."""

    def register(check: Check) -> Check:
        RULES.update(dict.fromkeys(types, check))
        return check

    return register


@functools.cache
def types_of(text: str) -> frozenset[DType]:
    """Element types by name, in one string."""
    return frozenset(map(DType, text.split()))


def among(operand: Operand, known: frozenset[DType], what: str = "values") -> None:
    """Refuses an operand that is of none of the *known* types."""
    if operand.dtype not in known:
        raise Refused(f"{what} of {operand.dtype.value} are not computed here")
