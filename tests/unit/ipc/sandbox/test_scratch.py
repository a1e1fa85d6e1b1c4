"""What a driver leaves behind is removed whatever it is, in bounded steps, and nothing else with
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

if sys.platform == "win32":
    pytest.skip("descriptors of directories are Unix's", allow_module_level=True)

from penstock.ipc.sandbox.policy import empty
from tests.support_programs import run_python

DEPTH: Final = 1500
"""Deeper than Python's recursion and the kernel's paths go."""


def nest(directory: Path, depth: int, *, mode: int = 0o700) -> None:
    """Directories within each other, of names as long as there are, with a file beside each."""
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.mkdir("d" * 255, dir_fd=at)
        inner = os.open("d" * 255, os.O_RDONLY, dir_fd=at)
        if mode != 0o700:
            os.fchmod(at, mode)
        os.close(at)
        at = inner
    os.close(at)


@pytest.fixture(autouse=True)
def left(tmp_path: Path) -> Iterator[None]:
    """What a test that fails leaves is too deep for pytest, which removes it recursively."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=False)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "scratch").mkdir()
    fd = os.open(tmp_path / "scratch", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_removal_empties_folders_of_any_depth(tmp_path: Path, opened: int) -> None:
    nest(tmp_path / "scratch", DEPTH)
    assert empty(opened)
    assert not list((tmp_path / "scratch").iterdir())


def test_without_rights(tmp_path: Path, opened: int) -> None:
    """Of a user who is not root: nobody may enter the directories."""
    nest(tmp_path / "scratch", 20, mode=0)
    (tmp_path / "scratch").chmod(0o700)
    assert empty(opened)


def test_links_lead_nowhere(tmp_path: Path, opened: int) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "precious").write_bytes(b"kept")
    inner = tmp_path / "scratch" / "deep" / "deeper"
    inner.mkdir(parents=True)
    for place in (tmp_path / "scratch", inner):
        (place / "to a file").symlink_to(outside / "precious")
        (place / "to a directory").symlink_to(outside)
        os.link(outside / "precious", place / "hard")
        os.mkfifo(place / "pipe")
    assert empty(opened)
    assert (outside / "precious").read_bytes() == b"kept"
    assert (outside / "inner").is_dir()


def test_no_more_than_was_asked_for(tmp_path: Path, opened: int) -> None:
    for number in range(100):
        (tmp_path / "scratch" / str(number)).touch()
    assert not empty(opened, most=30)
    assert len(list((tmp_path / "scratch").iterdir())) == 70
    assert empty(opened)


def test_names_that_are_taken(tmp_path: Path, opened: int) -> None:
    for name in (".0", ".1", "a", "b"):
        nested = tmp_path / "scratch" / name / name
        nested.mkdir(parents=True)
        (nested / "file").touch()
    assert empty(opened)


def test_a_host_starts_after_one_that_left_a_deep_tree(tmp_path: Path) -> None:
    program = (
        "import sys; from penstock.ipc.sandbox.policy import scratch_directory; "
        "print(scratch_directory(), flush=True); sys.stdin.read()"
    )

    def start() -> str:
        return run_python(
            "-c",
            program,
            env={**os.environ, "PENSTOCK_STATE_DIR": str(tmp_path)},
            input="",
            check=True,
        ).stdout.strip()

    scratch = Path(start())
    nest(scratch, DEPTH)
    assert Path(start()).is_dir()
    assert not scratch.exists()


def test_only_a_host_that_needs_compiled_shaders_may_write_their_directory(tmp_path: Path) -> None:
    program = (
        "from penstock.ipc.sandbox.policy import host_policy\n"
        "for shaders in (False, True): print(*host_policy(shaders=shaders).write[1:])\n"
    )
    places = {"PENSTOCK_STATE_DIR": "state", "PENSTOCK_CACHE_DIR": "cache"}
    env = {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}
    without, having = run_python("-c", program, env=env, check=True).stdout.split("\n")[:2]
    shaders = (tmp_path / "cache" / "shaders").resolve()
    assert (without, having) == ("", str(shaders))
    assert shaders.stat().st_mode & 0o777 == 0o700
