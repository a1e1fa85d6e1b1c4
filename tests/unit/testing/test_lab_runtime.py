"""The lab device behind `penstock.compile`: late artefacts that the next process hits, and levels
without a cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import penstock
from penstock.testing.lab import LabDevice
from penstock.testing.lab.device import Mode
from tests.support_lab import small
from tests.support_programs import run_python

ROOT = Path(__file__).resolve().parents[3]
CASE = small()


class Start(NamedTuple):
    """What one process saw: compiles while preparing, all compiles of the device, and the cache's
    word.
    """

    prepared: int
    compiles: int
    said: str


def start(cache: Path, device: LabDevice, runs: int = 1) -> Start:
    with penstock.compile(CASE.model, devices=[device], cache=cache) as compiled:
        for _ in range(runs):
            for found, wanted in zip(compiled(*CASE.inputs), CASE.outputs, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        receipt = compiled.receipt
        return Start(receipt.compiles, device.compiles, str(receipt.steps[0].cache))


CHILD = """
import sys
from pathlib import Path
from penstock.testing.lab import LabDevice
from tests.unit.testing.test_lab_runtime import start
print(*start(Path(sys.argv[1]), LabDevice(mode=sys.argv[2], uses=2), int(sys.argv[3])))
"""


def start_process(cache: Path, mode: Mode, runs: int) -> Start:
    done = run_python("-c", CHILD, cache, mode, runs, cwd=ROOT, check=True)
    prepared, compiles, said = done.stdout.split(maxsplit=2)
    return Start(int(prepared), int(compiles), said.strip())


def test_next_process_hits_the_entry_of_a_first_run(tmp_path: Path) -> None:
    first = start_process(tmp_path, "first_run", 1)
    assert first.compiles == 1
    assert first.said.startswith("miss: NoEntry: ")
    assert start_process(tmp_path, "first_run", 1) == Start(0, 0, "hit: optimised")


def test_next_process_hits_the_entry_of_each_stage(tmp_path: Path) -> None:
    assert start_process(tmp_path, "staged", 1).compiles == 1
    assert start_process(tmp_path, "staged", 1) == Start(0, 0, "hit: baseline")
    # It loads the baseline, and optimises it at the second run.
    assert start_process(tmp_path, "staged", 2) == Start(0, 1, "hit: baseline")
    assert start_process(tmp_path, "staged", 2) == Start(0, 0, "hit: optimised")


def test_an_entry_that_is_still_to_be_written_is_a_miss_of_that_name(tmp_path: Path) -> None:
    lazy = LabDevice(mode="first_run")
    with penstock.compile(CASE.model, devices=[lazy], cache=tmp_path) as waiting:
        assert start(tmp_path, LabDevice()).said.startswith("miss: NotYetWritten: ")
        waiting(*CASE.inputs)
        assert start(tmp_path, LabDevice()) == Start(0, 0, "hit: optimised")
    assert lazy.compiles == 1


@pytest.mark.parametrize("level", range(1, 9))
def test_caching_begins_with_feature_level_3(level: int, tmp_path: Path) -> None:
    starts = [start(tmp_path, LabDevice(feature_level=level)) for _ in range(2)]
    if level < 3:
        assert [s.compiles for s in starts] == [1, 1]
        assert starts[1].said.startswith("off: ")
        assert list(tmp_path.iterdir()) == []
    else:
        assert starts[1] == Start(0, 0, "hit: baseline")


@pytest.mark.parametrize("files", [(0, 0), (1, 0), (0, 1), (3, 2), (32, 32)])
def test_any_number_of_files(files: tuple[int, int], tmp_path: Path) -> None:
    starts = [start(tmp_path, LabDevice(files=files)) for _ in range(2)]
    assert [s.compiles for s in starts] == [1, int(files == (0, 0))]
