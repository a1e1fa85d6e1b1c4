"""Where key and registries lie, and what becomes of those of earlier versions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import knobs
from penstock.errors import RegistryMissing, SealBroken, Unreadable
from penstock.sealed import EntryFiles, FileKeyStore, Seal, places
from penstock.sealed.places import make_private_directory, sealed_directory
from tests.support_sealed import BINDING, TOKEN, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory that an earlier version used."""
    state = tmp_path / "home"
    (state / "sealed").mkdir(mode=0o700, parents=True)
    FileKeyStore(state / "sealed" / "key").key()
    for name in ("key.0123.tmp", "lab.sqlite", "lab.sqlite-wal", "lab.sqlite-shm"):
        (state / "sealed" / name).write_bytes(b"")
    with knobs.override(state_dir=str(state), key_store="file"):
        yield state


def test_the_first_start_makes_a_new_key_and_the_former_one_goes(state: Path) -> None:
    old = (state / "sealed" / "key").read_bytes()
    directory = Path(sealed_directory())
    assert directory == state / "seals"
    assert not (state / "sealed").exists()
    seal = Seal("lab", "1", files=(1, 0))
    assert seal.registry.rows() == ()
    assert (directory / "key").read_bytes() != old
    assert Path(sealed_directory()) == directory
    assert not (state / "sealed").exists()


def test_entry_sealed_with_the_former_key_is_refused(state: Path, tmp_path: Path) -> None:
    """Somebody who read the former key seals an entry with it, and a registry that lists it."""
    rig = Rig(tmp_path, keys=FileKeyStore(state / "sealed" / "key"))
    assert rig.saved()
    seal = Seal("lab", "1", files=(2, 1))
    with rig.handles() as (model, data):
        with pytest.raises(RegistryMissing):
            seal.load(EntryFiles(model, data, TOKEN, BINDING))
        name = f"lab-{seal.owner.digits}-file.registry"
        rig.registry_file.rename(state / "seals" / name)
        with pytest.raises(SealBroken):
            seal.load(EntryFiles(model, data, TOKEN, BINDING))


def test_foreign_files_beside_the_former_key_stay(state: Path) -> None:
    (state / "sealed" / "notes").write_bytes(b"somebody's")
    (state / "sealed" / "kept.sqlite").mkdir()
    sealed_directory()
    assert sorted(p.name for p in (state / "sealed").iterdir()) == ["kept.sqlite", "notes"]
    sealed_directory()
    assert (state / "sealed" / "notes").read_bytes() == b"somebody's"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
@pytest.mark.parametrize("target", ["directory", "file", "nothing"])
def test_a_link_in_place_of_the_former_directory_is_not_followed(
    state: Path, tmp_path: Path, target: str
) -> None:
    aside = (state / "sealed").rename(tmp_path / "directory")
    (tmp_path / "file").write_bytes(b"")
    (state / "sealed").symlink_to(tmp_path / target)
    sealed_directory()
    assert (aside / "key").exists()
    assert (state / "sealed").is_symlink()


def test_a_file_in_place_of_the_former_directory_stays(state: Path, tmp_path: Path) -> None:
    (state / "sealed").rename(tmp_path / "aside")
    (state / "sealed").write_bytes(b"somebody's")
    sealed_directory()
    assert (state / "sealed").read_bytes() == b"somebody's"


def test_bounded_number_of_names_of_a_former_directory_is_read(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MOST_NAMES", 3)
    sealed_directory()
    assert len(list((state / "sealed").iterdir())) == 2
    sealed_directory()
    assert not (state / "sealed").exists()


def test_registries_beyond_the_limit_are_removed_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MOST_REGISTRIES", 3)
    for age in range(5):
        path = tmp_path / f"{age}.registry"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "key").touch()
    places.bound_registries(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("0.registry", "1.registry", "2.registry", "key")
    ]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
def test_a_directory_where_none_can_be_made_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="cannot be made"):
        make_private_directory("/proc/penstock/seals")
