"""Leases in a store: one builder, and what happens when it dies."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import Cancelled, StoreUnavailable, WrongLength
from penstock.hal import CancelToken
from penstock.remotecache.leases import DEAD_SECONDS, BuildLease, Waiting, lease_name
from penstock.remotecache.stores import ObjectStore, open_store
from tests.support_stores import new_url

TOKEN = bytes(range(32))


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(new_url() if request.param == "memory" else f"file://{tmp_path}/store")


def test_one_of_many_takes_the_lease(store: ObjectStore) -> None:
    taken: list[BuildLease | None] = []
    threads = [
        threading.Thread(target=lambda: taken.append(Waiting(store, TOKEN).take()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lease,) = filter(None, taken)
    assert len(taken) == 8
    lease.close()


def test_a_lease_that_was_given_up_is_free(store: ObjectStore) -> None:
    lease = Waiting(store, TOKEN).take()
    assert lease is not None
    waiting = Waiting(store, TOKEN)
    assert waiting.take() is None
    assert not waiting.until_free(0.05)
    lease.close()
    lease.close()
    assert waiting.until_free(10)
    second = waiting.take()
    assert second is not None
    second.close()


def test_a_dead_holder_loses_the_lease(store: ObjectStore) -> None:
    store.create(lease_name(TOKEN), b"of a machine that was switched off")
    waiting = Waiting(store, TOKEN, dead=0.1)
    assert waiting.until_free(10)
    lease = waiting.take()
    assert lease is not None
    lease.close()
    assert store.get(lease_name(TOKEN), 100) is None


def test_a_holder_that_changes_its_lease_keeps_it(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("penstock.remotecache.leases.time", clock)
    etag = store.create(lease_name(TOKEN), b"held")
    waiting = Waiting(store, TOKEN)
    for number in range(5):
        assert etag is not None
        assert not waiting.until_free(0)
        now[0] += DEAD_SECONDS - 1
        etag = store.update(lease_name(TOKEN), b"beat %d" % number, etag)
    assert not waiting.until_free(0)
    now[0] += DEAD_SECONDS
    assert waiting.until_free(0)


def test_a_holder_changes_its_lease(store: ObjectStore) -> None:
    etag = store.create(lease_name(TOKEN), b"held")
    assert etag is not None
    with BuildLease(store, TOKEN, etag, beat=0.01):
        while (found := store.get(lease_name(TOKEN), 100)) is not None:
            if found.etag != etag:
                break
            time.sleep(0.01)
    assert found is not None


def test_one_of_two_waiting_machines_takes_over_from_a_dead_holder(store: ObjectStore) -> None:
    store.create(lease_name(TOKEN), b"of a machine that was switched off")
    both = [Waiting(store, TOKEN, dead=0.05) for _ in range(2)]
    assert [one.until_free(10) for one in both] == [True, True]
    first, second = (one.take() for one in both)
    assert first is not None
    assert second is None
    first.close()


def test_a_holder_that_lost_its_lease_leaves_it_to_the_next(store: ObjectStore) -> None:
    etag = store.create(lease_name(TOKEN), b"held")
    assert etag is not None
    lease = BuildLease(store, TOKEN, etag, beat=0.02)
    while (found := store.get(lease_name(TOKEN), 100)) is not None:
        if store.update(lease_name(TOKEN), b"taken over", found.etag) is not None:
            break
    time.sleep(0.1)
    lease.close()
    found = store.get(lease_name(TOKEN), 100)
    assert found is not None
    assert found.content == b"taken over"


class Forgetful:
    """A store that does what it is asked, but fails in place of the answer to an update."""

    def __init__(self, store: ObjectStore) -> None:
        self.url, self._store, self.updates = store.url, store, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        after = self._store.update(name, content, etag)
        if after is not None:
            self.updates += 1
            raise StoreUnavailable("the answer was lost")
        return after


def test_a_holder_keeps_its_lease_though_answers_are_lost(store: ObjectStore) -> None:
    etag = store.create(lease_name(TOKEN), b"held")
    forgetful: Any = Forgetful(store)
    with BuildLease(forgetful, TOKEN, etag or "", beat=0.01):
        until = time.monotonic() + 20
        while forgetful.updates < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert forgetful.updates >= 3
    assert store.get(lease_name(TOKEN), 100) is None


def test_a_cancelled_wait_ends(store: ObjectStore) -> None:
    store.create(lease_name(TOKEN), b"held")
    cancel = CancelToken()
    cancel.set()
    with pytest.raises(Cancelled):
        Waiting(store, TOKEN).until_free(10, cancel)


def test_a_huge_lease_is_not_read(store: ObjectStore) -> None:
    store.create(lease_name(TOKEN), bytes(5000))
    with pytest.raises(WrongLength):
        Waiting(store, TOKEN).until_free(10)


def test_a_store_that_fails_meanwhile_leaves_the_holder_alone(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Waiting(store, TOKEN).take()
    assert lease is not None

    def fail(*_: object) -> str:
        raise StoreUnavailable("it is down")

    monkeypatch.setattr(lease, "_store", type("Down", (), {"update": fail, "delete": fail})())
    lease.close()
