"""Whether a plan whose operations are `stepwise` is `faithful` as a whole: its outputs measured against the reference's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import counted
from penstock.ir import Model, NDArray
from penstock.runtime.distance import FLOAT_SHARE
from penstock.runtime.examples import examples

Run: TypeAlias = Callable[[Sequence[NDArray]], Sequence[NDArray]]
"""A model's ordinary outputs of its inputs, both in order; its state goes on from run to run."""

SPREAD: Final = 1.2
"""How many times that of the usual plan the root mean square of the differences may be."""

MOST_EXAMPLES: Final = 6
LEAST_EXAMPLES: Final = 4
"""Drawn inputs that outputs are measured on: noise and blocks of colour, each in two ranges; more while there is time."""

ROUNDING: Final = 0.25
"""Of an output's range: what of the usual plan lies farther from the reference is another answer (the place of another maximum,
boxes in another order), and its largest says little of what rounding does.
"""

BUDGET_NS: Final = 20_000_000_000
"""After so long no example begins beyond the least number."""


class _Output(Struct):
    """An output over all examples: a step in its unit, and how far it lies from the reference's, at most and in sums of
    squares.
    """

    step: float
    off: float = 0.0
    usual: float = 0.0
    squares: float = 0.0
    usual_squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    @property
    def allowed(self) -> float:
        # Beside a usual plan whose distance cannot be told nothing but a step can be.
        return self.step + (self.usual if math.isfinite(self.usual) else 0.0)

    @property
    def spread(self) -> float:
        """How many times the usual plan's the root mean square may be."""
        return SPREAD if self.usual <= ROUNDING * (self.most - self.least) else 1.0

    @property
    def holds(self) -> bool:
        if not math.isfinite(self.off):
            return False
        is_spread = self.squares > self.spread**2 * self.usual_squares
        return self.off <= self.step or (self.off <= self.allowed and not is_spread)

    @property
    def told(self) -> str:
        ratio = math.sqrt(self.squares / self.usual_squares) if self.usual_squares else 0.0
        spread = f", RMS {ratio:.2f} of the usual plan's, {self.spread} allowed" if ratio else ""
        return f"up to {self.off:.3g} from the reference's, {self.allowed:.3g} allowed{spread}"


def prove(
    model: Model,
    plan: Run,
    usual: Run,
    reference: Run,
    check: Callable[[int], None] = lambda _: None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[bool, str]:
    """Whether it is proved, and what was measured, in words.

    Runs all three on drawn inputs (`examples`) and compares the outputs of two of them with the reference's. Each output of
    *plan* must lie no farther away than that of *usual*, a faithful plan, plus one step: the largest distance over all
    examples, of which the class would allow 1.5 times the usual one, since other inputs may lie farther. And the root mean
    square of the differences, which depends less on chance, must be no more than 1.2 times the usual one; one that lies within a
    step everywhere need not be, and where *usual* itself lies more than a quarter of the output's range away it must be no more than the usual one. A step is one of the quantisation, of floats what they were dequantised by, at
    least what float32 may round away (2e-4 of the largest value). Outputs that are no numbers, and whole numbers without
    a scale, must be equal.

    That is a measurement on inputs that nobody chose, no guarantee for all. *check* is called before each run with how
    many there were, and may raise.
    """
    outputs = [_Output(step) for step in _steps(model)]
    began, done = clock(), 0
    while done < LEAST_EXAMPLES or (done < MOST_EXAMPLES and clock() - began < BUDGET_NS):
        inputs = examples(model, done)
        results: list[list[NDArray]] = []
        for run in (reference, usual, plan):
            check(3 * done + len(results))
            results.append([np.array(array) for array in run(inputs)])
        exact, theirs, ours = results
        for position, output in enumerate(outputs):
            _measure(output, exact[position], theirs[position], ours[position])
        done += 1
    failed = [output for output in outputs if not output.holds]
    shown = max(failed or outputs, key=lambda output: output.off - output.allowed, default=None)
    told = "there are no outputs" if shown is None else shown.told
    return not failed, f"on {counted(done, 'drawn input')} outputs lie {told}"


def _steps(model: Model) -> list[float]:
    """One quantisation step of each ordinary output in its own unit; 0 where there is none."""
    entry = model.entry
    makers = {o: operation for operation in entry.operations for o in operation.outputs}
    steps = []
    for index in entry.ordinary_outputs:
        operand, maker = entry.operands[index], makers.get(index)
        quantization = None
        if maker is not None and maker.type == "DEQUANTIZE":
            quantization = entry.operands[maker.inputs[0]].quantization
        is_stepped = operand.dtype.is_integer and operand.quantization is not None
        steps.append(1.0 if is_stepped else max(quantization.scales) if quantization else 0.0)
    return steps


def _measure(output: _Output, exact: NDArray, theirs: NDArray, ours: NDArray) -> None:
    if exact.dtype.kind not in "fiu" or (exact.dtype.kind in "iu" and not output.step):
        output.off = max(output.off, 0.0 if np.array_equal(ours, exact) else math.inf)
        return
    finite = exact[np.isfinite(exact)].astype(np.float64)
    if exact.dtype.kind == "f":
        output.step = max(output.step, FLOAT_SHARE * float(np.abs(finite).max(initial=0.0)))
    output.least = min(output.least, float(finite.min(initial=math.inf)))
    output.most = max(output.most, float(finite.max(initial=-math.inf)))
    largest, squares = _differences(ours, exact)
    output.off, output.squares = max(output.off, largest), output.squares + squares
    largest, squares = _differences(theirs, exact)
    output.usual, output.usual_squares = max(output.usual, largest), output.usual_squares + squares


def _differences(given: NDArray, exact: NDArray) -> tuple[float, float]:
    """The largest one, and the sum of the squares of all; infinite where they cannot be taken."""
    if given.shape != exact.shape:
        return math.inf, math.inf
    finite = np.isfinite(exact)
    if not np.array_equal(given[~finite], exact[~finite], equal_nan=True):
        return math.inf, math.inf
    off = np.abs(given[finite].astype(np.float64) - exact[finite].astype(np.float64))
    return float(off.max(initial=0.0)), float(np.square(off).sum())
