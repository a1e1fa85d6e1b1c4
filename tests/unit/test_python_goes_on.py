"""The check by which the drivers' tests find an engine that holds the interpreter's lock."""

from __future__ import annotations

import hashlib

from tests.support_python_goes_on import goes_on_during


def test_a_call_that_holds_the_interpreters_lock_is_found() -> None:
    held = range(300_000)
    assert not goes_on_during(lambda: sum(held))


def test_a_call_that_lets_the_lock_go_passes() -> None:
    data = bytes(8 << 20)
    assert goes_on_during(lambda: hashlib.sha256(data).digest())
