"""The driver keeps every promise of Penstock's contract, also behind messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from penstock_example import create

from penstock.hal import Device
from penstock.testing.contract import CHECKS, Check, NotCovered
from penstock.testing.loopback import LoopbackDevice

# A promise that is not kept yet: the check's name and why. One that is kept after all is an error.
GAPS: dict[str, str] = {}


def grid() -> list[object]:
    return [
        pytest.param(
            check,
            id=check.__name__,
            marks=[pytest.mark.xfail(reason=GAPS[check.__name__])]
            if check.__name__ in GAPS
            else [],
        )
        for check in CHECKS
    ]


@pytest.mark.parametrize("wrap", [lambda device: device, LoopbackDevice], ids=["plain", "encoded"])
@pytest.mark.parametrize("check", grid())
def test_promise(check: Check, wrap: Callable[[Device], Device]) -> None:
    try:
        check(wrap(create()))
    except NotCovered as reason:
        pytest.skip(str(reason))
