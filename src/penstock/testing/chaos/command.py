"""`python -m penstock.testing chaos DRIVER [--json] [--limit SECONDS] [--graphs N] [--seed N]`.

The scenarios run in a process of their own: a driver that hangs or crashes fails that scenario, and
the next one finds a new process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.errors import InputError, PlacementError
from penstock.hal import Device
from penstock.testing.chaos.scenarios import SCENARIOS, Scenario
from penstock.testing.chaos.trial import Graph, attempt, graphs_for
from penstock.testing.contract.promise import NotCovered, describe
from penstock.testing.contract.runner import Outcome
from penstock.testing.devices import usable_devices
from penstock.testing.resources import Resources
from penstock.testing.supervised import Case, supervise

LIMIT: Final = 120.0
"""Seconds that one scenario may take."""
GRAPHS: Final = 3

MAKER: Final = f"{__name__}:cases"
READ: Final = "docs/writing-a-driver.md#chaos"


class Result(msgspec.Struct, frozen=True):
    """What came of one scenario on one device; *message* says what was seen where it failed or was
    not covered.
    """

    scenario: str
    outcome: Outcome
    message: str
    seconds: float
    device: str = ""
    rule: str = ""
    read: str = READ


class Report(msgspec.Struct, frozen=True):
    """Counts of scenarios by outcome, and the failures by name."""

    passed: int
    failed: int
    not_covered: int
    failures: tuple[Result, ...]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Report:
        """The counts of *results*."""
        outcomes = [r.outcome for r in results]
        failures = tuple(r for r in results if r.outcome == "failed")
        return cls(outcomes.count("passed"), len(failures), outcomes.count("not_covered"), failures)


def run(
    driver: str,
    *,
    graphs: int = GRAPHS,
    seed: int = 0,
    limit: float = LIMIT,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Every scenario on every device of *driver* that can work here, each on *graphs* graphs of
    *seed*.

    Raises `GeneralFailure` where there is no such driver or device, or none that can work here;
    `InputError` for no graphs.
    """
    if graphs < 1:
        raise InputError(f"{graphs} graphs are too few")
    rules = {scenario.name: scenario.rule for scenario in SCENARIOS}
    results = []
    for answer in supervise(MAKER, [driver, str(graphs), str(seed)], limit=limit):
        if answer.data is not None:
            result = msgspec.msgpack.decode(answer.data, type=Result)
        else:
            device, scenario = answer.label.split("\t")
            result = Result(
                scenario, "failed", answer.problem, answer.seconds, device, rules[scenario]
            )
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def cases(driver: str, graphs: str, seed: str) -> list[Case]:
    """Every scenario on every usable device, as the process that runs them wants them."""
    devices, unusable = usable_devices(driver)
    if not devices:
        raise PlacementError("; ".join(sentence for _, sentence in unusable))
    made: list[Case] = []
    for device in devices:
        subjects = Subjects(device, int(graphs), int(seed))
        for scenario in SCENARIOS:
            label = f"{device.name}\t{scenario.name}"
            made.append((label, partial(_answer, scenario, device, subjects)))
    return made


class Subjects:
    """The graphs of one device, made when the first scenario wants them."""

    def __init__(self, device: Device, count: int, seed: int) -> None:
        self._device, self._count, self._seed = device, count, seed
        self._graphs: list[Graph] | None = None

    def graphs(self) -> list[Graph]:
        """Raises `NotCovered` where the device supports none."""
        if self._graphs is None:
            self._graphs = graphs_for(self._device, self._count, self._seed)
            # What the first use of an engine opens for good is there before anything is counted.
            attempt(self._graphs[0], self._device, fall_back=True, again=False)
        return self._graphs


def try_scenario(scenario: Scenario, device: Device, graphs: Callable[[], list[Graph]]) -> Result:
    """One scenario, its outcome as a value; nothing is raised."""
    began = time.perf_counter()
    outcome: Outcome = "passed"
    message = ""
    try:
        subjects = graphs()
        with Resources.unchanged(scenario.name):
            scenario.trouble(device, subjects)
    except NotCovered as reason:
        outcome, message = "not_covered", str(reason)
    except AssertionError as violation:
        outcome, message = "failed", str(violation)
    except Exception as error:  # noqa: BLE001  # whatever a driver brings about is an outcome
        outcome, message = "failed", f"unexpected {describe(error)}"
    seconds = time.perf_counter() - began
    return Result(scenario.name, outcome, message, seconds, device.name, scenario.rule)


def _answer(scenario: Scenario, device: Device, subjects: Subjects) -> bytes:
    return msgspec.msgpack.encode(try_scenario(scenario, device, subjects.graphs))


def show(result: Result) -> str:
    """The lines of *result* in a table."""
    word = {"passed": "ok", "failed": "FAILED", "not_covered": "-"}[result.outcome]
    line = f"{result.scenario:52} {word:7} {result.seconds * 1e3:8.1f} ms"
    if result.outcome == "not_covered":
        return f"{line}  {result.message}"
    if result.outcome == "passed":
        return line
    about = (("rule", result.rule), ("seen", result.message), ("read", result.read))
    return "\n".join([line, *(f"    {label}: {text}" for label, text in about)])


def summary(driver: str, report: Report) -> str:
    """The last line of a table."""
    counts = f"{report.passed} passed, {report.failed} failed, {report.not_covered} not covered"
    return f"{driver}: {counts}"
