"""Declarations of accuracy judged on drawn operations (docs/accuracy.md): each engine computes an
operation alone, in each class that it declares for it, and lies as near to the `reference` driver
as the class says. What it says yes to it prepares and runs.

Engines live in a process of their own here: a drawn operation may bring one down, which is a
departure like others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

import penstock
from penstock.errors import PenstockError
from penstock.hal import ACCURACY_RANK, AccuracyClass, Device
from penstock.ir import Model, NDArray, infer_shapes
from penstock.runtime.discovery import manager
from penstock.runtime.distance import distance_of
from tests.differential.apart import Apart, Crashed
from tests.differential.draw import Drawn
from tests.differential.judge import DEFAULT
from tests.differential.worker import run
from tests.golden.engine_grid import ENGINES
from tests.golden.engine_rules import CHECKED

PATIENCE: Final = 60.0
"""Seconds that all engines together may take for one operation."""


class Declarations(Apart):
    """A process that runs the engines."""

    def __init__(self) -> None:
        super().__init__("tests.differential.declarations", PATIENCE)

    def ask(self, drawn: Drawn, engines: Sequence[str] = ENGINES) -> tuple[int, list[str]]:
        """How many results of *drawn* were compared, and a line for each declaration that it
        breaks: the engine, the class, and how.
        """
        compared, lines = 0, list[str]()
        for engine in engines:
            try:
                count, found = self.answer(drawn.file, list(drawn.inputs), engine)
            except Crashed as error:
                count, found = 1, [f"{engine}: {error}"]
            compared += count
            lines += found
        return compared, lines


def judged(file: bytes, inputs: Sequence[NDArray], engine: str) -> tuple[int, list[str]]:
    """As `Declarations.ask`, of one engine, in this process."""
    try:
        model = penstock.load(file)
        with penstock.compile(model, devices=["reference"], cache=False) as compiled:
            expected = [np.asarray(o) for o in compiled(*inputs)]
        model = infer_shapes(model, {k: array.shape for k, array in enumerate(inputs)})
    except PenstockError:
        return 0, []
    compared, lines = 0, []
    # Of others no class says anything, but that the engine runs.
    is_defined = all(map(_is_finite, (*inputs, *_constants(model), *expected))) and not _overflows(
        model, inputs
    )
    for accuracy in declared(model, engine):
        compared += 1
        policy = penstock.Policy(accuracy=accuracy, allow_fallback=False)
        try:
            with penstock.compile(
                model, devices=[_device(engine)], policy=policy, cache=False, num_threads=1
            ) as compiled:
                got = [np.asarray(o) for o in compiled(*inputs)]
        except PenstockError as error:
            lines.append(
                f"{engine}, {accuracy}: it said yes, and then {type(error).__name__}: {error}"
            )
            continue
        distance = distance_of(model, inputs, got, expected, accuracy)
        if not is_defined or not distance.departs:
            continue
        if accuracy != "exact" or not _is_between(file, inputs, got, expected):
            lines.append(f"{engine}, {accuracy}: {distance.show()}")
    return compared, lines


def _is_between(
    file: bytes, inputs: Sequence[NDArray], got: Sequence[NDArray], expected: Sequence[NDArray]
) -> bool:
    """Whether what differs in the class `exact` differs between LiteRT's own kernel sets too, and
    lies within a step of either.
    """
    other = run(file, inputs, DEFAULT)
    if isinstance(other, str):
        return False
    for ours, one, another in zip(got, expected, other, strict=True):
        if ours.dtype.kind not in "iu":
            return False
        # Of 64 bits differences do not wrap.
        off = [np.abs(ours.astype(np.int64) - a.astype(np.int64)) for a in (one, another)]
        if not np.all((off[0] == 0) | ((one != another) & (np.minimum(*off) <= 1))):
            return False
    return True


def declared(model: Model, engine: str) -> Sequence[AccuracyClass]:
    """The classes in which the engine's answer for *model* is compared; none where it takes not all
    of it.
    """
    answers = _device(engine).supported_operations(model)
    if not answers or not all(answer.supported for answer in answers):
        return ()
    return CHECKED[min((a.accuracy for a in answers), key=ACCURACY_RANK.__getitem__)]


def _constants(model: Model) -> Iterator[NDArray]:
    return (model.constant(o) for o in model.operands if o.is_constant)


def _overflows(model: Model, inputs: Sequence[NDArray]) -> bool:
    """Whether a sum of int32 may take more bits, which is undefined in LiteRT's C++."""
    summed = any(o.type in {"SUM", "CUMSUM"} for o in model.operations)
    return summed and any(
        a.dtype == np.int32 and bool(np.abs(a.astype(np.float64)).sum() >= 2**31) for a in inputs
    )


def _is_finite(array: NDArray) -> bool:
    return array.dtype.kind not in "fc" or bool(np.all(np.isfinite(array)))


@cache
def _device(engine: str) -> Device:
    found = manager.by_name(engine)
    if found is None:
        raise LookupError(f"{engine} is not usable here")
    return found


if __name__ == "__main__":
    pipe = Connection(int(sys.argv[1]))
    with suppress(EOFError):
        while (task := pipe.recv()) is not None:
            pipe.send(judged(*task))
