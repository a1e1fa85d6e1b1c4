"""One graph on one faulty device: compiled, run three times, compared with the reference."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct, structs

import penstock
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import Cancelled, MissedDeadline, PenstockError
from penstock.hal import AccuracyClass, CancelToken, Capabilities, Device, PerformanceInfo
from penstock.ir import Model, NDArray
from penstock.partitioning.policy import Policy
from penstock.testing.contract.cases import every_case, is_supported
from penstock.testing.contract.promise import NotCovered, Violation, describe, require
from penstock.testing.doubles import InterceptingDevice
from penstock.testing.random_models import random_model

T = TypeVar("T")

RUNS: Final = 3
TRIES: Final = 3
"""How often a compile or run is tried. A single fault may spoil the first attempt."""
OPERATIONS: Final = (2, 10)
RELAXED: Final = 1e-2
PROMPT_SECONDS: Final = 5.0
"""A call must end within this time after its deadline or cancellation."""


class Graph(Struct, frozen=True):
    """A supported model, its inputs, and the reference's answers to `RUNS` runs."""

    name: str
    model: Model
    inputs: tuple[NDArray, ...]
    answers: tuple[tuple[NDArray, ...], ...]
    relaxed: bool

    @property
    def accuracy(self) -> AccuracyClass:
        """The accuracy class to request."""
        return "relaxed" if self.relaxed else "faithful"


class Favoured(InterceptingDevice):
    """*device* with costs near zero and another name.

    The plan then places every supported operation on it, even if it is the reference device.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device, f"chaotic-{device.name}")

    @property
    def capabilities(self) -> Capabilities:
        cheap = PerformanceInfo(1e-6, 1e-6)
        return structs.replace(
            self.device.capabilities,
            performance={},
            default_performance=cheap,
            if_performance=cheap,
            while_performance=cheap,
            dispatch_ns=1,
            transfer_bytes_per_second=1e15,
        )


def graphs_for(device: Device, count: int, seed: int) -> list[Graph]:
    """*count* random graphs. A device without RELU gets the contract's models that it supports.

    Raises `NotCovered` if the device supports none of those.
    """
    random = Random(seed)  # noqa: S311  # models, not secrets
    found: list[tuple[str, Model, tuple[NDArray, ...]]] = []
    try:
        for index in range(count):
            made = random_model(random, device, operations=OPERATIONS, state=0.5)
            inputs = made.inputs[: len(made.model.inputs)]
            found.append((f"graph {index} of seed {seed}", made.model, inputs))
    except ValueError:
        cases = [c for c in every_case() if is_supported(device, c)]
        found = [(c.name, c.model, c.inputs[: len(c.model.inputs)]) for c in cases[:count]]
    if not found:
        raise NotCovered("it supports none of the models that are tried")
    return [_graph(device, *each) for each in found]


def _graph(device: Device, name: str, model: Model, inputs: tuple[NDArray, ...]) -> Graph:
    relaxed = any(a.accuracy == "relaxed" for a in device.supported_operations(model))
    with penstock.compile(model, devices=[FALLBACK_DEVICE], cache=None) as compiled:
        answers = tuple(tuple(np.array(a) for a in compiled.run(inputs)) for _ in range(RUNS))
    return Graph(name, model, inputs, answers, relaxed)


class Attempt(Struct):
    """The errors that one graph raised, in order."""

    errors: list[PenstockError]


def attempt(
    graph: Graph, device: Device, *, fall_back: bool, cache: Path | None = None, again: bool = True
) -> Attempt:
    """Compiles *graph* on *device* and runs it `RUNS` times on one state. Tries each call `TRIES`
    times.

    With *again* at least one attempt must give the reference's answer. Raises `Violation` for a
    wrong answer, for an error that is not Penstock's, and for changed inputs.
    """
    made = Attempt([])
    kept = [a.tobytes() for a in graph.inputs]
    with ExitStack() as stack:

        def compiled() -> penstock.CompiledModel:
            return stack.enter_context(_compile(graph, device, fall_back, cache))

        def run(model: penstock.CompiledModel) -> list[NDArray]:
            return [np.array(a) for a in model.run(graph.inputs)]

        model = _tried(graph, "compile", compiled, made, again=again)
        if model is None:
            return made
        for wanted in graph.answers:
            found = _tried(graph, "run", partial(run, model), made, again=again)
            if found is None:
                return made
            _same(graph, found, wanted)
    changed = [a.tobytes() for a in graph.inputs] != kept
    require(not changed, f"{graph.name}: the caller's inputs were changed")
    return made


def _tried(
    graph: Graph, what: str, act: Callable[[], T], made: Attempt, *, again: bool
) -> T | None:
    """The result of *act*, which is tried `TRIES` times; None, or with *again* a `Violation`, if
    each attempt raised an error.
    """
    for _ in range(TRIES):
        try:
            return act()
        except PenstockError as error:
            made.errors.append(error)
        except Exception as error:
            raise Violation(
                f"{graph.name}: a {what} raised {describe(error)}, which is no PenstockError"
            ) from error
    last = describe(made.errors[-1])
    require(not again, f"{graph.name}: no {what} of {TRIES} went well; the last raised {last}")
    return None


def end_in_time(graph: Graph, device: Device, seconds: float, *, cancelled: bool) -> None:
    """A compile and run with a timeout, or a cancellation, after *seconds* must end soon after.

    The result is the reference's answer, or `MissedDeadline*` (`Cancelled`). Raises `Violation`.
    """
    token, timer = CancelToken(), None
    began = time.monotonic()
    if cancelled:
        timer = threading.Timer(seconds, token.set)
        timer.start()
    limits: dict[str, Any] = {"cancel": token} if cancelled else {"timeout": seconds}
    try:
        devices: list[Device | str] = [Favoured(device), FALLBACK_DEVICE]
        with penstock.compile(graph.model, devices=devices, cache=None, **limits) as compiled:
            found = list(compiled.run(graph.inputs, **limits))
            _same(graph, found, graph.answers[0])
    except (MissedDeadline, Cancelled) as error:
        wanted = Cancelled if cancelled else MissedDeadline
        require(isinstance(error, wanted), f"{graph.name}: {describe(error)} was raised")
    except PenstockError as error:
        raise Violation(f"{graph.name}: {describe(error)} was raised") from error
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
    late = time.monotonic() - began - 2 * seconds
    require(late < PROMPT_SECONDS, f"{graph.name}: it ended {late:.1f} s too late")


def _compile(
    graph: Graph, device: Device, fall_back: bool, cache: Path | None
) -> penstock.CompiledModel:
    devices: Sequence[Device | str] = [Favoured(device), *([FALLBACK_DEVICE] if fall_back else [])]
    policy = Policy(accuracy=graph.accuracy, allow_fallback=fall_back)
    return penstock.compile(graph.model, devices=devices, cache=cache, policy=policy)


def _same(graph: Graph, found: Sequence[NDArray], wanted: Sequence[NDArray]) -> None:
    require(len(found) == len(wanted), f"{graph.name}: {len(found)} outputs, not {len(wanted)}")
    for position, (a, b) in enumerate(zip(found, wanted, strict=True)):
        near = a.shape == b.shape and (
            np.allclose(a, b, rtol=RELAXED, atol=RELAXED) if graph.relaxed else np.array_equal(a, b)
        )
        what = f"{graph.name}: output {position} is not the reference's, and nothing was raised"
        require(near, what)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary directory for a cache."""
    return tempfile.TemporaryDirectory(prefix="penstock-chaos-")
