"""Drivers of other distributions: a second start imports only those that its plan uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cache import small

DRIVERS = 10

DRIVER = """
import os
from contextlib import suppress

def note(text):
    # A host process may not write there.
    with suppress(OSError, KeyError), open(os.environ["IMPORTS"], "a") as file:
        file.write(text + "\\n")

note("{name}")

from penstock.drivers.reference.driver import ReferenceDevice
from penstock.hal import Capabilities, PerformanceInfo

class Device(ReferenceDevice):
    name, version = "{name}", "1"
    capabilities = Capabilities(default_performance=PerformanceInfo(50.0, 50.0))

    def __init__(self):
        super().__init__()

    def supported_operations(self, model):
        note("asked {name}")
        return super().supported_operations(model)
"""

PROGRAM = """
import json, sys
import numpy as np
import penstock

with penstock.compile(sys.argv[1], cache=sys.argv[2]) as compiled:
    (x,) = compiled.inputs
    outputs = compiled(np.ones(x.shape, np.float32))
    print(json.dumps({
        "plan": compiled.plan.show(),
        "kept": str(compiled.receipt.plan),
        "devices": [step.device for step in compiled.receipt.steps],
        "outputs": [o.tolist() for o in outputs],
        "isolating": "penstock.ipc" in sys.modules,
    }))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of modules with the distributions of ten drivers, and a model beside it."""
    site = tmp_path / "site"
    for number in range(DRIVERS):
        name = f"toy{number}"
        described = site / f"{name}-1.0.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(
            f"[penstock.drivers]\n{name} = {name}_driver:Device\n"
        )
        (site / f"{name}_driver.py").write_text(DRIVER.format(name=name))
    (tmp_path / "model.tflite").write_bytes(small())
    return tmp_path


def start(place: Path, **knobs: str) -> tuple[dict[str, Any], list[str]]:
    """What a program tells, and what the drivers noted: imports, and questions about support."""
    notes = place / "imports"
    notes.write_text("")
    kept_here = ",".join(f"toy{number}=no" for number in range(DRIVERS))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(place / "site"), os.environ.get("PYTHONPATH", "")]),
        "IMPORTS": str(notes),
        "PENSTOCK_ISOLATE": kept_here,
        "PENSTOCK_STATE_DIR": str(place / "state"),
        "PENSTOCK_KEY_STORE": "file",
        **{f"PENSTOCK_{name.upper()}": value for name, value in knobs.items()},
    }
    command = [sys.executable, "-c", PROGRAM, str(place / "model.tflite"), str(place / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), notes.read_text().split("\n")[:-1]


def test_a_second_start_imports_no_driver_that_its_plan_does_not_use(place: Path) -> None:
    every = [f"toy{number}" for number in range(DRIVERS)]
    first, noted = start(place)
    assert first["kept"].startswith("miss: NoEntry")
    assert sorted(n for n in noted if not n.startswith("asked")) == every
    assert sorted({n for n in noted if n.startswith("asked")}) == [f"asked {n}" for n in every]
    assert not set(first["devices"]) & set(every)
    second, noted = start(place)
    assert second["kept"] == "hit"
    assert noted == []
    assert {**second, "kept": ""} == {**first, "kept": ""}


def test_only_the_drivers_that_a_plan_uses_are_imported_and_none_is_asked(place: Path) -> None:
    first, noted = start(place, devices="toy3, toy7")
    assert first["devices"] == ["toy3"]
    second, noted = start(place, devices="toy3, toy7")
    assert second["kept"] == "hit"
    assert noted == ["toy3"]
    assert second["outputs"] == first["outputs"]


def test_an_installed_driver_is_found_by_the_next_start(place: Path) -> None:
    start(place)
    assert start(place)[0]["kept"] == "hit"
    added = place / "site" / "another-2.0.dist-info"
    added.mkdir()
    for name, text in {
        "METADATA": "Metadata-Version: 2.1\nName: another\nVersion: 2.0\n",
        "entry_points.txt": "[penstock.drivers]\nanother = toy0_driver:Device\n",
    }.items():
        (added / name).write_text(text)
    told, noted = start(place)
    assert told["kept"].startswith("miss: NoEntry: the nearest plan differs in ")
    assert "another-2.0" in told["kept"]
    assert noted


def test_a_second_start_isolates_nothing_that_its_plan_does_not_use(place: Path) -> None:
    """Drivers of other distributions are isolated by default; here there is one."""
    for number in range(1, DRIVERS):
        shutil.rmtree(place / "site" / f"toy{number}-1.0.dist-info")
    first, noted = start(place, isolate="")
    assert first["isolating"]
    assert noted == []
    assert "toy0" in first["plan"]
    second, noted = start(place, isolate="")
    assert (second["kept"], second["isolating"], noted) == ("hit", False, [])
    assert second["outputs"] == first["outputs"]
    assert second["plan"] == first["plan"]
