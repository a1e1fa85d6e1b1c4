"""A fault at each operation in turn: afterwards the old entry, the new one, or a named miss."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CacheError, RegistryMissing, RolledBack, SealBroken, WrongLength
from penstock.sealed import Registry, SaveReport, SqliteRegistry
from penstock.testing.doubles import Crash, FaultyFiles, crash
from tests.support_sealed import BINDING, FAULTS, TOKEN, Rig, quick_connect

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

OLD = (b"old program", b"old second"), (b"old weights",)
NEW = (b"new program, longer", b"new second"), (b"new weights",)


def old_rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, program=OLD[0], weights=OLD[1])


def new_rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, program=NEW[0], weights=NEW[1])


def found(rig: Rig) -> object:
    """Which generation the cache holds, or the class of the refusal."""
    try:
        loaded = rig.load()
    except (CacheError, FileNotFoundError) as error:
        return type(error)
    payloads = tuple(map(bytes, loaded.model)), tuple(map(bytes, loaded.data))
    assert payloads in {OLD, NEW}, "a mixture"
    return payloads


def publish_by_rename(rig: Rig, files: Any) -> SaveReport:
    """What a runtime does: save into new files, move them into place, forget what they replaced."""
    seal = rig.seal(files)
    with rig.handles() as (model, _):
        before = seal.entry_of(model[0], TOKEN)
    report = rig.save("new", files=files)
    if report.saved:
        for source, target in zip(rig.paths("new"), rig.paths(), strict=True):
            files.replace(source, target)
        if before:
            with suppress(CacheError):
                seal.forget(TOKEN, before)
    return report


def save_in_place(rig: Rig, files: Any) -> SaveReport:
    return rig.save(files=files)


WAYS: dict[str, Callable[[Rig, Any], SaveReport]] = {
    "renamed": publish_by_rename,
    "in place": save_in_place,
}


def operations(tmp_path: Path, way: str) -> int:
    counted = tmp_path / "counted"
    counted.mkdir()
    assert old_rig(counted).saved()
    counting = FaultyFiles()
    assert WAYS[way](new_rig(counted), counting).saved
    return len(counting.log)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_file_operation_of_a_save(tmp_path: Path, way: str, name: str) -> None:
    outcomes = set()
    count = operations(tmp_path, way)
    assert count > 10
    for at in range(count):
        root = tmp_path / f"{at}"
        root.mkdir()
        assert old_rig(root).saved()
        rig = new_rig(root)
        with suppress(Crash, OSError, CacheError):
            report = WAYS[way](rig, FaultyFiles(at, FAULTS[name]))
            assert report.saved or (report.reason or "").split(":")[0] == "Unreadable"
        outcome = found(rig)
        outcomes.add(outcome)
        assert outcome in {OLD, NEW} or isinstance(outcome, type)
        assert rig.saved()
        assert found(rig) == NEW
    assert OLD in outcomes


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_operation_of_a_load(tmp_path: Path, name: str) -> None:
    rig = new_rig(tmp_path)
    assert rig.saved()
    counting = FaultyFiles()
    assert rig.hits(files=counting)
    for at in range(len(counting.log)):
        with pytest.raises((CacheError, Crash)) as caught:
            rig.load(files=FaultyFiles(at, FAULTS[name]))
        assert str(caught.value).startswith("Unreadable: ") or caught.type is Crash
        assert rig.hits()


def test_after_a_crash_in_place_the_miss_has_a_name(tmp_path: Path) -> None:
    """Between the first truncation and the last seal: too short, or a seal that is not there yet."""
    outcomes = set()
    for at in range(operations(tmp_path, "in place")):
        root = tmp_path / f"{at}"
        root.mkdir()
        assert old_rig(root).saved()
        with suppress(Crash):
            new_rig(root).save(files=FaultyFiles(at, crash))
        outcomes.add(found(new_rig(root)))
    assert {OLD, WrongLength, SealBroken} <= outcomes


class FaultyRegistry:
    """A registry whose call number *at* fails before (or *after*) its work."""

    def __init__(self, inner: Registry, at: int, fault: Callable[[], None], after: bool) -> None:
        self.inner, self.at, self.fault, self.after = inner, at, fault, after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)

        def call(*arguments: object) -> object:
            self.calls += 1
            failing = self.calls == self.at + 1
            if failing and not self.after:
                self.fault()
            answer = operation(*arguments)
            if failing:
                self.fault()
            return answer

        return call


def itself(value: Any) -> Any:
    return value


def refuse() -> None:
    from penstock.errors import Unreadable

    raise Unreadable("the registry cannot be used: disk full")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", [crash, refuse])
def test_a_fault_at_any_call_of_the_registry(
    tmp_path: Path, fault: Callable[[], None], after: bool
) -> None:
    for at in range(9):
        root = tmp_path / f"{at}"
        root.mkdir()
        assert old_rig(root).saved()
        rig = new_rig(root)
        faulty: Any = FaultyRegistry(rig.registry(), at, fault, after)
        broken = Rig(root, program=NEW[0], weights=NEW[1], registry=partial(itself, faulty))
        with suppress(Crash):
            broken.save()
        assert found(rig) in {OLD, NEW, SealBroken, RolledBack, WrongLength, RegistryMissing}
        assert rig.saved()
        if faulty.calls <= at:
            return
    pytest.fail("a save calls the registry more often than this test counts")


def statements(rig: Rig, act: Callable[[SqliteRegistry], object], stop: int) -> Iterator[Path]:
    """Runs *act* and yields a copy of the registry's files as they stand before statement *stop*."""
    copies = rig.root / f"at {stop}"
    seen = 0

    def before(_sql: str) -> None:
        nonlocal seen
        seen += 1
        if seen == stop:
            shutil.copytree(rig.state, copies)

    def traced(path: str) -> sqlite3.Connection:
        connection = quick_connect(path)
        connection.set_trace_callback(before)
        return connection

    act(SqliteRegistry(rig.database, rig.owner, rig.keys(), connect=traced))
    if copies.exists():
        yield copies


def test_a_process_that_dies_at_any_statement_leaves_a_registry_that_is_whole(
    tmp_path: Path,
) -> None:
    """The files as another process finds them before each statement of a save hold one state or the next."""
    counts = set()
    for stop in range(1, 200):
        root = tmp_path / f"{stop}"
        root.mkdir()
        rig = old_rig(root)
        assert rig.saved()
        old = rig.registry().rows()

        def act(registry: SqliteRegistry, rig: Rig = rig) -> None:
            with rig.handles() as (model, data):
                rig.seal_with(registry).save(model, data, TOKEN, BINDING, model=NEW[0], data=NEW[1])

        reached = False
        for copy in statements(rig, act, stop):
            reached = True
            registry = SqliteRegistry(copy / rig.database.name, rig.owner, rig.keys())
            rows = registry.rows()
            counts.add(len(rows))
            assert old[0] in rows or len(rows) == 1
        if not reached:
            break
    else:
        pytest.fail("a save has more statements than this test counts")
    assert counts == {1, 2}


def test_a_process_that_dies_while_the_registry_is_made_leaves_none_or_a_whole_one(
    tmp_path: Path,
) -> None:
    outcomes = set()
    for stop in range(1, 200):
        root = tmp_path / f"{stop}"
        root.mkdir()
        rig = old_rig(root)
        reached = False
        for copy in statements(rig, lambda registry: registry.open(), stop):
            reached = True
            registry = SqliteRegistry(copy / rig.database.name, rig.owner, rig.keys())
            outcomes.add(registry.state() is None)
            registry.open()
            assert registry.state() is not None
        if not reached:
            break
    assert outcomes == {True, False}
