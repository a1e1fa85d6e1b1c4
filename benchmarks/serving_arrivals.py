"""The latency of `penstock serve` where requests come at random times, whatever is answered.

    bash tests/serve_clients/install
    python -m benchmarks.serving_arrivals --results benchmarks/results/serving_arrivals.md

The model has one thread, and one run of it is in progress at a time. The client is tritonclient,
over gRPC, in a process of its own. Each round finds the capacity, the requests a second that are
answered while four wait at any time, and then asks at a half of it: an open loop with Poisson
arrivals. Then it finds the capacity again: a round in which that changed by more than a quarter was
beside other load, was not at a half of anything, and does not count. A latency counts from the time
at which the request was due. Refused requests (beyond the queue of the server) are counted and have
no latency.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import penstock
from benchmarks import machine
from benchmarks.engines import networks
from benchmarks.serving import NETWORK, client, server, setting
from penstock.serve.datatypes import NAMES

SHARE: Final = 0.5
CLIENTS: Final = 4
STEADY: Final = 1.25
LIMIT: Final = 6.0
"""p99 over p50."""

HEAD: Final = """\
# Requests at random times

Written by `python -m benchmarks.serving_arrivals`: tritonclient asks `penstock serve` over gRPC on
the same machine, one model of one thread. A round finds the capacity with four requests at a time,
then asks at a half of it with Poisson arrivals, whatever is answered. Latencies count from the time
at which a request was due. Refused requests are counted. The capacity is found again after each
round: where it changed by more than a quarter, the machine had other work, and the round does not
count. The result is the median of those that count. **over**: beyond the limit."""


class Round(msgspec.Struct, frozen=True):
    """Requests a second, seconds, and numbers of requests."""

    capacity: float
    after: float
    median: float
    tail: float
    answered: int
    refused: int

    @property
    def counts(self) -> bool:
        """Whether the capacity stayed what it was."""
        return max(self.capacity, self.after) <= STEADY * min(self.capacity, self.after)

    @property
    def ratio(self) -> float:
        return self.tail / self.median


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_arrivals")
    parser.add_argument("--results", type=Path, metavar="F.md", help="write the table here")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=600, help="of a round")
    parser.add_argument("--device", default="xnnpack")
    given = parser.parse_args()
    before = machine.load()
    found = list(rounds(given.device, given.rounds, given.requests))
    text = "\n".join(document(found, given.device, before)) + "\n"
    print(text)
    if given.results is not None:
        given.results.write_text(text, "utf-8")
    ratio = result(found)
    return 0 if ratio is not None and ratio <= LIMIT else 1


def rounds(device: str, number: int, requests: int) -> Iterator[Round]:
    (entry,) = networks([NETWORK])
    path = Path(entry["path"])
    (operand,) = penstock.load(path).inputs
    dimensions = ",".join(str(size or 1) for size in operand.shape or ())
    words = [f"net={path}", "-d", device, "--threads", "1"]
    with server(words) as port, client(port, operand.name, NAMES[operand.dtype], dimensions) as ask:
        ask("closed", "grpc", CLIENTS, 20)
        for seed in range(number):
            few = max(20, requests // 4)
            capacity = ask("closed", "grpc", CLIENTS, few)["rate"]
            said: dict[str, Any] = ask("open", SHARE * capacity, requests, seed)
            after = ask("closed", "grpc", CLIENTS, few)["rate"]
            taken = sorted(said["seconds"])
            if len(taken) + said["refused"] != requests:
                raise AssertionError(f"{requests} requests, {len(taken)} answers")
            tail = statistics.quantiles(taken, n=100, method="inclusive")[98]
            yield Round(
                capacity, after, statistics.median(taken), tail, len(taken), said["refused"]
            )


def document(found: Sequence[Round], device: str, before: float | None) -> Iterator[str]:
    yield from setting(HEAD)
    yield f"- network: {NETWORK} on `{device}`, one thread"
    yield f"- load of the machine before and after: {before} and {machine.load()}"
    yield ""
    yield "| capacity, 1/s | after | asked | p50 | p99 | over p50 | answered | refused | counts |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in found:
        yield (
            f"| {each.capacity:.1f} | {each.after:.1f} | {SHARE * each.capacity:.1f} "
            f"| {1e3 * each.median:.1f} ms | {1e3 * each.tail:.1f} ms | {each.ratio:.2f} x "
            f"| {each.answered} | {each.refused} | {'yes' if each.counts else 'no'} |"
        )
    yield ""
    if (ratio := result(found)) is None:
        yield "Not measured: no round counts."
        return
    verdict = ", **over**" if ratio > LIMIT else ""
    yield f"p99 over p50, the median of these: {ratio:.2f} (limit {LIMIT:.0f}{verdict})."


def result(found: Sequence[Round]) -> float | None:
    """The median of p99 over p50 of the rounds that count."""
    ratios = [each.ratio for each in found if each.counts]
    return statistics.median(ratios) if ratios else None


if __name__ == "__main__":
    sys.exit(main())
