"""A job on Ray with kills: python -m tests.soak.soak_ray [--rows N] [--blocks N] [--kills N].

Two raylets of one processor each answer prepared pictures. Workers are killed one after the other,
and in the end all of the second node. Every row must be in the result once, with the device of the
node that answered it, and one worker of all may have compiled for the first node: the second has
no device with a cache. The short version is tests/unit/fleet/test_cluster.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DEVICES: Final = {"head": "llvm", "second": "reference"}
LABELS: Final = {"zero": "0", "three": "3", "seven": "7"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Workers and a node of a cluster are killed.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "tests.support_ray", place]
        command += ["--rows", str(given.rows), "--blocks", str(given.blocks)]
        command += ["--kills", str(given.kills), "--prepared"]
        environment = {**os.environ, "PENSTOCK_CALIBRATE": "never"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        print(done.stderr[-4000:])
        return 1
    job = json.loads(done.stdout.strip().splitlines()[-1])["job"]
    outcomes = {node: dict(Counter(found)) for node, found in job["outcomes"].items()}
    print(f"{job['rows']} rows in {given.blocks} blocks, two nodes, {job['seconds']:.0f} s")
    for name, parts in job["killed"].items():
        print(f"  {name}: killed after {parts} output files")
    print(f"  {job['workers']} workers in all; the cache: {outcomes}")
    print(f"  {job['lost']} rows lost, {job['doubled']} doubled, {job['errors']} errors")
    wrong = [entry for entry in job["labels"] if entry[1] != LABELS[entry[0]]]
    print(f"  {len(wrong)} kinds of wrong labels; devices {job['devices']}")
    held = (
        (job["rows"], job["lost"], job["doubled"], job["errors"]) == (given.rows, 0, 0, 0)
        and len(job["killed"]) == given.kills + 1
        and all(0 < parts < given.blocks for parts in job["killed"].values())
        and outcomes["head"]["miss"] == 1
        and job["devices"] == sorted([node, device] for node, device in DEVICES.items())
        and not wrong
    )
    print("every row once" if held else "NOT every row once")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
