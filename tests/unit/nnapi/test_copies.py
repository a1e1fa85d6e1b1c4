"""Copies between a run and the arguments of an execution."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.memory.copies import CopyReceipt
from penstock.nnapi import running

RESULT = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_result_that_is_not_contiguous_is_copied_twice_and_it_shows(
    on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = np.zeros(24, np.uint8)

    def put_value(_: object, value: Any) -> int:
        room[:] = value.reshape(-1).view(np.uint8)
        return 1

    monkeypatch.setattr(running, "put_value", put_value)
    place = SimpleNamespace(device="lab") if on_device else None
    binding: Any = SimpleNamespace(
        place=lambda: place, bytes=lambda: room, shape=None, port="output 0"
    )
    for result, count in ((RESULT, 1), (RESULT.T, 2)):
        copies: list[CopyReceipt] = []
        assert running._deliver(binding, result, copies, result.shape)
        assert [c.nbytes for c in copies] == [24] * count
        assert room.tobytes() == result.tobytes()
