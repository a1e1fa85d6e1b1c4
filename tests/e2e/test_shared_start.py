"""What starts with a shared store import: a hit in the local cache nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.cache import small
from tests.support_stores import Fleet

OF_STORES: Final = ("penstock.remotecache", "tuf", "obstore", "cryptography", "securesystemslib")

PROGRAM: Final = """
import json, sys
import penstock
with penstock.compile(sys.argv[1], devices=["lab"], cache=sys.argv[2]) as compiled:
    step = compiled.receipt.steps[0]
print(json.dumps([step.cache.outcome, step.cache.shared, sorted(sys.modules)]))
"""


@pytest.fixture
def starts(tmp_path: Path) -> list[Any]:
    """Two starts of a machine whose store has the entry: outcome, words and modules."""
    fleet = Fleet(tmp_path, f"file://{tmp_path}/store")
    model = tmp_path / "m.tflite"
    model.write_bytes(small())

    def start(machine: str, key: str = "") -> Any:
        with fleet.on(machine, key):
            place = tmp_path / machine
            settings = {
                "PENSTOCK_STATE_DIR": str(place / "state"),
                "PENSTOCK_CACHE_DIR": str(place / "cache"),
                "PENSTOCK_STORE_ROOT": str(place / "root.json"),
                "PENSTOCK_STORE_KEY": str(place / "key.pem") if key else "",
                "PENSTOCK_KEY_STORE": "file",
            }
        told = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(model), fleet.url],
            env={**os.environ, **settings},
            capture_output=True,
            check=True,
        )
        return json.loads(told.stdout)

    start("builder", "ci")
    return [start("reader"), start("reader")]


def test_a_hit_in_the_local_cache_imports_nothing_of_stores(starts: list[Any]) -> None:
    (first, words, loaded), (second, none, modules) = starts
    assert (first, second, none) == ("hit", "hit", "")
    assert words.startswith("fetched from ")
    assert set(OF_STORES) - {"obstore"} <= set(loaded)
    assert [m for m in modules for name in OF_STORES if f"{m}.".startswith(f"{name}.")] == []
