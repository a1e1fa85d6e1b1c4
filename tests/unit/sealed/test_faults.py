"""A fault at each operation in turn: afterwards the old entry, the new one, or a named miss."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import (
    CacheError,
    RegistryMissing,
    RolledBack,
    SealBroken,
    Unreadable,
    WrongLength,
)
from penstock.sealed import EntryFiles, FileRecord, FileRegistry, Registry, Row, SaveReport
from penstock.testing.doubles import Crash, FaultyFiles, SteppedFiles, crash
from tests.support_sealed import BINDING, FAULTS, TOKEN, Rig

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
    """Between the first truncation and the last seal: too short, or a seal that is not there
    yet.
    """
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


def moments(rig: Rig, act: Callable[[FileRegistry], object]) -> list[Path]:
    """Runs *act*; copies of the state directory as it stood before each file operation of the
    registry, and afterwards.
    """
    copies: list[Path] = []

    def copy(_name: str) -> None:
        copies.append(rig.root / f"moment {len(copies)}")
        shutil.copytree(rig.state, copies[-1])

    stepped: Any = SteppedFiles(copy)
    act(FileRegistry(rig.registry_file, rig.owner, rig.keys(), files=stepped))
    copy("")
    return copies


def test_a_process_that_dies_at_any_file_operation_leaves_a_registry_that_is_whole(
    tmp_path: Path,
) -> None:
    """The registry as another process finds it before each file operation of a save has one state
    or the next.
    """
    rig = old_rig(tmp_path)
    assert rig.saved()
    (old,) = rig.registry().rows()

    def act(registry: FileRegistry) -> None:
        with rig.handles() as (model, data):
            rig.seal_with(registry).save(
                EntryFiles(model, data, TOKEN, BINDING), model=NEW[0], data=NEW[1]
            )

    counts = []
    copies = moments(rig, act)
    assert len(copies) > 30
    for copy in copies:
        registry = FileRegistry(copy / rig.registry_file.name, rig.owner, rig.keys())
        rows = registry.rows()
        counts.append((len(rows), old in rows))
        registry.remove(TOKEN, bytes(16))
        registry.begin(Row(bytes(32), bytes(16), (FileRecord(bytes(32), 1),), ()))
        assert len(registry.rows()) == len(rows) + 1
        assert list(copy.glob("*.tmp")) == []
    assert sorted(set(counts), key=counts.index) == [(1, True), (2, True), (1, False)]


def test_a_process_that_dies_while_the_registry_is_made_leaves_none_or_a_whole_one(
    tmp_path: Path,
) -> None:
    rig = old_rig(tmp_path)
    outcomes = []
    for copy in moments(rig, lambda registry: registry.open()):
        registry = FileRegistry(copy / rig.registry_file.name, rig.owner, rig.keys())
        outcomes.append(registry.state() is None)
        registry.open()
        assert registry.state() is not None
    assert sorted(set(outcomes), reverse=True) == [True, False]
    assert outcomes == sorted(outcomes, reverse=True)


ROW = Row(TOKEN, bytes([2] * 16), (FileRecord(bytes(32), 2),), ())
CHANGES: dict[str, Callable[[FileRegistry], object]] = {
    "begin": lambda registry: registry.begin(ROW),
    "publish": lambda registry: registry.publish(TOKEN, bytes(16), [bytes([1] * 16)]),
    "remove": lambda registry: registry.remove(TOKEN, bytes([1] * 16)),
    "clear": lambda registry: registry.clear(),
    "open": lambda registry: registry.open(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_file_operation_of_a_change_of_the_registry(
    tmp_path: Path, name: str, change: str
) -> None:
    """It fails by name or succeeds; what then stands is the old state or the new one, and the next
    change succeeds.
    """
    before = replace(ROW, entry=bytes([1] * 16))
    outcomes = set()
    for at in range(200):
        rig = Rig(tmp_path / f"{at}")
        rig.registry().begin(before)
        files: Any = FaultyFiles(at, FAULTS[name])
        with suppress(Crash, Unreadable):
            CHANGES[change](FileRegistry(rig.registry_file, rig.owner, rig.keys(), files=files))
        entries = {row.entry[0] for row in rig.registry().rows()}
        assert entries <= {1, 2}
        outcomes.add(frozenset(entries))
        rig.registry().begin(replace(ROW, entry=bytes([3] * 16)))
        assert {row.entry[0] for row in rig.registry().rows()} == {*entries, 3}
        assert list(rig.state.glob("*.tmp")) == []
        if len(files.log) <= at:
            break
    else:
        pytest.fail("a change has more file operations than this test counts")
    assert at > (15 if change != "open" else 3)
    expected = {"begin": {1, 2}, "open": {1}}.get(change, set())
    assert outcomes == {frozenset({1}), frozenset(expected)}


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EACCES"])
def test_a_fault_at_any_file_operation_of_a_look_into_the_registry_has_a_name(
    tmp_path: Path, name: str
) -> None:
    rig = Rig(tmp_path)
    rig.registry().begin(ROW)
    for at in range(20):
        files: Any = FaultyFiles(at, FAULTS[name])
        registry = FileRegistry(rig.registry_file, rig.owner, rig.keys(), files=files)
        found = None
        with suppress(Unreadable):
            found = registry.find(TOKEN, ROW.entry)
        # What closing says does not matter: it only read.
        assert (found is None) == (files.log[at : at + 1] not in ([], ["close"]))
        if len(files.log) <= at:
            break
    assert at > 3
    assert rig.registry().find(TOKEN, ROW.entry) is not None
