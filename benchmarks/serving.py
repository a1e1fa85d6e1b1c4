"""What `penstock serve` adds to a run, beside the bare loop of the same compiled model.

    bash tests/serve_clients/install
    python -m benchmarks.serving --results benchmarks/results/serving.md

The client is tritonclient, in a process of its own, one request at a time. The subjects alternate:
the bare loop, a request over gRPC, a request with tensors in shared memory, a call of the same
server that does nothing (`ServerLive`), and a call of another server, whose handler does nothing
but run the network (`benchmarks.serving_handler`): what gRPC itself takes on this machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

import penstock
from benchmarks import machine
from benchmarks.engines import networks
from benchmarks.measuring import ROOT, Row, interleaved
from benchmarks.serving_handler import CALL
from penstock.serve.datatypes import NAMES

NETWORK: Final = "mobilenet_v2_1.0_224_int8_tf2"
BATCHED_NETWORK: Final = "mobilenet_v2_inat_insect_uint8"
"""A MobileNetV2 that takes eight rows; the file of the other one fixes one."""

CLIENT: Final = ROOT / "build" / "serve-clients" / "bin" / "python"
COUNT: Final = 10
"""Calls of a subject in one round."""

ADDED_MS: Final = 0.6
SHARED: Final = 1 / 0.9
BATCHED: Final = 1 / 0.75
MAY_START_S: Final = 300

HEAD: Final = """\
# What serving adds to a run

Written by `python -m benchmarks.serving`: tritonclient asks `penstock serve` on the same machine,
one request at a time, beside the bare loop of the same compiled model in another process. The
subjects alternate. `added` is the median latency of a request minus that of a bare run; `nothing`
is a call of gRPC that computes nothing, and the bare handler is a server of grpcio that runs the
network and nothing else. A ratio is the median over rounds of the time of a request
over that of a bare run of as many rows. **over**: beyond the limit."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--results", type=Path, metavar="F.md", help="write the table here")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="xnnpack")
    given = parser.parse_args()
    from benchmarks.__main__ import line

    before = machine.load()
    found = rows(given.rounds, given.device)
    for row in found:
        print(line(row), flush=True)
    if given.results is not None:
        text = "\n".join(document(found, given.device, given.rounds, before))
        given.results.write_text(text + "\n", "utf-8")
    return 0 if all(row.met is not False for row in found) else 1


def rows(rounds: int, device: str) -> list[Row]:
    """The latency of single requests, and the throughput with one and with eight rows."""
    single = measured(NETWORK, device, 1, rounds)
    names = "bare", "grpc", "shared", "handler", "nothing"
    bare, over, shared, handler, nothing = (statistics.median(single[name]) for name in names)
    eight = measured(BATCHED_NETWORK, device, 8, rounds)
    return [
        Row("serving", "bare run", 1e3 * bare, "ms"),
        Row("serving", "nothing over gRPC", 1e3 * nothing, "ms"),
        Row("serving", "added by a bare handler", 1e3 * (handler - bare), "ms"),
        Row("serving", "added over gRPC", 1e3 * (over - bare), "ms", ADDED_MS),
        Row("serving", "added with shared memory", 1e3 * (shared - bare), "ms"),
        Row("serving", "shared memory over bare", ratio(single, "shared"), "x", SHARED),
        Row("serving", "gRPC over bare", ratio(single, "grpc"), "x"),
        Row("serving", "gRPC over bare, 8 rows", ratio(eight, "grpc"), "x", BATCHED),
        Row("serving", "shared memory over bare, 8 rows", ratio(eight, "shared"), "x"),
    ]


def ratio(values: dict[str, list[float]], name: str) -> float:
    pairs = zip(values[name], values["bare"], strict=True)
    return statistics.median(one / bare for one, bare in pairs)


def measured(network: str, device: str, batch: int, rounds: int) -> dict[str, list[float]]:
    """The median seconds of a call in each round, by subject."""
    (entry,) = networks([network])
    path = Path(entry["path"])
    model = penstock.load(path)
    (operand,) = model.inputs
    shape = batch, *(size or 1 for size in (operand.shape or ())[1:])
    shapes = {0: shape}
    dimensions = ",".join(map(str, shape))
    name = operand.name
    words = [f"net={path}", "-d", device, "--shape", f"{name}={dimensions}"]
    with (
        penstock.compile(model, devices=[device], shapes=shapes) as compiled,
        server(words) as port,
        client(port, name, NAMES[operand.dtype], dimensions) as ask,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        handler([str(path), device, dimensions]) as run_bare,
    ):
        array = np.zeros(shape, operand.dtype.numpy)
        live: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")

        def bare() -> float:
            return median_of(lambda: compiled.run([array]))

        def nothing() -> float:
            return median_of(partial(live, b""))

        subjects: dict[str, Callable[[], float]] = {
            "bare": bare,
            "nothing": nothing,
            "handler": lambda: median_of(run_bare),
            "grpc": lambda: statistics.median(ask("grpc", COUNT)),
            "shared": lambda: statistics.median(ask("shared", COUNT)),
        }
        for subject in subjects.values():
            subject()
        return interleaved(subjects, rounds)


def median_of(call: Callable[[], object]) -> float:
    found = []
    for _ in range(COUNT):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


@contextmanager
def server(words: Sequence[str]) -> Iterator[int]:
    """A ready server; its port for gRPC."""
    with started(words) as (port, _):
        yield port


@contextmanager
def started(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """A ready server: its port for gRPC, and its process."""
    fixed = ["--port", "-1", "--grpc-port", "0", "--shared-memory", "penstock-bench-"]
    command = [sys.executable, "-m", "penstock", "serve", *words, *fixed]
    with subprocess.Popen(
        [*command, "--trust-shared-memory", "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["grpc_port"]
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
                end = time.monotonic() + MAY_START_S
                while not ready(b""):
                    if time.monotonic() > end:
                        raise TimeoutError("the server did not become ready")
                    time.sleep(0.2)
            yield port, process.pid
        finally:
            process.terminate()


@contextmanager
def handler(arguments: Sequence[str]) -> Iterator[Callable[[], object]]:
    """A call of the server whose handler only runs the network."""
    command = [sys.executable, "-m", "benchmarks.serving_handler", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield partial(channel.unary_unary(CALL), b"")
        finally:
            process.terminate()


@contextmanager
def client(port: int, *arguments: str) -> Iterator[Callable[..., Any]]:
    """A client of `benchmarks.serving_client`; called with the words of a line, its answer."""
    program = Path(__file__).with_name("serving_client.py")
    with subprocess.Popen(
        [str(CLIENT), str(program), str(port), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def ask(*words: object) -> Any:
            lines.write(" ".join(map(str, words)) + "\n")
            lines.flush()
            return json.loads(answers.readline())

        try:
            yield ask
        finally:
            lines.close()


def setting(head: str) -> Iterator[str]:
    """The first lines of a table of the server: *head*, and what was measured where."""
    yield head
    yield ""
    yield f"- processor: {machine.processor()}, {machine.instruction_sets()}"
    versions = {"python": platform.python_version(), **machine.installed()}
    versions["grpcio"] = version("grpcio")
    yield f"- versions: {', '.join(f'{n} {v}' for n, v in versions.items())}"
    yield f"- code: {machine.code()}"


def document(found: Sequence[Row], device: str, rounds: int, before: float | None) -> Iterator[str]:
    yield from setting(HEAD)
    yield f"- networks: {NETWORK}, and {BATCHED_NETWORK} for 8 rows, on `{device}`"
    yield f"- {rounds} rounds of {COUNT} calls"
    yield f"- load of the machine before and after: {before} and {machine.load()}"
    yield ""
    yield "| measure | value | limit | |"
    yield "|---|---|---|---|"
    for row in found:
        limit = "" if row.limit is None else f"{row.limit:.2f} {row.unit}"
        verdict = "**over**" if row.met is False else ""
        yield f"| {row.measure} | {row.value:.3f} {row.unit} | {limit} | {verdict} |"


if __name__ == "__main__":
    sys.exit(main())
