from __future__ import annotations

import gc
import threading
import time

import pytest

from penstock.errors import Cancelled, MissedDeadlinePersistent
from penstock.hal import CancelToken
from penstock.interrupts import checkpoint, interruptible, polled, punctual

PAST = 1


def test_checkpoint_outside_of_a_call_raises_nothing() -> None:
    checkpoint()
    items = [1, 2]
    assert polled(items) is items


def test_checkpoint_raises_once_the_deadline_has_passed() -> None:
    with interruptible(PAST, None), pytest.raises(MissedDeadlinePersistent, match="timeout"):
        checkpoint()


def test_checkpoint_raises_once_the_token_is_set() -> None:
    token = CancelToken()
    with interruptible(None, token):
        checkpoint()
        token.set()
        with pytest.raises(Cancelled):
            checkpoint()


def test_polled_gives_every_item_and_ends_in_the_middle() -> None:
    token = CancelToken()
    seen = []

    def look_at(item: int) -> None:
        seen.append(item)
        if item == 40:
            token.set()

    with interruptible(None, token):
        assert list(polled(range(100))) == list(range(100))
        with pytest.raises(Cancelled):
            list(map(look_at, polled(range(10_000))))
    assert len(seen) < 100


def test_block_without_limits_keeps_outer_limits() -> None:
    with (
        interruptible(PAST, None),
        interruptible(None, None),
        pytest.raises(MissedDeadlinePersistent),
    ):
        checkpoint()


def test_other_threads_have_no_limits() -> None:
    raised: list[Exception] = []

    def look() -> None:
        try:
            checkpoint()
        except MissedDeadlinePersistent as error:
            raised.append(error)

    with interruptible(PAST, None):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert raised == []


def test_garbage_is_not_collected_within_a_deadline_over_many_operations_alone() -> None:
    later = time.monotonic_ns() + 10**10
    assert gc.isenabled()
    with interruptible(None, None), punctual(10**6):
        assert gc.isenabled()
    with interruptible(later, None):
        with punctual(10):
            assert gc.isenabled()
        with punctual(10**6), punctual(10**6):
            assert not gc.isenabled()
        assert gc.isenabled()


def test_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with interruptible(time.monotonic_ns() + 10**10, None), punctual(10**6):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
