"""One program started again and again: compiled once, moved, damaged, without its registry."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Program

Start = Callable[..., Any]


@pytest.fixture
def start(program: Program, model: Path) -> Start:
    """What one start on the lab device says of the cache: its outcome, and the first word of the
    reason.
    """

    def one(home: Path, *command: str) -> tuple[str, str]:
        ran = program(*(command or ("run", model, "random", "-d", "lab", "--json")), **dirs(home))
        assert ran.returncode == 0, ran.stderr
        receipt = json.loads(ran.stdout)["compile_receipt"]
        told = receipt["steps"][0]["cache"]
        assert receipt["compiles"] == (told["outcome"] != "hit")
        return told["outcome"], told["reason"].partition(":")[0]

    return one


def dirs(home: Path) -> dict[str, str]:
    return {
        "PENSTOCK_CACHE_DIR": str(home / "cache"),
        "PENSTOCK_STATE_DIR": str(home / "state"),
        "PENSTOCK_KEY_STORE": "file",
    }


def test_first_start_hits_the_entries_of_prewarm(
    program: Program, start: Start, model: Path, tmp_path: Path
) -> None:
    warmed = program("cache", "prewarm", model, "-d", "lab", **dirs(tmp_path))
    assert warmed.returncode == 0, warmed.stderr
    assert start(tmp_path)[0] == "hit"


def test_damage_is_refused_in_one_line_and_repaired(
    program: Program, start: Start, tmp_path: Path
) -> None:
    assert start(tmp_path) == ("miss", "NoEntry")
    file = min((tmp_path / "cache").glob("*10"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x10
    file.write_bytes(content)
    verified = program("cache", "verify", **dirs(tmp_path))
    assert verified.returncode == 1
    assert verified.stderr.count("\n") == 1
    assert "is refused: SealBroken: the payload of model file 0 was altered" in verified.stderr
    assert start(tmp_path) == ("miss", "SealBroken")
    assert program("cache", "verify", **dirs(tmp_path)).returncode == 0
    assert start(tmp_path)[0] == "hit"


def read_only(*places: Path) -> list[str]:
    """The beginning of a command that sees *places* on read-only mounts. Skips the test where
    nothing can be mounted.
    """
    mounts = "".join(
        f"mount --bind '{p}' '{p}' && mount -o remount,bind,ro '{p}' && " for p in places
    )
    prefix = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        mounts + 'exec "$@"',
        "-",
    ]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this user cannot mount a directory read-only")
    return prefix


@pytest.mark.parametrize("which", [("cache",), ("cache", "state")], ids="+".join)
@pytest.mark.parametrize("isolate", ["off", "on"])
def test_cache_on_a_read_only_mount_is_hit(
    program: Program,
    start: Start,
    model: Path,
    tmp_path: Path,
    which: tuple[str, ...],
    isolate: str,
) -> None:
    start(tmp_path)
    beginning = read_only(*(tmp_path / name for name in which))
    given = dirs(tmp_path) | {"PENSTOCK_ISOLATE": isolate}
    command = ("run", model, "random", "-d", "lab", "--json")
    ran = program(*command, prefix=beginning, **given)
    assert ran.returncode == 0, ran.stderr
    receipt = json.loads(ran.stdout)["compile_receipt"]
    assert receipt["steps"][0]["cache"]["outcome"] == "hit"
    assert receipt["compiles"] == 0
    for answers in ("verify", "ls", "gc"):
        assert program("cache", answers, prefix=beginning, **given).returncode == 0
    other = program(*command, "--accuracy", "relaxed", prefix=beginning, **given)
    told = json.loads(other.stdout)["compile_receipt"]["steps"][0]["cache"]
    assert told["outcome"] == "miss"
    assert told["not_saved"].startswith("ReadOnly: ")


def test_a_cache_moves_with_its_state_directory(start: Start, tmp_path: Path) -> None:
    start(tmp_path / "build")
    shutil.copytree(tmp_path / "build", tmp_path / "image")
    assert start(tmp_path / "image")[0] == "hit"
    shutil.copytree(tmp_path / "build" / "cache", tmp_path / "stranger" / "cache")
    assert start(tmp_path / "stranger") == ("miss", "RegistryMissing")
    assert start(tmp_path / "stranger")[0] == "hit"
