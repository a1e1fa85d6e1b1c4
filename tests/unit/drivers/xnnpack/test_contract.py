"""The contract suites on the XNNPACK device: plain, and with each message encoded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import pytest

from penstock.hal import Device
from penstock.testing.contract import CHECKS, Check, NotCovered
from penstock.testing.loopback import LoopbackDevice
from tests.support_xnnpack import device, needs_litert

pytestmark = needs_litert

WRAPPERS: Final[dict[str, Callable[[Device], Device]]] = {
    "plain": lambda each: each,
    "loopback": LoopbackDevice,
}


@pytest.mark.parametrize(
    ("wrapper", "check"),
    [
        pytest.param(wrapper, check, id=f"{wrapper}-{check.__name__}")
        for wrapper, check in itertools.product(WRAPPERS, CHECKS)
    ],
)
def test_promise(wrapper: str, check: Check) -> None:
    try:
        check(WRAPPERS[wrapper](device()))
    except NotCovered as reason:
        pytest.skip(str(reason))
