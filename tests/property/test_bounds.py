"""Models with absurd sizes, drawn at random: every call ends within its timeout and half a second,
with an answer or a documented error, and takes little memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import knobs
from penstock.errors import PenstockError
from tests.support_bounds import allowed, drawn, ones_for

TIMEOUT = 1.0
MOST_MIB = 512
SEEDS = range(48)


def held() -> int:
    """The most MiB that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def ended(call: Callable[[], Any]) -> Any:
    """What *call* returns, or the documented error that it raises, in time and in little memory."""
    before, limit, began = held(), allowed(TIMEOUT), time.monotonic()
    result: Any
    try:
        result = call()
    except PenstockError as error:
        result = error
    took = time.monotonic() - began
    assert took < limit, result
    assert held() - before < MOST_MIB, result
    return result


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_of_an_absurd_model_end_in_time_and_in_little_memory(seed: int) -> None:
    model = ended(lambda: penstock.load(drawn(seed)))
    if isinstance(model, PenstockError):
        return
    with knobs.override(max_run_mib=128):
        compiled = ended(lambda: penstock.compile(model, cache=False, timeout=TIMEOUT))
        if isinstance(compiled, PenstockError):
            return
        with compiled:
            inputs = ones_for(model)
            ended(lambda: compiled.run(inputs, timeout=TIMEOUT))
