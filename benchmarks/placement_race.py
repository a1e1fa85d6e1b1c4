"""Races the plan that Penstock chooses by default against the plan of each engine alone.

One race covers one network, one number of threads and one accuracy class, in a process of its own:

    python -m benchmarks.placement_race MODEL THREADS ACCURACY ROUNDS [tuned]

It prints one line of JSON: seconds of a run by subject and round (with one thread, of the
processor, unless a plan runs in a process of its own), the plan and its prediction by subject,
which subjects have the plan of another one, and why an engine does not race.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.competitors import Array
from benchmarks.engine_race import SEED, draw, race, recorded, use_cores
from benchmarks.measuring import other_shapes, worked

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.partitioning.plan import ExecutionPlan

CHOSEN: Final = "default"
TUNED: Final = "tuned"
ENGINES: Final = ("llvm", "xnnpack", "onnxruntime-cpu", "openvino-cpu")
REFERENCE: Final = "reference"

LONGEST_S: Final = 6.0
"""Seconds that the rounds of a race take; at least `LEAST_ROUNDS` rounds."""

LEAST_ROUNDS: Final = 3

PARTS: Final = 9
"""Parts of a turn. The clock of processor time is too slow for a single short run."""

BEHIND: Final = 4.0
"""An engine alone that takes this many times the quickest one's time is timed once."""


def main(model: str, threads: str, accuracy: str, rounds: str, tuned: str = "") -> None:
    use_cores(int(threads))
    path = Path(model)
    inputs = recorded(path) or draw(path)
    make = partial(compiled_as, path, int(threads), accuracy, inputs)
    with ExitStack() as stack:
        field = Field(stack)
        field.enter(CHOSEN, make)
        for engine in ENGINES:
            field.enter(engine, partial(make, [engine, REFERENCE]))
        if tuned:
            field.enter(TUNED, partial(make, tune=True))
        calls = {name: partial(net.run, inputs) for name, net in field.racing.items()}
        behind = dict.fromkeys(ENGINES, BEHIND)
        # What runs in another process takes no processor time of this one.
        alone = int(threads) == 1 and not any(net.plan.apart for net in field.racing.values())
        times = race(
            calls, int(rounds), LEAST_ROUNDS, longest_s=LONGEST_S, behind=behind,
            turn_of=worked_run if alone else None, timed=worked if alone else None,
        )  # fmt: skip
    # The clock does not resolve nanoseconds.
    times = {name: [round(took, 9) for took in each] for name, each in times.items()}
    found = {"times": times, "plans": field.plans, "same": field.same, "refused": field.refused}
    print(json.dumps({**found, "seed": SEED}))


def worked_run(run: Callable[[], Any], count: int) -> float:
    """The processor time of a run, in seconds: the median over parts of *count* runs.

    On one core it is the latency without the time that other programs have the core.
    """
    run()
    parts = min(count, PARTS)
    each = count // parts

    def several() -> None:
        for _ in range(each):
            run()

    return statistics.median(worked(several) / each for _ in range(parts))


class Field:
    """The compiled models that race. Those of one plan race once."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._names: dict[tuple[Any, ...], str] = {}
        self.racing: dict[str, CompiledModel] = {}
        self.plans: dict[str, dict[str, Any]] = {}
        self.same: dict[str, str] = {}
        """The subject that races, for each one that has the same plan."""
        self.refused: dict[str, str] = {}

    def enter(self, name: str, make: Callable[[], CompiledModel]) -> None:
        """Compiles a subject. An engine that fails, or whose operations all run on the reference
        device, does not race; an error of the plans that Penstock chooses propagates.
        """
        from penstock.errors import PenstockError

        try:
            net = make()
        except PenstockError as error:
            if name not in ENGINES:
                raise
            self.refused[name] = f"{type(error).__name__}: {str(error)[:200]}"
            return
        self._stack.enter_context(net)
        plan = net.plan
        if name in ENGINES and all(p.device != name for p in plan.operations):
            self.refused[name] = "it runs none of the operations"
            return
        self.plans[name] = described(plan)
        first = self._names.setdefault(placement_of(plan), name)
        if first == name:
            self.racing[name] = net
        else:
            self.same[name] = first


def compiled_as(
    path: Path,
    threads: int,
    accuracy: str,
    inputs: Sequence[Array],
    devices: Sequence[str] | None = None,
    *,
    tune: bool = False,
) -> CompiledModel:
    """The predicted plan over *devices* (None: every usable one), or the tuned one. A verdict of
    tuning is not kept, because the predicted plan would follow it.
    """
    import penstock

    model = penstock.load(path)
    return penstock.compile(
        model,
        devices=devices,
        shapes=other_shapes(model, inputs) or None,
        # Given on the command line.
        policy=penstock.Policy(accuracy=accuracy),  # type: ignore[arg-type]
        num_threads=threads,
        tune=tune,
        cache=not tune,
    )


def placement_of(plan: ExecutionPlan) -> tuple[Any, ...]:
    """The device and operations of every step, branches included."""
    found = []
    for step in plan.steps:
        branches = () if step.control is None else step.control.branches
        found.append((step.device, step.operations, *map(placement_of, branches)))
    return tuple(found)


def described(plan: ExecutionPlan) -> dict[str, Any]:
    """The plan's prediction, and the device and number of operations of each step."""
    return {
        "predicted_ns": plan.predicted_ns,
        "steps": [(step.device, len(step.operations)) for step in plan.steps],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
