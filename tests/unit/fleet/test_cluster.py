"""A job and a deployment on a local cluster of two raylets, of which a worker and a node die: what
docs/ray.md shows.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support_ray import NAMES

ROOT = Path(__file__).resolve().parents[3]
ROWS, BLOCKS = 48, 12
LABELS = {"zero": "0", "three": "3", "seven": "7"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed: pip install '.[ray]'",
    ),
]


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `tests.support_ray` says, of one cluster for all processes of the session."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    result = shared / "ray.json"
    with (shared / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            folder = tmp_path_factory.mktemp("ray")
            command = [
                sys.executable,
                "-m",
                "tests.support_ray",
                str(folder),
                "--serve",
                "--example",
            ]
            command += ["--rows", str(ROWS), "--blocks", str(BLOCKS)]
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            result.write_text(done.stdout.strip().splitlines()[-1])
    return json.loads(result.read_text("utf-8"))


def test_every_row_is_there_once_though_a_worker_and_a_node_are_killed(happened: Any) -> None:
    job = happened["job"]
    assert set(job["killed"]) == {"kill-0", "node"}
    assert all(0 < parts < BLOCKS for parts in job["killed"].values())
    assert (job["rows"], job["lost"], job["doubled"], job["errors"]) == (ROWS, 0, 0, 0)
    assert job["labels"] == sorted([n, LABELS[n], ROWS // len(NAMES)] for n in NAMES)


def test_every_row_names_the_device_of_the_node_that_answered_it(happened: Any) -> None:
    assert happened["job"]["devices"] == [["head", "llvm"], ["second", "reference"]]


def test_all_workers_of_a_machine_compile_once(happened: Any) -> None:
    outcomes = happened["job"]["outcomes"]["head"]
    assert happened["job"]["workers"] >= 3
    assert outcomes.count("miss") == 1
    assert outcomes.count("hit") == len(outcomes) - 1


def test_requests_of_a_deployment_run_in_one_batch(happened: Any) -> None:
    said = happened["deployment"]
    *answers, refused = said["answers"]
    assert [answer["label"] for answer in answers] == [LABELS[name] for name in NAMES]
    assert {answer["device"] for answer in answers} == {"llvm"}
    assert "not a PNG, JPEG or BMP picture" in refused["error"]
    # Of fewer requests than a batch, the first would wait 30 seconds for others.
    assert said["seconds"] < 30


def test_requests_over_http_get_what_the_handle_gets_in_one_batch(happened: Any) -> None:
    said = happened["deployment"]
    assert [status for status, _ in said["over_http"]] == [200, 200, 200, 422]
    assert [answer for _, answer in said["over_http"]] == said["answers"]
    assert said["seconds_over_http"] < 30


def test_the_example_labels_the_pictures_of_a_directory(happened: Any) -> None:
    rows = {Path(row["path"]).stem: row for row in happened["example"]}
    assert {name: row["label"] for name, row in rows.items()} == LABELS
    assert {(row["device"], row["error"]) for row in rows.values()} == {("llvm", None)}
