"""The index beside an entry, and when the entry was used last, through `penstock.compile`."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.cache import Cache
from penstock.sealed.locks import lock
from tests.support_caching import CachingDevice, lock_file
from tests.unit.partitioning.models import chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

MODEL = chain(("ADD", "RELU"))
DEVICE = CachingDevice()


def compiled(path: Path) -> str:
    with penstock.compile(MODEL, devices=[DEVICE], cache=path) as made:
        return made.receipt.steps[0].cache.outcome


def lose(index: Path) -> None:
    index.unlink()


def empty(index: Path) -> None:
    index.write_bytes(b"{}\n")


def cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-20])


def of_another(index: Path) -> None:
    index.write_bytes(index.read_bytes().replace(b'"token":"', b'"token":"0'))


def link(index: Path) -> None:
    other = index.parent.parent / "other"
    index.rename(other)
    index.symlink_to(other)


@pytest.mark.parametrize("damage", [lose, empty, cut, of_another, link])
def test_a_hit_writes_a_lost_index_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "cache"
    assert compiled(path) == "miss"
    (before,) = Cache(path).entries()
    (index,) = path.glob("*.json")
    damage(index)
    assert compiled(path) == "hit"
    (entry,) = Cache(path).entries()
    assert (entry.device, entry.ingredients, entry.binding) == (
        before.device,
        before.ingredients,
        before.binding,
    )
    assert (entry.compile_ns, before.compile_ns > 0) == (0, True)
    assert abs(entry.created - before.created) < 60
    assert stat.S_ISREG(index.lstat().st_mode)
    record = Cache(path)._cache.record(entry.token)
    assert record is not None
    assert record.penstock == penstock.__version__
    assert sorted(p.suffix for p in path.iterdir()) == ["", "", ".json"] or os.name == "nt"


def test_the_version_that_wrote_an_entry_is_in_its_index(tmp_path: Path) -> None:
    compiled(tmp_path)
    (entry,) = Cache(tmp_path).entries()
    record = Cache(tmp_path)._cache.record(entry.token)
    assert record is not None
    assert record.penstock == penstock.__version__


def test_file_time_replaces_an_unwritable_index(tmp_path: Path) -> None:
    """Somebody else reads the entry, so that nothing in it may be changed."""
    compiled(tmp_path)
    (index,) = tmp_path.glob("*.json")
    index.unlink()
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    fd = os.open(lock_file(tmp_path), os.O_RDWR)
    try:
        assert lock(fd, exclusive=False, timeout=0)
        assert compiled(tmp_path) == "hit"
    finally:
        os.close(fd)
    assert not index.exists()
    (entry,) = Cache(tmp_path).entries()
    assert abs(entry.used - time.time()) < 600
