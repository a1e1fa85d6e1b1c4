"""Machines that share a store: python -m tests.soak.soak_fleet [--machines N] [--bits N].

N processes with empty caches start at once on one model and one store: with publishers' keys they
must compile once, without keys N times, and none may wait longer than its bound. Then bits of all
metadata and entries of a store are altered (0: each of them; `--first FILE`: of the files from this
one on), and no machine may get anything but what was published. Prints figures; exit code 1 for a
wrong answer or anything found that should not be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tuf.api.metadata import Metadata
from tuf.api.serialization import DeserializationError

import penstock
from benchmarks.cache import small
from penstock import knobs
from penstock.remotecache import roles
from tests.support_store_attacks import REFUSED, Files, flipped, outcome
from tests.support_stores import Fleet, parcel

STORE_SECONDS, WAIT_SECONDS = 20.0, 40.0
"""What one machine may wait for a look-up, and for another machine's compile. 50 processes on two
cores are slow in all that they do.
"""

SPAN = "shared store for step 0"

ONE = bytes(32)


def machine(fleet: Fleet, number: int, begin: float, *, with_key: bool) -> subprocess.Popen[str]:
    """A process with an empty cache that compiles at the time *begin*."""
    with fleet.on(f"m{number}-{with_key}", "ci" if with_key else ""):
        names = ("state_dir", "cache_dir", "key_store", "store_root", "store_key")
        settings = {f"PENSTOCK_{n.upper()}": str(getattr(knobs, n)()) for n in names}
    waits = {
        "PENSTOCK_STORE_SECONDS": f"{STORE_SECONDS}",
        "PENSTOCK_STORE_WAIT_SECONDS": f"{WAIT_SECONDS}",
    }
    command = [sys.executable, "-m", "tests.soak.soak_fleet", "--compile", fleet.url, str(begin)]
    environment = {**os.environ, **settings, **waits}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def compile_at(url: str, begin: float) -> None:
    """What one machine does; writes its figures."""
    time.sleep(max(0.0, begin - time.time()))
    began = time.monotonic()
    with penstock.compile(small(), devices=["llvm"], cache=url) as compiled:
        step = compiled.receipt.steps[0]
        figures = {
            "compiles": compiled.receipt.compiles,
            "shared": step.cache.shared,
            "seconds": time.monotonic() - began,
            "waited": sum(s.duration_ns for s in compiled.receipt.spans if s.name == SPAN) / 1e9,
        }
    print(json.dumps(figures))


def soak_machines(place: Path, count: int, *, with_keys: bool) -> str:
    fleet = Fleet(place, f"file://{place}/store")
    begin = time.time() + 1 + count / 5
    started = [machine(fleet, number, begin, with_key=with_keys) for number in range(count)]
    found: list[dict[str, Any]] = []
    for process in started:
        said, _ = process.communicate(timeout=600)
        if process.returncode:
            raise AssertionError(f"a machine ended with {process.returncode}")
        found.append(json.loads(said))
    compiles = sum(one["compiles"] for one in found)
    slowest, waited = (max(one[name] for one in found) for name in ("seconds", "waited"))
    bound = STORE_SECONDS + (2 * STORE_SECONDS + WAIT_SECONDS if with_keys else 0)
    words = Counter(one["shared"].partition(":")[0].partition(" ")[0] for one in found)
    said = ", ".join(f"{n} {word}" for word, n in words.most_common())
    figures = f"{compiles} compiles, the slowest {slowest:.1f} s, {waited:.1f} s with the store"
    if compiles != (1 if with_keys else count) or waited > bound:
        raise AssertionError(f"{figures}: {said}")
    return f"{count} machines, {figures} ({said})"


def soak_bits(place: Path, most: int, seed: int, first: str) -> str:
    fleet = Fleet(place, f"file://{place}/store")
    fleet.publisher().publish({ONE: parcel("one").pack()})
    files = Files(place / "store")
    accepted: Counter[str] = Counter()
    tried = 0
    names = [*files.names(roles.METADATA), *files.names(roles.ENTRIES)]
    for name in names[names.index(first) if first else 0 :]:
        content = files.read(name)
        is_needed = not works_without(files, name, fleet)
        chance = random.Random(seed) if most else None
        for altered in flipped(content, chance, most):
            files.write(name, altered)
            tried += 1
            got = outcome(fleet.machine(), ONE)
            if got == REFUSED:
                continue
            if got != "one" or (is_needed and not says_the_same(content, altered)):
                raise AssertionError(f"{name}: {got!r} of {altered!r}")
            accepted[f"{name}, {'the same in other letters' if is_needed else 'not needed'}"] += 1
        files.write(name, content)
    rest = "".join(f"\n    {count} of {where}" for where, count in sorted(accepted.items()))
    kept = accepted.total()
    return f"{tried} bits altered, {tried - kept} refused; the published entry in spite of{rest}"


def works_without(files: Files, name: str, fleet: Fleet) -> bool:
    """Whether a machine gets the published entry where the file *name* is missing."""
    content = files.read(name)
    (files.place / name).unlink()
    got = outcome(fleet.machine(), ONE)
    files.write(name, content)
    return got == "one"


def says_the_same(content: bytes, altered: bytes) -> bool:
    """Whether the same bytes are signed in *altered* metadata as in *content*, by the same bytes.

    Hexadecimal digits of a signature may be in another case, and a date may have a blank for a
    leading zero: clients decode the metadata, encode them again, and verify the signature of that.
    """
    try:
        before, after = Metadata.from_bytes(content), Metadata.from_bytes(altered)
    except DeserializationError:
        return False
    signatures = [
        {key: bytes.fromhex(each.signature) for key, each in found.signatures.items()}
        for found in (before, after)
    ]
    return before.signed_bytes == after.signed_bytes and signatures[0] == signatures[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--bits", type=int, default=0)
    parser.add_argument("--first", default="", help="such as metadata/timestamp.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", nargs=2)
    given = parser.parse_args()
    if given.compile:
        compile_at(given.compile[0], float(given.compile[1]))
        return 0
    with tempfile.TemporaryDirectory() as root:
        place = Path(root)
        works: dict[str, Callable[[Path], str]] = {
            "with keys": partial(soak_machines, count=given.machines, with_keys=True),
            "without keys": partial(soak_machines, count=given.machines, with_keys=False),
            "altered bits": partial(soak_bits, most=given.bits, seed=given.seed, first=given.first),
        }
        for name, work in works.items():
            own = place / name.replace(" ", "-")
            own.mkdir()
            try:
                print(f"{name}: {work(own)}", flush=True)
            except AssertionError as error:
                print(f"{name}: FAILED: {error}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
