"""A hostile driver in its sandbox: each of its probes is refused, or changes, reads and slows nothing beyond its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

if sys.platform != "linux":
    pytest.skip("the sandbox is Linux's", allow_module_level=True)

from tests.attacks import probes
from tests.conftest import ROOT

HARMLESS: Final = frozenset(probes.of_itself())
"""Changes, reads and slows nothing outside of the driver's own process and scratch."""

GAPS: Final = {
    "see the size of a private file": "Landlock says nothing of stat: another view of the file system would",
    "read a link": "Landlock says nothing of readlink: another view of the file system would",
    "addresses of network devices": "the machine's devices are shown to engines",
    "connections of the machine": "the process has the machine's network, which it cannot use",
    "sockets of the machine": "the process has the machine's network, which it cannot use",
    "mounts of the machine": "the process has the machine's view of the file system",
    "users of the machine": "C libraries look for the user there",
    "where cores go": "what the kernel is set to is shown to engines",
}
"""Allowed still, with the reason (docs/threat-model.md)."""


@cache
def tried() -> dict[str, Any]:
    with TemporaryDirectory() as name:
        home, own = Path(name, "home"), Path(name, "temporary")
        home.mkdir()
        own.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "tests.attacks.victim", str(home)],
            cwd=ROOT,
            env={
                **os.environ,
                "HOME": str(home),
                "TMPDIR": str(own),
                "PENSTOCK_STATE_DIR": str(Path(name, "state")),
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
    missing = [what for what, (holds, _) in tried()["report"].items() if not holds]
    if missing:
        pytest.skip(f"this kernel lacks {', '.join(missing)}")
    assert tried()["probes"][name] != "done"


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_stays_within_the_process_is_allowed(name: str) -> None:
    assert tried()["probes"][name] == "done"


def test_nothing_of_the_user_s_has_changed_and_nobody_has_heard_anything() -> None:
    assert tried()["changed"] == []
    assert tried()["heard"] == 0


def test_every_probe_was_tried() -> None:
    assert set(tried()["probes"]) == {*names(), *HARMLESS}
    assert set(GAPS) <= set(names())
