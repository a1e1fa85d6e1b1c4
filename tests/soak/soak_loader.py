"""Mutation fuzzing of the TFLite loader: python -m tests.soak.soak_loader [--count N] [--seed S].

Every damaged file must load or be refused by name, in bounded time and memory; what loads must come
through the writer unchanged, and run on the reference driver or fail by name. Prints figures; exit
code 1 when one file did not, with its seed.
"""

# a program: it prints its figures

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.conftest import CORPUS
from tests.soak.mutation import mutate, samples, trial

COUNT = 120_000
MAX_SEED_BYTES = 20_000
SECONDS_PER_FILE = 10
MEMORY_PER_PROCESS = 1 << 30
"""Address space a worker may use beyond what it has when it starts."""

CHUNK = 500


class TooSlow(BaseException):
    """A file took longer than it may."""


@dataclass
class Figures:
    """What one chunk of files came to."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, -1)
    peak_kib: int = 0


def seeds() -> list[bytes]:
    """The small files of the corpus, and the tests' own."""
    found = samples()
    if CORPUS is not None:
        for path in sorted((CORPUS / "models").glob("*/*.tflite")):
            if path.stat().st_size <= MAX_SEED_BYTES and path.parent.name != "corrupted":
                found.append(path.read_bytes())
    return found


def run_chunk(files: list[bytes], first: int, count: int) -> Figures:
    figures = Figures()
    for seed in range(first, first + count):
        content = mutate(files, seed)
        begun = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_FILE)
        try:
            figures.outcomes[trial(content)] += 1
        except (Exception, TooSlow):  # noqa: BLE001  # whatever the loader raises is counted
            figures.failures.append((seed, traceback.format_exc()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        figures.slowest = max(figures.slowest, (time.perf_counter() - begun, seed))
    figures.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return figures


def worker(files: list[bytes], pipe: Connection) -> None:
    """Runs chunks that the parent sends, under limits of time and memory."""

    def on_alarm(number: int, frame: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, on_alarm)
    run_chunk(files, 0, 20)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_PER_PROCESS,) * 2)
    while (task := pipe.recv()) is not None:
        pipe.send(run_chunk(files, *task))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="how many mutated files")
    parser.add_argument("--seed", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    files = seeds()
    begun = time.monotonic()
    total, lost = fuzz(files, arguments.seed, arguments.count, arguments.jobs)
    elapsed = time.monotonic() - begun
    done = total.outcomes.total() + len(total.failures)
    print(
        f"{done} files from {len(files)} seeds in {elapsed:.0f} s ({done / max(elapsed, 1e-9):.0f} "
        "a second)"
    )
    print(
        f"slowest {total.slowest[0] * 1e3:.0f} ms (seed {total.slowest[1]}), peak "
        f"{total.peak_kib >> 10} MiB a process"
    )
    for outcome, count in total.outcomes.most_common():
        print(f"  {count:8d} {outcome}")
    for seed, text in total.failures[:5]:
        print(f"FAILED: seed {seed}\n{text}")
    for first in lost:
        print(f"FAILED: a worker died among seeds {first} to {first + CHUNK - 1}")
    print(f"{len(total.failures)} failures, {len(lost)} crashes")
    return 1 if total.failures or lost or done < arguments.count else 0


def fuzz(files: list[bytes], first: int, count: int, jobs: int) -> tuple[Figures, list[int]]:
    """Deals chunks to *jobs* processes; a process that dies is replaced, its chunk named."""
    context = multiprocessing.get_context("spawn")
    pending = [(at, min(CHUNK, first + count - at)) for at in range(first, first + count, CHUNK)][
        ::-1
    ]
    total, lost = Figures(), []
    active: dict[Connection, tuple[BaseProcess, tuple[int, int]]] = {}
    while pending or active:
        while pending and len(active) < jobs:
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=worker, args=(files, theirs), daemon=True)
            process.start()
            theirs.close()
            ours.send(pending[-1])
            active[ours] = (process, pending.pop())
        for pipe in multiprocessing.connection.wait(list(active)):
            if not isinstance(pipe, Connection):
                continue
            process, task = active[pipe]
            try:
                merge(total, pipe.recv())
            except EOFError:
                lost.append(task[0])
                process.join()
                del active[pipe]
                continue
            if pending:
                active[pipe] = process, pending[-1]
                pipe.send(pending.pop())
            else:
                pipe.send(None)
                process.join()
                del active[pipe]
    return total, lost


def merge(total: Figures, part: Figures) -> None:
    total.outcomes += part.outcomes
    total.failures += part.failures
    total.slowest = max(total.slowest, part.slowest)
    total.peak_kib = max(total.peak_kib, part.peak_kib)


if __name__ == "__main__":
    sys.exit(main())
