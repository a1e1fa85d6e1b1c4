"""Races Penstock's tuned plan against every engine used directly, in alternating turns.

One race covers one network, one number of threads and one accuracy class. It is a separate program,
so that each race has a process and threads of its own:

    python -m benchmarks.engine_race MODEL THREADS ACCURACY ROUNDS [DEVICE,...]

It prints one line of JSON: seconds of a run by subject and round, the judge's verdict on each, why
an engine does not race or not with default settings, and the plan.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.competitors import (
    COMPETITORS,
    DEFAULT,
    READS,
    Array,
    Call,
    converted,
    copying_litert,
)
from benchmarks.exact_race import DEVICES, EXACT, LEAST_ROUNDS as EXACT_ROUNDS, layers_of
from benchmarks.gates import Alone, Verdict, alone_by, judge_operations, judge_outputs
from benchmarks.measuring import other_shapes, seconds

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.testing.operations import OperationCase

TURN_S: Final = 0.05
"""Seconds that a subject runs in its turn; at least one run."""

RACE_S: Final = 90.0
"""Seconds that the rounds of a race take; at least `LEAST_ROUNDS` rounds.

The largest networks therefore get fewer rounds.
"""

LONG_S: Final = 0.1
"""Seconds of a run that no disturbance on the machine makes several times as long."""

LEAST_ROUNDS: Final = 5
SEED: Final = 0

OURS: Final = "penstock"
BURST: Final = "penstock (burst)"


def main(model: str, threads: str, accuracy: str, rounds: str, devices: str = "") -> None:
    use_cores(int(threads))
    path = Path(model)
    exact = accuracy == EXACT
    devices = devices or (DEVICES if exact else "")
    inputs = recorded(path) or draw(path)
    field = Field(path, int(threads), accuracy, inputs)
    compiled = ours(path, int(threads), accuracy, inputs, devices)
    field.judge_ours(compiled, devices)
    if exact:
        field.enter_all()
    else:
        field.judge_others()
    converted.close()
    with compiled.burst() as burst:
        subjects: dict[str, Call] = {
            OURS: compiled.run,
            BURST: lambda given: burst.run(*given),
            **field.subjects,
        }
        calls = {name: partial(call, inputs) for name, call in subjects.items()}
        times = race(calls, int(rounds), EXACT_ROUNDS if exact else LEAST_ROUNDS)
    plan = [(step.device, len(step.operations)) for step in compiled.plan.steps]
    verdicts = {name: verdict.to_dict() for name, verdict in field.verdicts.items()}
    # The clock does not resolve nanoseconds.
    times = {name: [round(took, 9) for took in each] for name, each in times.items()}
    found: dict[str, Any] = {
        "times": times,
        "verdicts": verdicts,
        "refused": field.refused,
        "plan": plan,
    }
    if exact:
        found["layers"] = layers_of(compiled, inputs)
    print(json.dumps({**found, "seed": SEED}))


class Field:
    """The competitors on a network: engines that the judge accepts, and the native engine of its
    format.

    Each competes in its first configuration within the class, and also in the first whose whole
    outputs are within the class.
    """

    def __init__(self, path: Path, threads: int, accuracy: str, inputs: Sequence[Array]) -> None:
        self.path, self.threads, self.accuracy, self.inputs = path, threads, accuracy, inputs
        self.subjects: dict[str, Call] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.refused: dict[str, str] = {}

    def judge_ours(self, compiled: CompiledModel, devices: str) -> None:
        """Judges Penstock's plan. Other shapes of recorded cases are compiled and tuned again."""

        def make(path: Path, threads: int, given: Sequence[Array]) -> Call:
            same = [a.shape for a in given] == [a.shape for a in self.inputs]
            net = compiled if same else ours(path, threads, self.accuracy, given, devices)
            return lambda arrays: net.run([*arrays], state=net.new_state())

        self.verdicts[OURS] = self._judge(make, alone_on_plan(compiled))

    def judge_others(self) -> None:
        for name, ways in COMPETITORS.items():
            if self.path.suffix not in READS[name]:
                continue
            for way, make in ways.items():
                subject = f"{name} ({way})" if way else name
                try:
                    call = make(self.path, self.threads, self.inputs)
                    verdict = self._judge(make, alone_by(make, self.threads))
                # An engine that cannot run a network does not race.
                except Exception as error:  # noqa: BLE001
                    self.refused[subject] = f"{type(error).__name__}: {str(error)[:200]}"
                    continue
                self.verdicts[subject] = verdict
                if not verdict.in_class:
                    self.refused[subject] = verdict.why()
                if verdict.in_outputs or name == DEFAULT[self.path.suffix]:
                    self.subjects[subject] = call
                if verdict.in_class or name == DEFAULT[self.path.suffix]:
                    break

    def enter_all(self) -> None:
        """Every engine races as it runs by default, whatever it computes. Nothing of it is judged:
        no engine claims to be `exact`.
        """
        for name, ways in COMPETITORS.items():
            if self.path.suffix not in READS[name]:
                continue
            make = copying_litert if name == "litert" else ways[""]
            try:
                call = make(self.path, self.threads, self.inputs)
                call(self.inputs)
            except Exception as error:  # noqa: BLE001  # an engine that cannot run a network does not race
                self.refused[name] = f"{type(error).__name__}: {str(error)[:200]}"
                continue
            self.subjects[name] = call
            self.verdicts[name] = Verdict(0, None)

    def _judge(self, make: Callable[..., Call], alone: Alone) -> Verdict:
        outputs = judge_outputs(make, self.path, self.threads, self.accuracy, self.inputs)
        if self.accuracy != "faithful" or not outputs.in_outputs:
            return outputs
        return judge_operations(alone, self.path, outputs)


def alone_on_plan(compiled: CompiledModel) -> Alone:
    """Runs single operations on the devices that the plan assigned them to."""
    from penstock.errors import PenstockError
    from penstock.testing.operations import run_case

    placed = {(p.index, p.type): p.device for p in compiled.plan.operations}

    def run(case: OperationCase) -> list[Array] | None:
        device = placed.get((case.index, case.type))
        if device is None:
            return None
        try:
            return run_case(case, device, "faithful")
        except PenstockError:
            return None

    return run


def recorded(path: Path) -> list[Array]:
    """The first recorded inputs of a network with unknown dimensions after the first; none for
    other networks.

    Not every size is valid for such dimensions.
    """
    import penstock

    shapes = [operand.shape for operand in penstock.load(path).inputs]
    if all(shape is not None and None not in shape[1:] for shape in shapes):
        return []
    before = dict(os.environ)
    # It points the cache and the state at directories of the tests.
    from tests.golden.recorded import cases_of_file

    os.environ.clear()
    os.environ.update(before)
    return next((inputs for inputs, _ in cases_of_file(path)), [])


def use_cores(threads: int) -> None:
    """Restricts the process to one core per thread. Must precede imports that start threads."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def race(
    subjects: Mapping[str, Callable[[], Any]],
    rounds: int,
    least: int = LEAST_ROUNDS,
    *,
    longest_s: float = RACE_S,
    behind: Mapping[str, float] | None = None,
    turn_of: Callable[[Callable[[], Any], int], float] | None = None,
    timed: Callable[[Callable[[], Any]], float] | None = None,
) -> dict[str, list[float]]:
    """What *turn_of* finds (None: `median_run`) in each subject's turn of each round, of which
    there are at least *least*. *timed* times one run (None: its latency).

    Every round begins with another subject, and every second round runs in reverse order. Each turn
    begins when the threads of the previous subject have stopped spinning. More rounds than *least*
    end before *longest_s*. A subject of *behind* that takes more than so many times the quickest
    one's time is dropped after the first round, and before it if a run is long: it has one time.
    """
    from penstock.runtime.measuring import Rest

    rest, timed = Rest(), timed or seconds
    names = list(subjects)
    quickest, once = {}, {}
    for name, run in subjects.items():
        rest()
        first = timed(run)
        once[name] = max(timed(run), 1e-7)
        quickest[name] = min(first, once[name])
    times: dict[str, list[float]] = {name: [] for name in names}

    def far() -> list[str]:
        best = min(quickest[name] for name in names)
        return [n for n in names if quickest[n] > (behind or {}).get(n, math.inf) * best]

    for name in [name for name in far() if quickest[name] > LONG_S]:
        times[name].append(quickest[name])
        names.remove(name)
    counts = {name: max(1, min(1000, round(TURN_S / once[name]))) for name in names}
    took = sum(once[name] * (1 + counts[name]) for name in names)
    rounds = min(rounds, max(least, int(longest_s / took)))
    for turn in range(rounds):
        if turn == 1:
            quickest = {name: min(quickest[name], times[name][0]) for name in names}
            left = far()
            names = [name for name in names if name not in left]
        order = [names[(turn + position) % len(names)] for position in range(len(names))]
        for name in order if turn % 2 == 0 else reversed(order):
            rest()
            times[name].append((turn_of or median_run)(subjects[name], counts[name]))
    return times


def median_run(run: Callable[[], Any], count: int) -> float:
    """The median latency of *count* runs, in seconds."""
    run()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def draw(path: Path) -> list[Array]:
    """Seeded inputs with the network's shapes and types. Unknown dimensions are 1."""
    import numpy as np

    import penstock

    rng = np.random.default_rng(SEED)
    drawn: list[Array] = []
    for operand in penstock.load(path).inputs:
        shape = [d or 1 for d in operand.shape or ()]
        dtype = operand.dtype.numpy
        if dtype.kind == "f":
            drawn.append(rng.uniform(-1, 1, shape).astype(dtype))
        elif dtype.kind == "b":
            drawn.append(rng.integers(0, 2, shape).astype(dtype))
        elif dtype.itemsize == 1:
            drawn.append(rng.integers(0, 256, shape).astype(np.uint8).view(dtype))
        elif dtype.kind in "iu":
            drawn.append(rng.integers(0, 2, shape).astype(dtype))
        else:
            drawn.append(np.full(shape, b"word", object))
    return drawn


def ours(
    path: Path, threads: int, accuracy: str, inputs: Sequence[Array], devices: str
) -> CompiledModel:
    """Penstock's tuned plan over every usable device, or over the named devices; in `exact` the
    predicted plan.
    """
    import penstock

    model = penstock.load(path)
    return penstock.compile(
        model,
        devices=devices.split(",") if devices else None,
        shapes=other_shapes(model, inputs) or None,
        # Given on the command line.
        policy=penstock.Policy(accuracy=accuracy),  # type: ignore[arg-type]
        num_threads=threads,
        tune=accuracy != EXACT,
        cache=os.environ.get("PENSTOCK_CACHE_DIR") or False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
