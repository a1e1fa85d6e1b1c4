"""Answers a second of `penstock serve` with several requests at a time, beside the bare loop.

    bash tests/serve_clients/install
    python -m benchmarks.serving_throughput --results benchmarks/results/serving_throughput.md

The client is tritonclient, in a process of its own, and keeps as many requests in progress as the
row says. The bare loop of the same compiled model runs in another process, with as many threads;
with two, the fastest loop of a machine of two cores, beside a server that runs twice on one thread.
The subjects alternate, each for as many runs. Beside the rate stands the processor time of a
request in the server and in the client: it bounds the rate on a machine whose cores the model uses
already.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import penstock
from benchmarks import machine
from benchmarks.engines import networks
from benchmarks.measuring import interleaved
from benchmarks.serving import BATCHED, BATCHED_NETWORK, NETWORK, SHARED, client, setting, started
from penstock.serve.datatypes import NAMES

OPEN_NETWORK: Final = "mobilenet_edgetpu_1.0_uint8"
"""A MobileNet whose file leaves the batch open."""

ROWS: Final = 8

HEAD: Final = """\
# Answers a second

Written by `python -m benchmarks.serving_throughput`: tritonclient asks `penstock serve` on the same
machine, with several requests at a time, beside the bare loop of the same compiled model in another
process, with as many threads, or with two beside two runs of one thread. The subjects alternate.
`of bare` is the median over rounds of rows a second over those of the bare loop. The last columns
are processor time of a row, all threads together, in the bare loop, the server and the client.
**under**: below the limit."""


class Case(msgspec.Struct, frozen=True):
    """What is served, and how it is asked: *wanted* are the least rows a second over those of the
    bare loop for each (kind, requests at a time).
    """

    network: str
    threads: int
    asked: dict[tuple[str, int], float | None]
    rows: int = 1
    bare_rows: int = 1
    bare_threads: int = 0
    """Threads of the bare loop; 0 for as many as served."""
    options: tuple[str, ...] = ()


CASES: Final = (
    Case(
        NETWORK,
        2,
        {("shared", 1): None, ("shared", 2): 1 / SHARED, ("shared", 4): 1 / SHARED,
         ("grpc", 2): None, ("grpc", 4): None},
    ),
    Case(
        NETWORK,
        1,
        {("shared", 2): 1 / SHARED, ("shared", 4): 1 / SHARED, ("grpc", 2): None,
         ("grpc", 4): None},
    ),
    Case(
        NETWORK,
        1,
        {("shared", 4): 1 / SHARED, ("grpc", 4): None},
        bare_threads=2,
        options=("--running", "2"),
    ),
    Case(
        BATCHED_NETWORK, 2, {("shared", 2): None, ("grpc", 2): 1 / BATCHED}, ROWS, ROWS
    ),
    Case(
        OPEN_NETWORK,
        2,
        {("shared", 16): None, ("grpc", 16): 1 / BATCHED},
        1,
        ROWS,
        options=("--max-batch", str(ROWS)),
    ),
)  # fmt: skip


class Found(msgspec.Struct, frozen=True):
    """Rows a second, those of the bare loop in the same round, and processor time in seconds."""

    case: Case
    kind: str
    clients: int
    rate: float
    bare: float
    ratio: float
    run: float
    server: float
    client: float

    @property
    def limit(self) -> float | None:
        return self.case.asked[self.kind, self.clients]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_throughput")
    parser.add_argument("--results", type=Path, metavar="F.md", help="write the table here")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=100, help="runs of a subject in one round")
    parser.add_argument("--device", default="xnnpack")
    parser.add_argument("--case", type=int, nargs="*", default=[*range(len(CASES))])
    given = parser.parse_args()
    before = machine.load()
    found: list[Found] = []
    for number in given.case:
        found += measured(CASES[number], given.device, given.rounds, given.count)
        for row in found[-len(CASES[number].asked) :]:
            print(line(row), flush=True)
    if given.results is not None:
        text = "\n".join(document(found, given, before)) + "\n"
        given.results.write_text(text, "utf-8")
    return 0 if all(row.limit is None or row.ratio >= row.limit for row in found) else 1


def measured(case: Case, device: str, rounds: int, count: int) -> Iterator[Found]:
    (entry,) = networks([case.network])
    path = Path(entry["path"])
    model = penstock.load(path)
    (operand,) = model.inputs
    inner = tuple(size or 1 for size in (operand.shape or ())[1:])
    shape = (case.bare_rows, *inner)
    name, dimensions = operand.name, ",".join(map(str, (case.rows, *inner)))
    words = [f"net={path}", "-d", device, "--threads", str(case.threads), *case.options]
    if case.rows > 1:
        words += ["--shape", f"{name}={dimensions}"]
    compiled = penstock.compile(
        model,
        devices=[device],
        shapes={0: shape},
        num_threads=case.bare_threads or case.threads,
    )
    with (
        compiled,
        started(words) as (port, process),
        client(port, name, NAMES[operand.dtype], dimensions) as ask,
    ):
        array = np.zeros(shape, operand.dtype.numpy)
        spent: dict[str, list[float]] = {}

        def bare() -> float:
            runs = max(1, count * case.rows // case.bare_rows)
            began, used = time.perf_counter(), time.process_time()
            for _ in range(runs):
                compiled.run([array])
            seconds, own = time.perf_counter() - began, time.process_time() - used
            spent.setdefault("bare", []).append(own / runs / case.bare_rows)
            return runs * case.bare_rows / seconds

        def served(kind: str, clients: int) -> float:
            used = processor_time(process)
            said: dict[str, Any] = ask("closed", kind, clients, count)
            own = (processor_time(process) - used) / count / case.rows
            spent.setdefault(f"{kind} {clients} server", []).append(own)
            spent.setdefault(f"{kind} {clients}", []).append(said["spent"] / case.rows)
            return float(said["rate"]) * case.rows

        subjects: dict[str, Callable[[], float]] = {"bare": bare}
        for kind, clients in case.asked:
            subjects[f"{kind} {clients}"] = lambda k=kind, c=clients: served(k, c)  # type: ignore[misc]  # bound now
        for measure in subjects.values():
            measure()
        spent.clear()
        rates = interleaved(subjects, rounds)
    for kind, clients in case.asked:
        subject = f"{kind} {clients}"
        pairs = [*zip(rates[subject], rates["bare"], strict=True)]
        yield Found(
            case,
            kind,
            clients,
            statistics.median(rates[subject]),
            statistics.median(rates["bare"]),
            statistics.median(one / other for one, other in pairs),
            statistics.median(spent["bare"]),
            statistics.median(spent[f"{subject} server"]),
            statistics.median(spent[subject]),
        )


def processor_time(process: int) -> float:
    """Seconds that *process* and its children have used."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == process or int(fields[1]) == process:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def line(row: Found) -> str:
    verdict = "**under**" if row.limit is not None and row.ratio < row.limit else ""
    limit = "" if row.limit is None else f"{row.limit:.2f}"
    options = f" {' '.join(row.case.options)}" if row.case.options else ""
    rows = f", {row.case.rows} rows" if row.case.rows > 1 else ""
    times = " | ".join(f"{1e3 * each:.2f} ms" for each in (row.run, row.server, row.client))
    return (
        f"| {row.case.network}{rows}, {row.case.threads} threads{options} | {row.kind} "
        f"| {row.clients} | {row.rate:.1f} | {row.bare:.1f} | {row.ratio:.2f} "
        f"| {limit} | {verdict} | {times} |"
    )


def document(found: Sequence[Found], given: Any, before: float | None) -> Iterator[str]:
    yield from setting(HEAD)
    yield f"- {given.rounds} rounds of {given.count} runs of each subject, on `{given.device}`"
    yield f"- load of the machine before and after: {before} and {machine.load()}"
    yield ""
    yield (
        "| served | tensors | at a time | rows/s | bare rows/s | of bare | limit | "
        "| bare | server | client |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    yield from map(line, found)


if __name__ == "__main__":
    sys.exit(main())
