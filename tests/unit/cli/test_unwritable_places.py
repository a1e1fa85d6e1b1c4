"""Directories of the cache's that cannot be made or written: `penstock doctor` reports them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.application import app
from penstock.cli.settings import unwritable_places

KINDS = ("cache", "state")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        monkeypatch.setenv(f"PENSTOCK_{kind.upper()}_DIR", str(tmp_path / "own" / kind))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory with nothing in it that this user can only read."""
    directory = tmp_path / "kept"
    directory.mkdir(0o500)
    if os.access(directory, os.W_OK):
        pytest.skip("needs a user whom permissions bind")
    yield directory
    directory.chmod(0o700)


def doctor() -> tuple[Result, dict[str, list[str]]]:
    found = CliRunner().invoke(app, ["doctor", "--json"])
    return found, json.loads(found.stdout)


def test_directories_that_can_be_made_are_no_problem_and_are_not_made(tmp_path: Path) -> None:
    assert unwritable_places() == []
    assert list(tmp_path.iterdir()) == []


def test_directories_that_can_be_written_are_left_as_they_are(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / "own" / kind).mkdir(parents=True)
    assert unwritable_places() == []
    assert [list((tmp_path / "own" / kind).iterdir()) for kind in KINDS] == [[], []]


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_below_a_file_is_a_problem(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "below"
    monkeypatch.setenv(f"PENSTOCK_{kind.upper()}_DIR", str(path))
    found, told = doctor()
    assert found.exit_code == 1
    expected = (
        f"the {kind} directory {path} cannot be made: Not a directory; nothing is cached. Set "
        f"PENSTOCK_{kind.upper()}_DIR to a directory that this user can write"
    )
    assert [p for p in told["problems"] if str(path) in p] == [expected]


@pytest.mark.skipif(sys.platform != "linux", reason="a file system that no directory is made in")
def test_a_directory_in_a_special_file_system_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", "/proc/nope")
    assert doctor()[0].exit_code == 1
    assert ["/proc/nope cannot be made" in place.text for place in unwritable_places()] == [True]


def test_a_link_to_nothing_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(link))
    assert ["a symbolic link to nothing" in place.text for place in unwritable_places()] == [True]


def test_an_empty_directory_that_can_only_be_read_is_a_problem(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(read_only))
    found, told = doctor()
    assert found.exit_code == 1
    assert [p for p in told["problems"] if f"{read_only} cannot be written: Permission" in p]


def test_unwritable_cache_with_entries_has_a_note_and_is_no_problem(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only.chmod(0o700)
    (read_only / "entry").write_bytes(b"")
    read_only.chmod(0o500)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(read_only))
    _, told = doctor()
    assert [p for p in told["problems"] if str(read_only) in p] == []
    assert [n for n in told["notes"] if f"{read_only} cannot be written" in n and "is used" in n]
