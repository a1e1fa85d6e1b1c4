"""Penstock's tuned plan against LiteRT, ONNX Runtime and OpenVINO used directly, network by network.

Each race is a process of its own (`benchmarks.engine_race`), on as many cores as threads. `faithful`: LiteRT as it
runs by default competes on every .tflite network and ONNX Runtime on every .onnx one; another engine as far as it stays
within the class, with its operations and its outputs: as it runs by default, else as its settings make it keep to the
model's types (`benchmarks.competitors`). `relaxed`: all compete.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import ROOT, Row

NAME: Final = "engines"
CLASSES: Final = ("faithful", "relaxed")
SHARE: Final = 0.98
GRACE_S: Final = 10e-6
COUNTED_MACS: Final = 1_000_000
"""Networks above so many multiply-accumulates count for the geometric means."""

ROUNDS: Final = 15
QUICK: Final = ("hello_world_int8", "resnet8_cifar10_int8", "mobilenet_v1_0.25_224_float")
LONGEST_S: Final = 900


def rows(*, quick: bool) -> list[Row]:
    """A row a network, number of threads and class; then the geometric means, by competitor."""
    entries = networks()
    if quick:
        entries = [entry for entry in entries if entry["id"] in QUICK]
    found: list[Row] = []
    for accuracy in CLASSES:
        for threads in counts():
            means: dict[str, list[float]] = {}
            for entry in entries:
                result = raced(entry, threads, accuracy, 5 if quick else ROUNDS)
                found.append(judged(entry, threads, accuracy, result, means))
            found += list(compared(threads, accuracy, means))
    return found


def networks() -> list[dict[str, Any]]:
    """The corpus's networks; none without a corpus. PENSTOCK_BENCH_ONLY names some, separated by commas."""
    corpus = Path(os.environ.get("PENSTOCK_CORPUS") or ROOT.parent / "shared").expanduser()
    manifest = corpus / "models" / "manifest.json"
    if not manifest.is_file():
        return []
    entries = json.loads(manifest.read_bytes())["entries"]
    only = set(filter(None, os.environ.get("PENSTOCK_BENCH_ONLY", "").split(",")))
    return [
        {**entry, "path": str(manifest.parent / entry["file"])}
        for entry in entries
        if entry["kind"] == "network" and (not only or entry["id"] in only)
    ]


def counts() -> Sequence[int]:
    """1 and 2 threads, as far as there are cores. The bench itself may have been put on one of them."""
    return tuple(n for n in (1, 2) if n <= (os.cpu_count() or 1))


def raced(entry: dict[str, Any], threads: int, accuracy: str, rounds: int) -> dict[str, Any]:
    """What the race's process printed; `failed` where it failed."""
    arguments = [entry["path"], str(threads), accuracy, str(rounds)]
    with tempfile.TemporaryDirectory() as scratch:
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        environment = {
            **kept,
            "PENSTOCK_CACHE_DIR": f"{scratch}/cache",
            "PENSTOCK_STATE_DIR": f"{scratch}/state",
            "PENSTOCK_KEY_STORE": "file",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.engine_race", *arguments],
                check=False,
                capture_output=True,
                text=True,
                env=environment,
                cwd=ROOT,
                timeout=LONGEST_S,
                preexec_fn=_every_core,  # nothing runs in this process but this thread
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no end after {LONGEST_S} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200] if done.stderr else "?"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _every_core() -> None:
    """A race chooses its cores among all, not among those that the bench was put on."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def judged(
    entry: dict[str, Any],
    threads: int,
    accuracy: str,
    result: dict[str, Any],
    means: dict[str, list[float]],
) -> Row:
    """Penstock's time over the best competitor's, the median of each round's ratio: both met the same neighbours then.
    The limit lets it be 2 % and 10 us slower.
    """
    measure = f"{accuracy} {entry['id']}, {threads} threads"
    if "failed" in result:
        return Row(NAME, measure, math.inf, "x", 1.0, result["failed"])
    medians = {name: statistics.median(times) for name, times in result["times"].items()}
    mine = medians.pop("penstock")
    if not medians:
        return Row(NAME, measure, math.nan, "x", None, f"nobody competes: {result['refused']}")
    best = min(medians, key=lambda name: medians[name])
    if (entry.get("macs") or 0) > COUNTED_MACS:
        for name, took in medians.items():
            means.setdefault(name.split(" (")[0], []).append(took / mine)
    devices = "+".join(dict.fromkeys(device for device, _ in result["plan"]))
    note = f"{mine * 1e3:.3f} ms on {devices} in {len(result['plan'])} steps; " + ", ".join(
        f"{name} {took * 1e3:.3f}" for name, took in medians.items()
    )
    limit = 1 / SHARE + GRACE_S / medians[best]
    rounds = zip(result["times"]["penstock"], result["times"][best], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in rounds)
    return Row(NAME, measure, ratio, "x", round(limit, 4), note)


def compared(threads: int, accuracy: str, means: dict[str, list[float]]) -> Iterator[Row]:
    """How long each competitor takes beside Penstock, in geometric mean; written the other way round, since a row's
    limit is a most.
    """
    for name, ratios in means.items():
        mean = statistics.geometric_mean(ratios)
        note = f"{name} takes {mean:.3f} times as long, over {len(ratios)} networks"
        yield Row(NAME, f"{accuracy}, {threads} threads, over {name}", 1 / mean, "x", 1.0, note)
