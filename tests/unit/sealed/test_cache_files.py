"""Opening the files of a cache directory that several users share."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.errors import ReadOnly, Unreadable
from penstock.sealed.files import FileStatus, FileSystem, StrPath, open_cache_file

if sys.platform == "win32":
    pytest.skip("files have no owner there", allow_module_level=True)

REMEDY = "a cache directory for each user (cache=DIR, or the knob cache_dir)"


class Kept(FileSystem):
    """Files that *owner* keeps to himself."""

    def __init__(self, owner: int) -> None:
        self._owner = owner

    def open(self, path: StrPath, flags: int, mode: int = 0o600) -> int:  # nobody may
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))

    def status_of(self, path: StrPath) -> FileStatus:
        return replace(super().status_of(path), owner=self._owner)


@pytest.mark.parametrize("create", [False, True])
def test_a_file_that_another_user_keeps_to_himself_comes_with_the_remedy(
    create: bool, tmp_path: Path
) -> None:
    path = tmp_path / "entry"
    path.touch()
    with pytest.raises(ReadOnly if create else Unreadable) as refused:
        open_cache_file(path, create=create, files=Kept(os.geteuid() + 1))
    assert f"it is user {os.geteuid() + 1}'s" in str(refused.value)
    assert REMEDY in str(refused.value)


def test_remedy_is_not_named_for_own_or_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    with pytest.raises(ReadOnly, match=r"Permission denied$"):
        open_cache_file(path, create=True, files=Kept(os.geteuid() + 1))
    path.touch()
    with pytest.raises(Unreadable, match=r"Permission denied$"):
        open_cache_file(path, files=Kept(os.geteuid()))
