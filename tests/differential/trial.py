"""One drawn model, run by LiteRT and by the reference driver: how the two compare."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

import penstock
from penstock.errors import PenstockError
from penstock.ir import Model, NDArray
from penstock.ir.types import PACKED, dtype_of
from tests.differential.draw import Drawn
from tests.differential.judge import DEFAULT, MISSING, REFERENCE, Crashed, Judge
from tests.differential.worker import Answer, plain
from tests.golden import comparison


class Outcome(enum.Enum):
    """How Penstock and LiteRT stand to each other on one model."""

    AGREE = "both run it and agree"
    BOTH_REFUSE = "both refuse it"
    ALLOWED = "LiteRT refuses what Penstock runs"
    CRASH = "LiteRT crashes"
    GAP = "Penstock refuses what LiteRT runs"
    DIFFER = "they differ"


FAILURES: Final = frozenset({Outcome.GAP, Outcome.DIFFER})


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES


def examine(drawn: Drawn, judge: Judge) -> Verdict:
    """Runs *drawn* both ways."""
    try:
        theirs, default = ask(drawn, judge)
    except Crashed as crash:
        return Verdict(Outcome.CRASH, str(crash))
    try:
        model = penstock.load(drawn.file)
        ours = run(model, drawn)
    except PenstockError as error:
        if isinstance(theirs, str):
            return Verdict(Outcome.BOTH_REFUSE, f"{error} / {theirs}")
        return Verdict(Outcome.GAP, f"{type(error).__name__}: {error}")
    if isinstance(theirs, str):
        return Verdict(Outcome.ALLOWED, theirs)
    try:
        compare(model, ours, theirs, default)
    except AssertionError as difference:
        return Verdict(Outcome.DIFFER, str(difference))
    return Verdict(Outcome.AGREE)


def ask(drawn: Drawn, judge: Judge) -> tuple[Answer, Answer]:
    """LiteRT's answers: that of its reference kernels, where they run the model, and that of its default
    ones. A crash of the default kernels leaves the reference kernels' word.
    """
    reference = judge.ask(drawn.file, drawn.inputs, REFERENCE)
    try:
        default = judge.ask(drawn.file, drawn.inputs, DEFAULT)
    except Crashed:
        if isinstance(reference, str):
            raise
        return reference, reference
    if isinstance(reference, str) and (MISSING in reference or not isinstance(default, str)):
        return default, default
    return reference, default


def run(model: Model, drawn: Drawn) -> list[NDArray]:
    """The reference driver's outputs."""
    with penstock.compile(model, devices=["reference"]) as compiled:
        return list(compiled(*drawn.inputs))


def compare(model: Model, ours: list[NDArray], reference: list[NDArray], default: Answer) -> None:
    """The rule of comparison of networks, on what LiteRT's two kernel sets say.

    Raises `AssertionError` where it is broken.
    """
    out = reference if isinstance(default, str) else default
    case = comparison.Case([_real(a) for a in out], lambda: [_real(a) for a in reference])
    comparison.compare([_real(a) for a in ours], case, comparison.Rule(None, {}, is_hybrid(model)))


def is_hybrid(model: Model) -> bool:
    """Whether floats are quantised at run time: a float input beside integer weights."""
    return any(
        len(o.inputs) > 1
        and s.operands[o.inputs[0]].dtype.is_float
        and any(s.operands[i].dtype.is_integer and s.operands[i].quantization for i in o.inputs[1:])
        for s in model.subgraphs
        for o in s.operations
    )


def _real(array: NDArray) -> NDArray:
    """Complex numbers as pairs of floats, short floats as float32, packed integers as bytes."""
    dtype = dtype_of(array.dtype)
    if dtype in PACKED:
        return plain(array)
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array)
        return np.stack([array.real, array.imag], -1)
    if dtype is not None and dtype.is_float and dtype.bits == 16:
        return array.astype(np.float32)
    return array
