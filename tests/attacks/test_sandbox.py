"""A hostile driver in its sandbox: each of its probes is refused, or changes, reads and slows
nothing beyond its process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

if sys.platform != "linux":
    pytest.skip("the sandbox is Linux's", allow_module_level=True)

from penstock.ipc.sandbox import kernel
from tests.attacks import probes
from tests.conftest import ROOT

HARMLESS: Final = frozenset(probes.of_itself())
"""Changes, reads and slows nothing outside of the driver's own process and scratch."""

OF_THE_MACHINE: Final = frozenset(probes.of_the_machine())
"""Refused nowhere; in namespaces of its own it shows the driver what is its own."""

GAPS: Final = {
    "see the size of a private file": "Landlock says nothing of stat: it takes namespaces",
    "read a link": "Landlock says nothing of readlink: it takes namespaces",
    "addresses of network devices": "the machine's devices are shown to engines, without "
    "namespaces",
    "connections of the machine": "it takes a namespace to have another network, which it cannot "
    "use",
    "sockets of the machine": "it takes a namespace to have another network, which it cannot use",
    "mounts of the machine": "it takes namespaces to see other mounts",
    "users of the machine": "C libraries look for the user there, without namespaces",
}
"""Allowed still where there are no namespaces, with the reason (docs/threat-model.md)."""


@cache
def tried(apart: bool, below: str = "") -> dict[str, Any]:
    """What the probes came to. *below* is a directory of the user's home where something else is
    mounted, in namespaces that this makes.
    """
    # What lies below /dev is a device to the sandbox, also a temporary file in memory.
    with TemporaryDirectory(dir="/var/tmp") as name:
        home, own = Path(name, "home"), Path(name, "temporary")
        home.mkdir()
        own.mkdir()
        command = [sys.executable, "-m", "tests.attacks.victim", str(home)]
        if below:
            (home / below).mkdir(parents=True)
            mounting = 'mount -t tmpfs none "$0" && exec "$@"'
            apart_from_all = [shutil.which("unshare") or "", "--map-root-user", "--mount"]
            command = [*apart_from_all, "sh", "-c", mounting, str(home / below), *command]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "HOME": str(home),
                "TMPDIR": str(own),
                "PENSTOCK_STATE_DIR": str(Path(name, "state")),
                "PENSTOCK_NAMESPACES": str(int(apart)),
                "PYTHONPATH": str(ROOT),
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["ended"] == 0, found["said"]
        return found


def looked_at(apart: bool) -> dict[str, Any]:
    """What the probes came to, where this kernel has all measures."""
    found = tried(apart)
    missing = [
        f"{what} ({detail})"
        for what, (holds, detail) in found["report"].items()
        if not holds and (apart or what != kernel.NAMESPACES)
    ]
    if missing:
        pytest.skip(f"this kernel lacks {', '.join(missing)}")
    return found


def names() -> list[str]:
    nowhere = Path("nowhere")
    groups = (
        probes.of_files(nowhere),
        probes.of_attributes(nowhere),
        probes.of_state(nowhere),
        probes.of_sockets(nowhere),
        probes.of_processes(0),
        probes.of_queues(dict.fromkeys(("key", "segment", "queue", "semaphore"), 0)),
        probes.of_kernel(),
    )
    return [name for group in groups for name in group]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.xfail(reason=GAPS[n], strict=True)) if n in GAPS else n
        for n in names()
    ],
)
def test_a_probe_is_refused(name: str) -> None:
    assert looked_at(apart=False)["probes"][name] != "done"


@pytest.mark.skipif(
    shutil.which("unshare") is None,
    reason="unshare, of util-linux, makes the namespaces of this test",
)
def test_mounts_below_a_shown_folder_are_read_only() -> None:
    looked_at(apart=True)
    shown = tried(apart=True, below="library/inner")["shown"]["mounts of the machine"]
    (options,) = [
        fields[5]
        for fields in map(str.split, shown.splitlines())
        if fields[4].endswith("/library/inner")
    ]
    assert "ro" in options.split(",")


@pytest.mark.parametrize("name", sorted(set(names()) - OF_THE_MACHINE))
def test_a_probe_is_refused_in_namespaces(name: str) -> None:
    assert looked_at(apart=True)["probes"][name] != "done"


def test_sandbox_hides_networks_and_users_of_the_machine() -> None:
    shown = looked_at(apart=True)["shown"]
    assert set(shown["addresses of network devices"].split()) <= {"00:00:00:00:00:00"}
    # Nothing but the heading of the table.
    for table in ("connections of the machine", "sockets of the machine"):
        assert len(shown[table].splitlines()) == 1, shown[table]
    assert [line.split(":")[0] for line in shown["users of the machine"].splitlines()] == ["driver"]
    mounts = [line.split() for line in shown["mounts of the machine"].splitlines()]
    places = [fields[4] for fields in mounts]
    written = {fields[4] for fields in mounts if "ro" not in fields[5].split(",")}
    scratch = {place for place in written if "/scratch/" in place}
    assert len(scratch) == 1
    assert all(each.startswith(("/dev/", "/proc", "/sys")) for each in written - scratch - {"/"})
    assert places[0] == "/"
    assert not {"/home", "/root", "/tmp", "/etc", "/var", "/run"} & set(places)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_sandbox_allows_acts_within_the_process(name: str, apart: bool) -> None:
    assert tried(apart)["probes"][name] == "done"


@pytest.mark.parametrize("apart", [False, True])
def test_sandboxed_driver_changes_no_file_and_reaches_no_socket(apart: bool) -> None:
    assert tried(apart)["changed"] == []
    assert tried(apart)["heard"] == 0


@pytest.mark.parametrize("apart", [False, True])
def test_every_probe_was_tried(apart: bool) -> None:
    assert set(tried(apart)["probes"]) == {*names(), *HARMLESS}
    assert set(GAPS) <= set(names())
    assert tried(apart)["report"][kernel.NAMESPACES][0] in {apart, False}
