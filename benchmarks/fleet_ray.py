"""What Ray adds, and what a second actor gains: python -m benchmarks.fleet_ray [--results F].

Actors of one thread each run a network of the test corpus in batches of 200 ms and more, one actor
and two in turn, and so do one process and two without Ray. Then the overhead of a row in batches of
64 on a network of one small operation, in the actor alone and through Ray Data, beside
`CompiledModel.run` on the same batches. Then the memory of actors with one network of many weights,
and what Ray's own processes take while nothing is asked of them. On a busy machine two actors get
two shares of it, and times are longer than a row's own: processor time, which is given too, is not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import machine
from penstock.errors import counted
from penstock.export import tflite
from penstock.fleet.ray import Predict
from penstock.ir import DType, ModelBuilder

NETWORK: Final = "models/networks/mobilenet_v2_1.0_224_int8_tf2.tflite"
ROWS: Final = 32
"""Pictures of a long batch."""

SMALL: Final = 64
IDLE_S: Final = 20.0

SIDE: Final = 4096
"""Rows and columns of the matrix of the network with many weights: 67 MB."""

ACTORS: Final = (1, 2, 4)


class Work(Predict):
    """Runs the same batch of random pictures for each row it is given, and says when."""

    def __init__(self, model: str, isolate: bool | None) -> None:
        super().__init__(
            model,
            columns=["x"],
            answers="outputs",
            devices=["llvm", "reference"],
            isolate=isolate,
        )
        shape = [d or 1 for d in self.inputs[0].shape or ()]
        generator = np.random.default_rng(0)
        values = generator.integers(0, 100, (ROWS, *shape[1:]))
        self._pictures = values.astype(self.inputs[0].dtype.numpy)

    def __call__(self, batch: Any) -> Any:
        began, used = time.monotonic(), time.process_time()
        super().__call__({"x": self._pictures})
        spent = time.process_time() - used
        row = {"began": began, "ended": time.monotonic(), "spent": spent, "process": os.getpid()}
        return {name: np.array([value]) for name, value in row.items()}


class Weighty(Predict):
    """Runs once; `process` is the actor's."""

    def __init__(self, model: str, isolate: bool | None) -> None:
        super().__init__(model, columns=["x"], answers="outputs", devices=["llvm"], isolate=isolate)
        self({"x": np.zeros((1, SIDE), np.float32)})

    def process(self) -> int:
        return os.getpid()


class Timed(Predict):
    """Adds the time of its calls, and of the model's run alone on the same batch."""

    def __init__(self, model: str) -> None:
        super().__init__(model, columns=["x"], answers="outputs", devices=["reference"])

    def __call__(self, batch: Any) -> Any:
        rows = len(batch["x"])
        self.compiled.run([batch["x"]])
        first = time.process_time_ns()
        self.compiled.run([batch["x"]])
        second = time.process_time_ns()
        super().__call__(batch)
        third = time.process_time_ns()
        spent = {"run": second - first, "call": third - second, "used": third}
        return {name: np.full(rows, value) for name, value in spent.items()}


def relu(place: Path) -> str:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 16), "x")
    (y,) = builder.operation("RELU", [x], [(DType.FLOAT32, (None, 16))])
    file = place / "relu.tflite"
    file.write_bytes(tflite.write(builder.build([y])))
    return str(file)


def dense(place: Path) -> str:
    """The file of a network of `SIDE * SIDE` float32 weights."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, SIDE), "x")
    values = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    weights = builder.constant(values, "weights")
    bias = builder.constant(np.zeros(SIDE, np.float32), "bias")
    (y,) = builder.operation("FULLY_CONNECTED", [x, weights, bias], [(DType.FLOAT32, (1, SIDE))])
    file = place / "dense.tflite"
    file.write_bytes(tflite.write(builder.build([y])))
    return str(file)


def memory_of_actors(model: str, number: int, isolate: bool | None) -> float:
    """MB (PSS) of *number* actors with *model*, the drivers' processes included."""
    import ray

    actors = [ray.remote(num_cpus=0)(Weighty).remote(model, isolate) for _ in range(number)]
    processes = ray.get([actor.process.remote() for actor in actors])
    cache = os.environ["PENSTOCK_CACHE_DIR"]
    found = sum(pss(process) for process in [*processes, *hosts(cache)])
    for actor in actors:
        ray.kill(actor)
    while any(Path(f"/proc/{process}").exists() for process in [*processes, *hosts(cache)]):
        time.sleep(0.1)
    return found


def hosts(cache: str | Path) -> list[int]:
    """Processes of drivers whose cache is the directory *cache*."""
    own = f"PENSTOCK_CACHE_DIR={cache}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_host = b"penstock.ipc.host" in (path / "cmdline").read_bytes()
            if is_host and own in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def pss(process: int) -> float:
    """The memory of *process* in MB, shared pages divided among those who share them; 0 once it has
    ended.
    """
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text("utf-8")
    except OSError:
        return 0.0
    return next(int(t.split()[1]) for t in text.splitlines() if t.startswith("Pss:")) / 1e3


def long_batches(
    network: str, actors: int, batches: int, isolate: bool | None
) -> tuple[float, float, float]:
    """Batches a second of the actors together, after each has answered one; the median seconds
    and the median processor seconds of a batch in the actor's process.
    """
    import ray.data

    data = ray.data.from_items(list(range(batches)), override_num_blocks=batches)
    rows = data.map_batches(
        Work,
        fn_constructor_args=(network, isolate),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
    ).take_all()
    return pace_of(rows)


def bare_batches(
    network: str, processes: int, batches: int, isolate: bool | None
) -> tuple[float, float, float]:
    """What `long_batches` gives, of as many processes that run the same without Ray."""
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(processes), context.SimpleQueue()
    share = batches // processes
    started = [
        context.Process(target=bare, args=(network, share, isolate, ready, answers))
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    rows = [row for _ in started for row in answers.get()]
    for process in started:
        process.join()
    return pace_of(rows)


def bare(network: str, batches: int, isolate: bool | None, ready: Any, answers: Any) -> None:
    """Puts the rows of *batches* into the queue *answers*, once all processes are *ready*."""
    work = Work(network, isolate)
    work({})
    ready.wait()
    rows = [work({}) for _ in range(batches)]
    answers.put([{name: value[0].item() for name, value in row.items()} for row in rows])


def pace_of(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Batches a second of all processes of *rows*, after each has answered one; the median seconds
    and the median processor seconds of a batch in its process.
    """
    first: dict[int, float] = {}
    for row in rows:
        first[row["process"]] = min(first.get(row["process"], row["ended"]), row["ended"])
    begin = max(first.values())
    counted = [row for row in rows if row["began"] >= begin]
    last = {
        process: max((r["ended"] for r in counted if r["process"] == process), default=begin)
        for process in first
    }
    rate = sum(
        sum(row["process"] == process for row in counted) / (last[process] - begin)
        for process in first
        if last[process] > begin
    )
    seconds = statistics.median(row["ended"] - row["began"] for row in counted)
    return rate, seconds, statistics.median(row["spent"] for row in counted)


def small_batches(model: str, batches: int) -> tuple[float, float, float]:
    """Microseconds a row: processor time of a call beyond the run alone; time of Ray Data's whole
    stage; processor time of the actor beyond the runs.
    """
    import ray.data

    def stage(count: int) -> tuple[float, list[Any]]:
        data = ray.data.range_tensor(SMALL * count, shape=(16,), override_num_blocks=4)
        data = data.map_batches(
            lambda batch: {"x": batch["data"].astype(np.float32)}, batch_size=SMALL
        ).map_batches(
            Timed,
            fn_constructor_args=(model,),
            batch_size=SMALL,
            compute=ray.data.ActorPoolStrategy(size=1),
            num_cpus=1,
        )
        began = time.monotonic()
        rows = data.take_all()
        return time.monotonic() - began, rows

    short, _ = stage(4)
    long, rows = stage(batches + 4)
    run = statistics.median(row["run"] for row in rows) / SMALL
    call = statistics.median(row["call"] for row in rows) / SMALL
    used = sorted({row["used"] for row in rows})
    actor = (used[-1] - used[0]) / (len(used) - 1) / SMALL - 3 * run
    return (call - run) / 1e3, (long - short) / (batches * SMALL) * 1e6, actor / 1e3


def processes_of_ray() -> dict[int, float]:
    """Processor seconds of each process of Ray."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            fields = (path / "stat").read_text("utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue
        if b"ray::" in command or b"site-packages/ray/" in command:
            found[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def idle() -> tuple[int, float, float]:
    """Processes, share of one core that they take, and their memory (PSS) in MB."""
    before = processes_of_ray()
    time.sleep(IDLE_S)
    after = processes_of_ray()
    spent = sum(seconds - before.get(process, seconds) for process, seconds in after.items())
    return len(after), spent / IDLE_S, sum(map(pss, after))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="write the figures there, as Markdown")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=24)
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    corpus = Path(os.environ.get("PENSTOCK_CORPUS", "../shared"))
    network = str((corpus / NETWORK).resolve())
    with tempfile.TemporaryDirectory() as place:
        os.environ["PENSTOCK_CACHE_DIR"] = str(Path(place, "cache"))
        os.environ["PENSTOCK_STATE_DIR"] = str(Path(place, "state"))
        import ray
        import ray.data

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        lines = [
            f"Measured by `python -m benchmarks.fleet_ray` on {machine.processor()},",
            f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, Ray {version('ray')},",
            f"pyarrow {version('pyarrow')}; load average {machine.load()} before it.",
            "",
            "| what | measured | wanted |",
            "|---|---|---|",
        ]
        rounds = []
        for _ in range(given.rounds):
            one, two, alone, beside, bare_one, bare_two = (
                batches_of(network, actors, given.batches, isolate)
                for batches_of, isolate, actors in (
                    (long_batches, None, 1),
                    (long_batches, None, 2),
                    (long_batches, False, 1),
                    (long_batches, False, 2),
                    (bare_batches, False, 1),
                    (bare_batches, False, 2),
                )
            )
            rounds.append(
                (
                    two[0] / one[0],
                    beside[0] / alone[0],
                    bare_two[0] / bare_one[0],
                    one[1],
                    alone[2],
                    beside[2] / alone[2],
                )
            )
            print(f"two actors over one: {rounds[-1][0]:.2f}; a batch {one[1] * 1e3:.0f} ms")
        columns = [*zip(*rounds, strict=True)]
        gain, gain_alone, gain_bare, seconds, spent, dearer = map(statistics.median, columns)
        every, every_alone, every_bare = (
            ", ".join(f"{ratio:.2f}" for ratio in column) for column in columns[:3]
        )
        long = f"batches of {seconds * 1e3:.0f} ms"
        lines += [
            f"| two actors over one, {long} | {gain:.2f} ({every}) | 1.8 |",
            f"| the same with `isolate=False` | {gain_alone:.2f} ({every_alone}) | 1.8 |",
            f"| two processes without Ray over one | {gain_bare:.2f} ({every_bare}) | |",
            f"| processor time of a batch, one actor, `isolate=False` | {spent * 1e3:.0f} ms | |",
            f"| the same beside a second actor | {dearer:.2f} x | |",
        ]
        call, whole, actor = small_batches(relu(Path(place)), 1000)
        row = f"a row at batches of {SMALL}"
        lines += [
            f"| {row}: processor time of `Predict` beyond the run | {call:.2f} us | 50 us |",
            f"| {row}: processor time of the actor beyond the runs | {actor:.1f} us | 50 us |",
            f"| {row}: time of Ray Data's whole stage | {whole:.1f} us | |",
        ]
        weighty = dense(Path(place))
        memory_of_actors(weighty, 1, None)
        for isolate, words in ((None, ""), (False, ", `isolate=False`")):
            for number in ACTORS:
                held = memory_of_actors(weighty, number, isolate)
                megabytes = f"{SIDE * SIDE * 4 / 1e6:.0f} MB of weights"
                what = f"memory of {counted(number, 'actor')} with {megabytes}"
                lines.append(f"| {what}{words} | {held:.0f} MB (PSS) | |")
        count, share, memory = idle()
        lines.append(
            f"| Ray idle: {count} processes | {share:.1%} of a core, {memory:.0f} MB (PSS) | |"
        )
        ray.shutdown()
    print("\n".join(lines))
    if given.results is not None:
        given.results.write_text("\n".join(["# Ray", "", *lines]) + "\n", "utf-8")
    return 0 if gain >= 1.8 and max(call, actor) <= 50 else 1


if __name__ == "__main__":
    sys.exit(main())
