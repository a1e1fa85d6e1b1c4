"""The faults: every HAL call failing in turn with every status, delays, deadlines, cancellation,
and lies.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.errors import ErrorStatus
from penstock.hal import Device
from penstock.runtime.comparison import compare
from penstock.testing.chaos.trial import Favoured, Graph, attempt, end_in_time, scratch
from penstock.testing.contract.promise import NotCovered, Violation, require
from penstock.testing.doubles import (
    LIES,
    METHODS,
    FaultyDevice,
    Lie,
    LyingDevice,
    RecordingDevice,
    SlowDevice,
)

Trouble: TypeAlias = Callable[[Device, Sequence[Graph]], None]
"""Tries a fault on every graph: returns, or raises `Violation` or `NotCovered`."""

MAX_CALLS: Final = 40
"""Of one method: the last call that is made to fail."""
CALLED: Final = ("supported_operations", "prepare_model", "prepare_model_from_cache", "execute")
"""The methods that a compile and its runs may call; others belong to doors that are tried with the
contract.
"""
INTERRUPTIBLE: Final = ("prepare_model", "execute")
DELAY: Final = 0.01
ENDLESS: Final = 3600.0
SHORT: Final = 0.15
THREADS: Final = 4


class Scenario(Struct, frozen=True):
    """A fault by name, in a sentence, and how it is tried."""

    name: str
    rule: str
    trouble: Trouble


def _no_fault(device: Device, graphs: Sequence[Graph]) -> None:
    for graph, fall_back in itertools.product(graphs, (True, False)):
        made = attempt(graph, device, fall_back=fall_back)
        require(not made.errors, f"{graph.name}: {made.errors[:1]} without a fault")


def _fails(method: str, error: ErrorStatus | Callable[[str], Exception]) -> Trouble:
    """*method* fails at its first call, at its second, ..., until a call of that number is not
    made.
    """

    def trouble(device: Device, graphs: Sequence[Graph]) -> None:
        reached = False
        for graph, fall_back in itertools.product(graphs, (True, False)):
            for call in range(1, MAX_CALLS + 1):
                with scratch() as directory:
                    cache = Path(directory) if method == "prepare_model_from_cache" else None
                    if cache is not None:
                        attempt(graph, device, fall_back=fall_back, cache=cache)
                    faulty = FaultyDevice(device, {method: call}, error)
                    attempt(graph, faulty, fall_back=fall_back, cache=cache)
                if faulty.calls[method] < call:
                    break
                reached = True
        if not reached:
            raise NotCovered(f"{method} is never called")

    return trouble


def _always_fails(method: str) -> Trouble:
    """With fall-back the reference's answer or an error, without it an error each time."""

    def trouble(device: Device, graphs: Sequence[Graph]) -> None:
        for graph, fall_back in itertools.product(graphs, (True, False)):
            faulty = FaultyDevice(device, {method: "always"})
            made = attempt(graph, faulty, fall_back=fall_back, again=fall_back)
            if faulty.calls[method] == 0:
                raise NotCovered(f"{method} is never called")
            require(
                made.errors or fall_back, f"{graph.name}: it ran, although {method} always fails"
            )

    return trouble


def _delays(method: str) -> Trouble:
    def trouble(device: Device, graphs: Sequence[Graph]) -> None:
        for graph in graphs:
            made = attempt(graph, SlowDevice(device, {method: DELAY}), fall_back=True)
            require(not made.errors, f"{graph.name}: {made.errors[:1]} of a delay")

    return trouble


def _hangs(method: str, *, cancelled: bool) -> Trouble:
    """Without end, but for a deadline or a cancel token, which it heeds."""

    def trouble(device: Device, graphs: Sequence[Graph]) -> None:
        slow = SlowDevice(device, {method: ENDLESS})
        for graph in graphs[:1]:
            end_in_time(graph, slow, SHORT, cancelled=cancelled)

    return trouble


def _lies(lie: Lie) -> Trouble:
    """A lie about shapes, counts or support is caught, and repaired or named; wrong values are
    found by comparing.
    """

    def trouble(device: Device, graphs: Sequence[Graph]) -> None:
        for graph, fall_back in itertools.product(graphs, (True, False)):
            attempt(graph, LyingDevice(device, lie), fall_back=fall_back, again=False)

    def wrong_values(device: Device, graphs: Sequence[Graph]) -> None:
        for graph in graphs:
            liar = LyingDevice(device, lie, name=f"lying-{device.name}")
            found = compare(graph.model, graph.inputs, liar, accuracy=graph.accuracy)
            require(
                found.departure is not None and found.departure.operations[0] == 0,
                f"{graph.name}: wrong values of its first operation were not found: {found.show()}",
            )

    return wrong_values if lie == "values" else trouble


def _threads(device: Device, graphs: Sequence[Graph]) -> None:
    """Every third execution fails, in several threads at once, each with a model of its own."""
    faulty = FaultyDevice(device, {"execute": range(0, 10_000, 3)})
    problems: list[Exception] = []

    def work(graph: Graph, fall_back: bool) -> None:
        try:
            attempt(graph, faulty, fall_back=fall_back, again=fall_back)
        except Exception as error:  # noqa: BLE001  # raised below, in the thread that asked
            problems.append(error)

    jobs = itertools.islice(itertools.cycle(itertools.product(graphs, (True, False))), THREADS)
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _calls_are_seen(device: Device, graphs: Sequence[Graph]) -> None:
    """Every graph is prepared and executed on the device: else no fault would be tried on it."""
    for graph in graphs:
        seen = RecordingDevice(Favoured(device))
        attempt(graph, seen, fall_back=True)
        if not seen.count("execute"):
            raise Violation(f"{graph.name}: the runtime never executed it on this device")


def _every() -> Iterator[Scenario]:
    yield Scenario("no fault", "Without a fault the answer is the reference's.", _no_fault)
    yield Scenario("placement", "What the device supports is executed on it.", _calls_are_seen)
    for method in METHODS:
        for status in ErrorStatus:
            if status is not ErrorStatus.NONE and method in CALLED:
                yield Scenario(
                    f"{method}: {status.name}",
                    f"Each call of {method} that fails with {status.name} in turn is survived.",
                    _fails(method, status),
                )
        if method in CALLED:
            yield Scenario(
                f"{method}: an exception",
                f"Each call of {method} that raises something else in turn is survived.",
                _fails(method, RuntimeError),
            )
    for method in ("prepare_model", "execute"):
        rule = f"A device whose {method} always fails is replaced, or named."
        yield Scenario(f"{method}: always", rule, _always_fails(method))
    for method in CALLED:
        rule = f"A slow {method} changes nothing."
        yield Scenario(f"{method}: delay", rule, _delays(method))
    for method in INTERRUPTIBLE:
        for word, cancelled in (("deadline", False), ("cancellation", True)):
            rule = f"A {method} without end ends with its {word}."
            yield Scenario(f"{method}: {word}", rule, _hangs(method, cancelled=cancelled))
    for lie in LIES:
        yield Scenario(
            f"lie: {lie}", "A lie is repaired, named, or found by comparing.", _lies(lie)
        )
    yield Scenario("threads", "Faults in one thread do not reach another.", _threads)


SCENARIOS: Final[tuple[Scenario, ...]] = tuple(_every())
"""Every scenario, in the order in which they are tried."""
