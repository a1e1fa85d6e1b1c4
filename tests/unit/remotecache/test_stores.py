"""What every store does: bounded reads, and writes on a condition."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from penstock.errors import InputError, StoreUnavailable, WrongLength
from penstock.remotecache.publishing import check_conditional
from penstock.remotecache.stores import Named, ObjectStore, Stored, open_store
from tests.support_stores import new_url


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(new_url() if request.param == "memory" else f"file://{tmp_path}/store")


def test_an_object_is_created_once(store: ObjectStore) -> None:
    etag = store.create("entries/a", b"first")
    assert etag
    assert store.create("entries/a", b"second") is None
    assert store.get("entries/a", 5) == Stored(b"first", etag)


def test_a_write_of_what_is_there_counts_as_done(store: ObjectStore) -> None:
    """The answer to an earlier try may have been lost."""
    first = store.create("a", b"first")
    assert first is not None
    assert store.create("a", b"first") == first
    second = store.update("a", b"second", first)
    assert second is not None
    assert store.update("a", b"second", first)
    assert store.update("a", b"first", first) is None


def test_objects_are_listed_with_size_and_time(store: ObjectStore) -> None:
    for name in ("entries/a", "entries/b", "metadata/a"):
        store.create(name, b"content")
    found = store.listed("entries", 2)
    assert sorted((one.name, one.size) for one in found) == [("entries/a", 7), ("entries/b", 7)]
    assert max(abs(one.written - time.time()) for one in found) < 60
    assert store.listed("leases", 2) == []
    with pytest.raises(WrongLength, match="more than 1 objects in entries"):
        store.listed("entries", 1)


def test_an_update_needs_the_present_version(store: ObjectStore) -> None:
    first = store.create("a", b"first")
    assert first is not None
    second = store.update("a", b"second", first)
    assert second is not None
    assert store.update("a", b"third", first) is None
    assert store.get("a", 100) == Stored(b"second", second)


def test_an_update_of_a_missing_object_does_nothing(store: ObjectStore) -> None:
    assert store.update("a", b"content", '"0"') is None
    assert store.get("a", 100) is None


def test_a_removed_object_is_missing(store: ObjectStore) -> None:
    store.create("a", b"first")
    store.delete("a")
    store.delete("a")
    assert store.get("a", 100) is None


def test_a_read_is_bounded(store: ObjectStore) -> None:
    store.create("a", bytes(1001))
    with pytest.raises(WrongLength, match="1001 bytes in the store, more than 1000"):
        store.get("a", 1000)


@pytest.mark.parametrize(
    "name", ["", "../a", "a/../b", "/a", "a//b", "a\0b", ".a", "a/", "x" * 999]
)
def test_a_name_cannot_leave_the_store(name: str, store: ObjectStore) -> None:
    with pytest.raises(InputError, match="cannot be named"):
        store.create(name, b"content")


def test_one_of_many_updates_at_once_wins(store: ObjectStore) -> None:
    etag = store.create("a", b"first")
    assert etag is not None
    won: list[str | None] = []
    threads = [
        threading.Thread(target=lambda n=n: won.append(store.update("a", b"%d" % n, etag)))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 8
    assert len([one for one in won if one is not None]) == 1


def test_a_store_with_conditions_can_be_published_to(store: ObjectStore) -> None:
    check_conditional(store)
    assert store.create("a", b"the check leaves nothing that is in the way") is not None


class Unconditional:
    """Another store, which ignores the conditions of a write."""

    def __init__(self, store: ObjectStore, *, create: bool, update: bool) -> None:
        self.url, self._store = store.url, store
        self._create, self._update = create, update

    def get(self, name: str, most: int) -> Stored | None:
        return self._store.get(name, most)

    def listed(self, prefix: str, most: int) -> list[Named]:
        return self._store.listed(prefix, most)

    def unfinished(self, most: int) -> list[Named]:
        return self._store.unfinished(most)

    def create(self, name: str, content: bytes) -> str | None:
        etag = self._store.create(name, content)
        if etag is None and self._create:
            found = self._store.get(name, 1000)
            assert found is not None
            return self._store.update(name, content, found.etag)
        return etag

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        found = self._store.get(name, 1000)
        if found is None or not self._update:
            return self._store.update(name, content, etag)
        return self._store.update(name, content, found.etag)

    def delete(self, name: str) -> None:
        self._store.delete(name)


@pytest.mark.parametrize(("create", "update"), [(True, False), (False, True)])
def test_a_store_that_ignores_conditions_is_refused_for_publishing(
    create: bool, update: bool, store: ObjectStore
) -> None:
    with pytest.raises(InputError, match="no writes on a condition"):
        check_conditional(Unconditional(store, create=create, update=update))


@pytest.mark.parametrize("url", ["ftp://a", "s3:/a", "s3", "file://relative", "s3://"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        open_store(url)


def test_a_link_in_a_directory_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store = open_store(f"file://{tmp_path}/store")
    store.create("other", b"content")
    (tmp_path / "store" / "a").symlink_to(secret)
    with pytest.raises(StoreUnavailable, match="is a link or no file"):
        store.get("a", 100)


def test_a_pipe_in_a_directory_makes_nobody_wait(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    store.create("other", b"content")
    os.mkfifo(tmp_path / "store" / "a")
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        store.get("a", 100)


def test_a_directory_whose_lock_is_held_cannot_be_written(tmp_path: Path) -> None:
    from penstock.sealed.locks import locked

    store = open_store(f"file://{tmp_path}/store", seconds=0.05)
    store.create("a", b"content")
    with (tmp_path / "store" / "lock").open("rb+") as file, locked(file.fileno(), exclusive=True):
        with pytest.raises(StoreUnavailable, match="was not free"):
            store.create("b", b"content")
        assert store.get("a", 100) is not None
