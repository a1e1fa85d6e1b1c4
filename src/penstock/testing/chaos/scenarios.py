"""The faults: every HAL call fails in turn with every status, is slow, is cancelled, or returns
wrong results.

The command runs the scenarios in a separate process. A driver that hangs or crashes fails that
scenario, and a new process runs the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.errors import ErrorStatus, InputError
from penstock.hal import Device
from penstock.runtime.comparison import compare
from penstock.testing import doubles
from penstock.testing.chaos.trial import Favoured, Graph, attempt, end_in_time, graphs_for, scratch
from penstock.testing.contract import promise
from penstock.testing.devices import some_usable_devices
from penstock.testing.resources import Resources
from penstock.testing.supervised import Case, collect

Trouble: TypeAlias = Callable[[Device, Sequence[Graph]], None]
"""Tries a fault on every graph: returns, or raises `Violation` or `NotCovered`."""

MAX_CALLS: Final = 40
"""The last call of one method that is made to fail."""
CALLED: Final = ("supported_operations", "prepare_model", "prepare_model_from_cache", "execute")
"""The methods that a compile and its runs may call. The contract suites test the other methods."""
INTERRUPTIBLE: Final = ("prepare_model", "execute")
DELAY: Final = 0.01
ENDLESS: Final = 3600.0
SHORT: Final = 0.15
THREADS: Final = 4
LIMIT: Final = 120.0
"""Time limit of one scenario in the command, in seconds."""
GRAPHS: Final = 3
MAKER: Final = f"{__name__}:cases"
READ: Final = f"{promise.PAGE}#chaos"


class Scenario(Struct, frozen=True):
    """A fault: its name, its rule in one sentence, and the function that tries it."""

    name: str
    rule: str
    trouble: Trouble


class Result(Struct, frozen=True):
    """The result of one scenario on *device*. *message* says why it failed or was not covered."""

    scenario: str
    outcome: promise.Outcome
    message: str
    seconds: float
    device: str = ""
    rule: str = ""
    read: str = READ

    @property
    def label(self) -> str:
        """The first column of a table."""
        return f"{self.scenario:52}"


def _tries(graphs: Sequence[Graph]) -> Iterator[tuple[Graph, bool]]:
    """Each graph, with and without fallback."""
    return itertools.product(graphs, (True, False))


def _no_fault(device: Device, graphs: Sequence[Graph]) -> None:
    for graph, fall_back in _tries(graphs):
        made = attempt(graph, device, fall_back=fall_back)
        promise.require(not made.errors, f"{graph.name}: {made.errors[:1]} without a fault")


def _fails(
    method: str,
    error: ErrorStatus | Callable[[str], Exception],
    device: Device,
    graphs: Sequence[Graph],
) -> None:
    """*method* fails at its first call, then at its second, ..., until there is no such call."""
    reached = False
    for graph, fall_back in _tries(graphs):
        for call in range(1, MAX_CALLS + 1):
            with scratch() as directory:
                cache = Path(directory) if method == "prepare_model_from_cache" else None
                if cache is not None:
                    attempt(graph, device, fall_back=fall_back, cache=cache)
                faulty = doubles.FaultyDevice(device, {method: call}, error)
                attempt(graph, faulty, fall_back=fall_back, cache=cache)
            if faulty.calls[method] < call:
                break
            reached = True
    if not reached:
        raise promise.NotCovered(f"{method} is never called")


def _always_fails(method: str, device: Device, graphs: Sequence[Graph]) -> None:
    """*method* always fails. With fallback: the reference's answer or an error; else an error."""
    for graph, fall_back in _tries(graphs):
        faulty = doubles.FaultyDevice(device, {method: "always"})
        made = attempt(graph, faulty, fall_back=fall_back, again=fall_back)
        if faulty.calls[method] == 0:
            raise promise.NotCovered(f"{method} is never called")
        what = f"{graph.name}: it ran, although {method} always fails"
        promise.require(made.errors or fall_back, what)


def _delays(method: str, device: Device, graphs: Sequence[Graph]) -> None:
    for graph in graphs:
        made = attempt(graph, doubles.SlowDevice(device, {method: DELAY}), fall_back=True)
        promise.require(not made.errors, f"{graph.name}: {made.errors[:1]} of a delay")


def _hangs(method: str, cancelled: bool, device: Device, graphs: Sequence[Graph]) -> None:
    """*method* never returns, but reacts to its deadline and cancel token."""
    slow = doubles.SlowDevice(device, {method: ENDLESS})
    for graph in graphs[:1]:
        end_in_time(graph, slow, SHORT, cancelled=cancelled)


def _lies(lie: doubles.Lie, device: Device, graphs: Sequence[Graph]) -> None:
    """The runtime corrects or reports wrong shapes and counts."""
    for graph, fall_back in _tries(graphs):
        attempt(graph, doubles.LyingDevice(device, lie), fall_back=fall_back, again=False)


def _wrong_values(device: Device, graphs: Sequence[Graph]) -> None:
    """`compare` finds them."""
    for graph in graphs:
        liar = doubles.LyingDevice(device, "values", name=f"lying-{device.name}")
        found = compare(graph.model, graph.inputs, liar, accuracy=graph.accuracy)
        promise.require(
            found.departure is not None and found.departure.operations[0] == 0,
            f"{graph.name}: wrong values of its first operation were not found: {found.show()}",
        )


def _threads(device: Device, graphs: Sequence[Graph]) -> None:
    """Every third execution fails. Several threads run at once, each with its own model."""
    faulty = doubles.FaultyDevice(device, {"execute": range(0, 10_000, 3)})
    problems: list[Exception] = []

    def work(graph: Graph, fall_back: bool) -> None:
        try:
            attempt(graph, faulty, fall_back=fall_back, again=fall_back)
        except Exception as error:  # noqa: BLE001  # raised below, in the calling thread
            problems.append(error)

    jobs = itertools.islice(itertools.cycle(_tries(graphs)), THREADS)
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _calls_are_seen(device: Device, graphs: Sequence[Graph]) -> None:
    """Verifies that the device runs every graph; otherwise no fault is tried."""
    for graph in graphs:
        seen = doubles.RecordingDevice(Favoured(device))
        attempt(graph, seen, fall_back=True)
        if not seen.count("execute"):
            raise promise.Violation(f"{graph.name}: the runtime never executed it on this device")


def _every() -> Iterator[tuple[str, str, Trouble]]:
    yield "no fault", "Without a fault the answer is the reference's.", _no_fault
    yield "placement", "What the device supports is executed on it.", _calls_are_seen
    for method in CALLED:
        for status in ErrorStatus:
            if status is not ErrorStatus.NONE:
                rule = f"Each call of {method} that fails with {status.name} in turn is survived."
                yield f"{method}: {status.name}", rule, partial(_fails, method, status)
        rule = f"Each call of {method} that raises something else in turn is survived."
        yield f"{method}: an exception", rule, partial(_fails, method, RuntimeError)
    for method in ("prepare_model", "execute"):
        rule = f"A device whose {method} always fails is replaced, or named."
        yield f"{method}: always", rule, partial(_always_fails, method)
    for method in CALLED:
        yield f"{method}: delay", f"A slow {method} changes nothing.", partial(_delays, method)
    for method in INTERRUPTIBLE:
        for word, cancelled in (("deadline", False), ("cancellation", True)):
            rule = f"A {method} without end ends with its {word}."
            yield f"{method}: {word}", rule, partial(_hangs, method, cancelled)
    for lie in doubles.LIES:
        trouble = _wrong_values if lie == "values" else partial(_lies, lie)
        yield f"lie: {lie}", "A lie is repaired, named, or found by comparing.", trouble
    yield "threads", "Faults in one thread do not reach another.", _threads


SCENARIOS: Final[tuple[Scenario, ...]] = tuple(Scenario(*each) for each in _every())
"""Every scenario, in the order in which they are tried."""


def run(
    driver: str,
    *,
    graphs: int = GRAPHS,
    seed: int = 0,
    limit: float = LIMIT,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Runs every scenario on every usable device of *driver*, on *graphs* graphs of *seed*.

    Raises `GeneralFailure` if the driver or device does not exist, or no device is usable;
    `InputError` if *graphs* is 0.
    """
    if graphs < 1:
        raise InputError(f"{graphs} graphs are too few")
    arguments = [driver, str(graphs), str(seed)]
    return collect(MAKER, arguments, Result, limit=limit, progress=progress)


def cases(driver: str, graphs: str, seed: str) -> list[Case]:
    """Every scenario on every usable device, for the process that runs them."""
    made: list[Case] = []
    for device in some_usable_devices(driver)[0]:
        subjects = Subjects(device, int(graphs), int(seed))
        for scenario in SCENARIOS:
            name, rule = scenario.name, scenario.rule
            lost = msgspec.json.encode(Result(name, "failed", "", 0.0, device.name, rule))
            made.append((lost.decode(), partial(_answer, scenario, device, subjects)))
    return made


class Subjects:
    """The graphs of one device, made when the first scenario needs them."""

    def __init__(self, device: Device, count: int, seed: int) -> None:
        self._device, self._count, self._seed = device, count, seed
        self._graphs: list[Graph] | None = None

    def graphs(self) -> list[Graph]:
        """Raises `NotCovered` if the device supports none."""
        if self._graphs is None:
            self._graphs = graphs_for(self._device, self._count, self._seed)
            # Engines open some descriptors permanently at first use. Trigger that before anything
            # is counted.
            attempt(self._graphs[0], self._device, fall_back=True, again=False)
        return self._graphs


def try_scenario(scenario: Scenario, device: Device, graphs: Callable[[], list[Graph]]) -> Result:
    """Runs one scenario and returns its outcome; raises nothing."""
    began = time.perf_counter()

    def work() -> None:
        subjects = graphs()
        with Resources.unchanged(scenario.name):
            scenario.trouble(device, subjects)

    outcome, message = promise.judge(work)
    seconds = time.perf_counter() - began
    return Result(scenario.name, outcome, message, seconds, device.name, scenario.rule)


def _answer(scenario: Scenario, device: Device, subjects: Subjects) -> bytes:
    return msgspec.msgpack.encode(try_scenario(scenario, device, subjects.graphs))
