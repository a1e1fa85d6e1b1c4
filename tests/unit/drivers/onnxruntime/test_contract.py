"""The contract suites on ONNX Runtime's CPU device: plain, and with each message encoded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import pytest

from penstock.hal import Device
from penstock.testing.contract import CHECKS, Check, NotCovered
from penstock.testing.loopback import LoopbackDevice
from tests.support_onnxruntime import cpu, needs_onnxruntime

pytestmark = needs_onnxruntime

WRAPPERS: Final[dict[str, Callable[[Device], Device]]] = {
    "plain": lambda device: device,
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
        check(WRAPPERS[wrapper](cpu()))
    except NotCovered as reason:
        pytest.skip(str(reason))
