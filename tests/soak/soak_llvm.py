"""The device llvm: python -m tests.soak.soak_llvm [--count N] [--stride N] [--cycles N]
[--layers N] [--seed S].

A network is compiled, run and closed over and over, by LLVM and from the cache, and so is one that
threads share: no mapping, descriptor or thread may be left. Then each bit of both of the network's
cache files is flipped: the driver must refuse it before code is mapped. Seeded ones go through
whole compiles. At last layers of every family run between guard pages on every instruction set of
this machine, and under qemu on those of aarch64. Prints figures; exit code 1 when something was
left, accepted, or answered wrong; 2 without the corpus, the device or qemu.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import penstock
from penstock.drivers.llvm import LlvmDevice, compiling
from penstock.errors import SealBroken
from penstock.ir import Model, NDArray
from tests import support_aarch64, support_guard
from tests.conftest import CORPUS, NO_CORPUS
from tests.soak.soak_lifetime import anonymous_kib
from tests.support_engine_entry import NETWORK
from tests.support_layers import FAMILIES, supported_layers
from tests.support_llvm import MISSING, LlvmEntry
from tests.support_threads_llvm import image, network

ALLOWED_GROWTH_KIB = 16 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak and returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.soak.soak_llvm", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="compile and close so often")
    parser.add_argument("--stride", type=int, default=1, help="flip every N-th bit alone")
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--layers", type=int, default=100, help="of each family")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if CORPUS is None:
        print(NO_CORPUS)
        return 2
    if MISSING is not None:
        print(MISSING)
        return 2
    qemu = support_aarch64.find_qemu()
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as root:
        small = penstock.load(CORPUS / "models" / "networks" / f"{NETWORK}.tflite")
        turns = Path(root) / "turns"
        left = _open_and_close(NETWORK, small, np.array([[7]], np.int8), turns, options.count)
        left |= _open_and_close("a shared network", network(), image(), turns, options.count // 10)
        entry = LlvmEntry(CORPUS, Path(root) / "cache")
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
        wrong = _between_guard_pages(options.layers)
        print(f"layers under {qemu}:")
        wrong += _on_aarch64(options.layers // 4, Path(root))
    whole = (refused, done) == (len(bits), options.cycles)
    return 0 if whole and not left and not wrong else 1


def _open_and_close(name: str, model: Model, given: NDArray, cache: Path, count: int) -> bool:
    """Compiles, runs and closes a network *count* times; whether something is left."""
    policy = penstock.Policy(allow_fallback=False)
    begun = time.monotonic()
    before = (0, 0, 0, 0)
    # Every compile is one by LLVM.
    with patch.object(compiling, "MOST_OBJECTS", 0):
        for turn in range(-20, count):
            if not turn:
                before = _counts()
            with penstock.compile(
                model,
                devices=[LlvmDevice()],
                policy=policy,
                cache=cache if turn % 2 else None,
                shapes={str(model.inputs[0].name): given.shape},
                num_threads=2,
            ) as compiled:
                compiled.run([given])
    after = _counts()
    print(f"{name}: {count} compiles and closes in {time.monotonic() - begun:.0f} s")
    names = ("mappings", "descriptors", "threads", "anonymous KiB")
    rows = zip(names, before, after, strict=True)
    print(", ".join(f"{name} {was} -> {now}" for name, was, now in rows))
    return after[1:3] != before[1:3] or any(
        now > was + room
        for was, now, room in zip(before, after, (16, 0, 0, ALLOWED_GROWTH_KIB), strict=True)
    )


def _between_guard_pages(count: int) -> int:
    """How many families touch memory that they must not, or compute something else."""
    wrong = 0
    for family in FAMILIES:
        begun = time.monotonic()
        taken, failure = support_guard.tried(family, count)
        shown = ", ".join(f"{number} on {name}" for name, number in taken.items())
        print(f"{family} between guard pages: {shown} in {time.monotonic() - begun:.0f} s")
        if failure:
            wrong += 1
            print(f"FAILED: {failure}")
    return wrong


def _on_aarch64(count: int, directory: Path) -> int:
    """How many layers compute something else than the interpreter."""
    wrong = 0
    for family in FAMILIES:
        begun, taken = time.monotonic(), 0
        for name in support_aarch64.SETS:
            for seed, model, inputs in supported_layers(family, range(count)):
                taken += 1
                if differs := support_aarch64.wrong(model, inputs, name, directory):
                    wrong += 1
                    print(f"FAILED: {family} {seed} on {name}: {differs}")
        print(f"{family} on aarch64: {taken} cases in {time.monotonic() - begun:.0f} s")
    return wrong


def _counts() -> tuple[int, int, int, int]:
    gc.collect()
    own = Path("/proc/self")
    mappings = (own / "maps").read_text("utf-8").count("\n")
    descriptors = len(list((own / "fd").iterdir()))
    return mappings, descriptors, threading.active_count(), anonymous_kib()


if __name__ == "__main__":
    sys.exit(main())
