"""Every bit of an OpenVINO entry: python -m tests.soak.soak_cache_openvino [--stride N] [--cycles
N] [--seed S].

Each bit of both cache files of a quantised network is flipped: the driver must refuse it before
OpenVINO is asked anything. Seeded ones go through whole compiles. Prints figures; exit code 1 when
something was accepted, or answered wrong; 2 without the corpus or OpenVINO.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.errors import SealBroken
from tests.conftest import CORPUS, NO_CORPUS
from tests.support_engine_entry import NETWORK
from tests.support_openvino_entry import OpenVinoEntry

CYCLES = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak and returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.soak.soak_cache_openvino", description=__doc__
    )
    parser.add_argument("--stride", type=int, default=1, help="flip every N-th bit alone")
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if CORPUS is None:
        print(NO_CORPUS)
        return 2
    if importlib.util.find_spec("openvino") is None:
        print("OpenVINO is not installed: pip install 'penstock-nn[openvino]'")
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as root:
        entry = OpenVinoEntry(CORPUS, Path(root) / "cache")
        bits = entry.bits()[options.seed % options.stride :: options.stride]
        begun = time.monotonic()
        refused = entry.refuse(SealBroken, bits)
        print(f"{NETWORK}: {refused} bits refused in {time.monotonic() - begun:.0f} s")
        begun = time.monotonic()
        model, data = (path.stat().st_size * 8 for path in entry.paths())
        draw = random.Random(options.seed)
        few = min(options.cycles // 10, data)
        done = entry.attack(SealBroken, 1, draw.sample(range(data), few))
        done += entry.attack(SealBroken, 0, draw.sample(range(model), options.cycles - few))
        print(f"{NETWORK}: {done} whole cycles in {time.monotonic() - begun:.0f} s")
    return 0 if (refused, done) == (len(bits), options.cycles) else 1


if __name__ == "__main__":
    sys.exit(main())
