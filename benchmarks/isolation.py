"""Overhead of a driver in its own process.

It measures five things: a burst's call on the null driver compared with an empty round trip; a run
on it compared with one in process; the bytes copied for an input in a pool; a network on XNNPACK
compared with itself in process; and how much of the weights eight clients of one host share.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

import penstock
from benchmarks.measuring import ROOT, Row, corpus_model, interleaved, medians, seconds
from benchmarks.overhead import one_step
from penstock import hal
from penstock.drivers.null import NullDevice
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.ring_pool import RingBurst
from penstock.ipc.starting import unavailable
from penstock.ir import DType, Model, ModelBuilder
from penstock.memory import MemoryPool

NAME = "isolation"
CALL_LIMIT_US = 15.0
OVER_LIMIT_US = 12.0
RUN_LIMIT_US = 60.0
NETWORK_LIMIT = 1.03
INPUT_BYTES = 600_000
CLIENTS = 8
SHARED_LIMIT = 0.25
CACHE_FILE = re.compile(r"\S+ r--p \S+ 00:00 0\s*$")
"""How the system lists the verified private copy of a cache file: read-only memory of no file."""

HEADER = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
"""The first line of a mapping in `smaps`."""

COPIES_LIMIT = 1.01
SHARING = ("xnnpack", "llvm")
"""The devices whose hosts share the weights of a network among their clients."""
NETWORK = "mobilenet_v2_1.0_224_uint8"
PLAIN = hal.ExecutionConfig()


def rows(*, quick: bool) -> list[Row]:
    """Microseconds, ratios and bytes.

    Without the corpus the rows of the network are missing. Without support for isolation there are
    no rows.
    """
    if unavailable():
        return []
    with every_processor():
        found = [
            *calls("", quick=quick),
            *runs("", quick=quick),
            *copied(),
            *network(quick=quick),
            *(row for device in SHARING for row in weights(device)),
        ]
    where = ", one processor"
    return [*found, *calls(where, quick=quick), *runs(where, quick=quick)]


@contextmanager
def every_processor() -> Iterator[None]:
    """Resets the affinity of this process and of its children to all cores."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def isolated(name: str, value: str) -> Iterator[hal.Device]:
    """The first device of a driver in a host process that no other client uses."""
    from penstock.ipc.host_sockets import Place
    from penstock.ipc.supervision import Supervisor

    supervisor = Supervisor(Place(name, value))
    try:
        yield IsolatedDevice(supervisor, 0)
    finally:
        supervisor.close()


def calls(where: str, *, quick: bool) -> list[Row]:
    """A burst's call on the null driver, an empty message, and the call in process.

    They alternate every few hundred calls.
    """
    model = one_step()
    with (
        isolated("null", "penstock.drivers.null:create") as device,
        MemoryPool.anonymous(1 << 16) as pool,
    ):
        burst = device.prepare_model(model, hal.PrepareConfig()).configure_burst()
        near = NullDevice().prepare_model(model, hal.PrepareConfig()).configure_burst()
        x, y = pool.view(np.float32, (1, 16)), pool.view(np.float32, (1, 16), 4096)
        request = hal.Request((hal.HostMemory(x),), (hal.HostMemory(y),))
        burst.execute(request, PLAIN)
        ring = ring_of(burst)
        subjects: dict[str, Callable[[], object]] = {
            "call": lambda: burst.execute(request, PLAIN),
            "empty": ring.ping,
            "near": lambda: near.execute(request, PLAIN),
        }
        for action in subjects.values():
            microseconds(action, 2000)
        values = interleaved(
            {name: partial(microseconds, action, 300) for name, action in subjects.items()},
            20 if quick else 100,
        )
        burst.close()
    over = [c - e for c, e in zip(values["call"], values["empty"], strict=True)]
    found = medians(values)
    limited = not where
    return [
        Row(
            NAME,
            f"a burst's call on the isolated null driver{where}",
            found["call"],
            "us",
            CALL_LIMIT_US if limited else None,
        ),
        Row(NAME, f"an empty message there and back{where}", found["empty"], "us"),
        Row(
            NAME,
            f"the call above the empty message{where}",
            statistics.median(over),
            "us",
            OVER_LIMIT_US if limited else None,
        ),
        Row(NAME, f"the call in process{where}", found["near"], "us"),
    ]


def runs(where: str, *, quick: bool) -> list[Row]:
    """`CompiledModel.run` on the null driver, isolated and in process, on arrays outside any pool.

    They alternate every hundred calls.
    """
    with ExitStack() as opened:
        subjects: dict[str, Callable[[], object]] = {}
        x = np.zeros((1, 16), np.float32)
        for name in ("isolated", "in process"):
            compiled = opened.enter_context(
                penstock.compile(
                    one_step(), devices=["null"], isolate=name == "isolated", cache=False
                )
            )
            subjects[name] = partial(compiled.run, [x])
            microseconds(subjects[name], 1000)
        values = interleaved(
            {name: partial(microseconds, action, 100) for name, action in subjects.items()},
            20 if quick else 100,
        )
    over = [a - b for a, b in zip(values["isolated"], values["in process"], strict=True)]
    found = medians(values)
    return [
        Row(NAME, f"a run on the isolated null driver{where}", found["isolated"], "us"),
        Row(NAME, f"the run in process{where}", found["in process"], "us"),
        Row(
            NAME,
            f"the run above the run in process{where}",
            statistics.median(over),
            "us",
            None if where else RUN_LIMIT_US,
        ),
    ]


def copied() -> list[Row]:
    """Bytes copied between the processes for an input in a pool, and for one outside any pool."""
    model = pictures()
    with (
        penstock.compile(model, devices=["null"], isolate=True, cache=False) as compiled,
        MemoryPool.anonymous(2 * INPUT_BYTES) as pool,
    ):
        held = pool.view(np.float32, INPUT_BYTES // 4)
        out = pool.view(np.float32, INPUT_BYTES // 4, INPUT_BYTES)
        with compiled.burst() as burst:
            receipts = [burst.run(held, out=[out]).receipt for _ in range(3)]
        nbytes = sum(copy.nbytes for receipt in receipts for copy in receipt.copies)
        run = compiled.run([held], out=[out]).receipt
        nbytes += sum(copy.nbytes for copy in run.copies)
    return [Row(NAME, "bytes copied for 600 kB in a pool", nbytes, "B", 0)]


def network(*, quick: bool) -> list[Row]:
    """MobileNetV2 on XNNPACK with one thread: isolated time over time in process.

    It compares runs on an array outside any pool, and burst runs on an array in a pool. The figure
    is the median ratio of many short rounds: other load on the machine affects both.
    """
    path = corpus_model(NETWORK)
    if path is None:
        return []
    with ExitStack() as opened:
        compiled = {
            name: opened.enter_context(
                penstock.compile(
                    path,
                    devices=["xnnpack"],
                    isolate=name == "isolated",
                    cache=False,
                    num_threads=1,
                )
            )
            for name in ("isolated", "in process")
        }
        operand = compiled["isolated"].plan.model.inputs[0]
        shape = tuple(d or 1 for d in operand.shape or ())
        image = np.random.default_rng(1).random(shape).astype(operand.dtype.numpy)
        pool = opened.enter_context(MemoryPool.anonymous(image.nbytes))
        held = pool.view(image.dtype, image.shape)
        held[...] = image
        actions: dict[str, Callable[[], object]] = {}
        for name, one in compiled.items():
            actions[f"run {name}"] = partial(one.run, [image])
            actions[f"burst {name}"] = partial(opened.enter_context(one.burst()).run, held)
        for action in actions.values():
            median_seconds(action, 10)
        values = interleaved(
            {name: partial(median_seconds, action, 5) for name, action in actions.items()},
            16 if quick else 80,
        )
    found = medians(values)
    rows = []
    for way in ("run", "burst"):
        far, near = f"{way} isolated", f"{way} in process"
        ratios = [a / b for a, b in zip(values[far], values[near], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows += [
            Row(NAME, f"{NETWORK}, {far}", found[far] * 1000, "ms"),
            Row(NAME, f"{NETWORK}, {near}", found[near] * 1000, "ms"),
            Row(
                NAME,
                f"{NETWORK}, {way}, isolated over in process",
                middle,
                "",
                NETWORK_LIMIT,
                f"quartiles {low:.3f} and {high:.3f}",
            ),
        ]
    return rows


def microseconds(action: Callable[[], object], count: int) -> float:
    """The median of *count* calls."""
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


def median_seconds(action: Callable[[], object], count: int) -> float:
    """The median of *count* calls."""
    return statistics.median(seconds(action) for _ in range(count))


def ring_of(burst: hal.Burst) -> RingBurst:
    """The ring buffer of a burst that survives its process."""
    inner = getattr(burst, "_burst", burst)
    if not isinstance(inner, RingBurst):
        raise TypeError(f"a {type(inner).__name__} goes through no ring")
    return inner


def pictures() -> Model:
    """An activation over `INPUT_BYTES` bytes."""
    b = ModelBuilder()
    shape = (INPUT_BYTES // 4,)
    x = b.input(DType.FLOAT32, shape, "x")
    return b.build(b.operation("RELU", [x], [(DType.FLOAT32, shape)]))


def weights(device: str) -> list[Row]:
    """Memory (PSS) of each further client of *device*'s host, and of the weights that it maps from
    the cache, compared with one client.
    """
    path = corpus_model(NETWORK)
    if path is None:
        return []
    client(path, device).communicate("end\n")  # fills the cache
    clients: list[subprocess.Popen[str]] = []
    pss: dict[int, float] = {}
    mapped: dict[int, float] = {}
    try:
        for number in range(1, CLIENTS + 1):
            clients.append(client(path, device))
            if number in {1, CLIENTS}:
                host = int(say(clients[0], "host"))
                pss[number], mapped[number] = pss_mib(host), mapped_mib(host)
    finally:
        for one in clients:
            one.communicate("end\n")
    size = path.stat().st_size / 2**20
    further = (pss[CLIENTS] - pss[1]) / (CLIENTS - 1)
    made = [
        Row(NAME, f"the host of {device}, {NETWORK}, 1 client, PSS", pss[1], "MiB"),
        Row(NAME, f"the host of {device}, {NETWORK}, {CLIENTS} clients, PSS", pss[CLIENTS], "MiB"),
        Row(
            NAME,
            f"each further client of {device} over the file's size",
            further / size,
            "",
            None if mapped[1] else SHARED_LIMIT,
            f"{further:.1f} MiB of {size:.1f}" + ("; its activations" if mapped[1] else ""),
        ),
    ]
    if mapped[1]:
        times = mapped[CLIENTS] / mapped[1]
        note = f"{mapped[CLIENTS]:.1f} MiB"
        name = f"packed weights of {CLIENTS} clients of {device}, PSS over those of one"
        made.append(Row(NAME, name, times, "x", COPIES_LIMIT, note))
    return made


def client(path: Path, device: str) -> subprocess.Popen[str]:
    """A process that runs the network on the shared host, and answers questions."""
    program = [sys.executable, "-m", "benchmarks.isolation", str(path), device]
    process = subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    say(process, "run")
    return process


def say(process: subprocess.Popen[str], word: str) -> str:
    """The answer to *word*."""
    if process.stdin is None or process.stdout is None:
        raise OSError("a client without pipes")
    process.stdin.write(word + "\n")
    process.stdin.flush()
    answer = process.stdout.readline().strip()
    if not answer:
        raise OSError(f"a client ended before it answered {word!r}")
    return answer


def pss_mib(pid: int) -> float:
    """The proportional share of a process's memory (PSS): users divide shared pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} does not tell its PSS")


def mapped_mib(pid: int) -> float:
    """The proportional share of the verified cache files that a process has mapped."""
    found, is_cache = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text("utf-8", "replace").splitlines():
        if HEADER.match(line):
            is_cache = CACHE_FILE.match(line) is not None
        elif is_cache and line.startswith("Pss:"):
            found += int(line.split()[1])
    return found / 1024


def serve_questions(path: str, device: str) -> None:
    """A client: runs once, then answers questions until its input ends."""
    with penstock.compile(path, devices=[device], isolate=True) as compiled:
        operand = compiled.plan.model.inputs[0]
        image = np.zeros(tuple(d or 1 for d in operand.shape or ()), operand.dtype.numpy)
        for line in sys.stdin:
            if line == "run\n":
                compiled.run([image])
                print("done", flush=True)
            elif line == "host\n":
                print(host_of(), flush=True)
            else:
                return


def host_of() -> int:
    """The host process of the one driver that this process has isolated."""
    from penstock.runtime.isolation import supervisors

    (supervisor,) = supervisors()
    return supervisor.connection().pid


if __name__ == "__main__":
    serve_questions(*sys.argv[1:])
