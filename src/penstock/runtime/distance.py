"""The distance of an operation's results from the reference's, by the rule of its accuracy class.

Quantised results are measured in steps of their scale: the class `exact` allows none, `faithful`
one. Other integers, booleans and strings must be equal. Floats are measured as a share of the
largest expected value. `relaxed` accepts everything that `faithful` does. It also accepts a root
mean square of the error, in real values, of a quarter of the result's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import ml_dtypes
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import counted
from penstock.execution.inputs import dequantize
from penstock.hal import AccuracyClass
from penstock.ir import Model, NDArray, Operand

Measure: TypeAlias = Literal["steps", "elements", "relative", "rms", "none"]

FLOAT_SHARE: Final = 2e-4
"""Allowed share of the largest expected value: the effect of the order of float32 sums."""
HYBRID_SHARE: Final = 1e-2
"""The same for float inputs with integer weights: engines choose how to quantise the inputs."""
RELAXED_RMS: Final = 0.25
CANCELLATION: Final = 2.0**-10
"""Share of the largest input that a sum's limit is based on, because sums may cancel to zero."""
SUMMING: Final = frozenset({"MEAN", "SUM", "CUMSUM", "STABLEHLO_REDUCE"})


class Distance(Struct, frozen=True):
    """The result of an operation with the largest distance, and the allowed limit.

    *measure* is the unit of *value* and *limit*:

    - "steps": steps of the quantisation scale;
    - "elements": the number of elements that differ, if none may;
    - "relative": the largest difference, as a share of the largest finite expected value;
    - "rms": the root mean square of the difference, as a share of that of the expected values;
    - "none": nothing was measured. There are no results, or *problem* says why they cannot be
      compared (count, shape, element type, infinities).

    *output* is the result's position, *element* the index of its worst element, *got* and
    *expected* the values of that element, as text.
    """

    measure: Measure
    value: float
    limit: float
    output: int = 0
    element: tuple[int, ...] = ()
    got: str = ""
    expected: str = ""
    problem: str = ""
    not_finite: bool = False
    """Whether the *problem* is an infinite or NaN result."""

    @property
    def departs(self) -> bool:
        """Whether the distance exceeds the limit of the class."""
        return bool(self.problem) or not self.value <= self.limit

    @property
    def severity(self) -> float:
        """The error in multiples of the limit: at most 1 within it; infinite for limit 0."""
        if self.problem:
            return math.inf
        if self.value == 0:
            return 0.0
        return self.value / self.limit if self.limit else math.inf

    def show(self) -> str:
        """The distance as text, without a final newline."""
        if self.problem:
            return f"output {self.output}: {self.problem}"
        if self.measure == "none":
            return "there is nothing to compare"
        plural = "" if self.value == 1 else "s"
        number = {
            "steps": f"{self.value:g} step{plural}",
            "elements": f"{self.value:g} element{plural}",
            "relative": f"{self.value:.3g} of the largest value",
            "rms": f"an RMS error of {self.value:.3g} of the result's",
        }[self.measure]
        limit = "none" if not self.limit else f"{self.limit:.3g}"
        text = f"output {self.output} is off by {number} ({limit} allowed)"
        if self.value == 0:
            return text
        return f"{text}, at {list(self.element)}: {self.got}, not {self.expected}"


NOTHING: Final = Distance("none", 0.0, 0.0)


def distance_of(
    model: Model,
    inputs: Sequence[NDArray],
    outputs: Sequence[NDArray],
    expected: Sequence[NDArray],
    accuracy: AccuracyClass = "faithful",
) -> Distance:
    """The worst distance between *outputs* of *model* and the *expected* ones.

    *model* has one operation or a few. *inputs* are the inputs of both results: a sum may cancel,
    so its limit also depends on its inputs. For a model with state, either *inputs* include the
    state and the results the new state, or neither does.
    """
    worst = NOTHING
    for found in distances_of(model, inputs, outputs, expected, accuracy):
        if worst.measure == "none" or found.severity > worst.severity:
            worst = found
        if found.problem:
            return found
    return worst


def distances_of(
    model: Model,
    inputs: Sequence[NDArray],
    outputs: Sequence[NDArray],
    expected: Sequence[NDArray],
    accuracy: AccuracyClass = "faithful",
) -> list[Distance]:
    """The distance of each output in order; a single one if the number of outputs is wrong."""
    entry = model.entry
    ports = _ports(entry.outputs, entry.ordinary_outputs, len(expected))
    operands = [model.operands[i] for i in ports]
    if len(outputs) != len(operands):
        return [_incomparable(0, f"{counted(len(outputs), 'output')}, not {len(operands)}")]
    share = HYBRID_SHARE if _is_hybrid(model) else FLOAT_SHARE
    floor = _cancelling(model, inputs)
    return [
        replace(_one(operand, np.asarray(got), want, accuracy, share, floor), output=position)
        for position, (operand, got, want) in enumerate(
            zip(operands, outputs, expected, strict=True)
        )
    ]


def _ports(every: Sequence[int], ordinary: Sequence[int], count: int) -> Sequence[int]:
    return ordinary if count == len(ordinary) else every


def _one(
    operand: Operand,
    got: NDArray,
    want: NDArray,
    accuracy: AccuracyClass,
    share: float,
    floor: float,
) -> Distance:
    if got.shape != want.shape:
        return _incomparable(0, f"its shape is {got.shape}, not {want.shape}")
    if got.dtype != want.dtype:
        return _incomparable(0, f"its element type is {got.dtype}, not {want.dtype}")
    if operand.dtype.is_float:
        strict = _floats(got, want, max(share, _epsilon(want.dtype)), floor)
    elif want.dtype.kind == "c":
        strict = _floats(_pairs(got), _pairs(want), share, floor)
    elif operand.dtype.is_integer and operand.quantization is not None:
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        limit = 0 if accuracy == "exact" else 1
        strict = _at_worst("steps", off, got, want, float(off.max(initial=0)), limit)
    else:
        off = np.asarray(got != want).astype(np.float64)
        strict = _at_worst("elements", off, got, want, float(off.sum()), 0.0)
    if accuracy != "relaxed" or not strict.departs or strict.measure not in {"steps", "relative"}:
        return strict
    return _rms(operand, got, want, strict)


def _pairs(array: NDArray) -> NDArray:
    return np.stack([array.real, array.imag], axis=-1)


def _floats(got: NDArray, want: NDArray, share: float, floor: float) -> Distance:
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if (wrong := ~same & ~(finite & np.isfinite(a))).any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        problem = f"it is {a[at]} at {list(at)}, not {b[at]}"
        return replace(_incomparable(0, problem), not_finite=not math.isfinite(a[at]))
    off = np.where(same, 0.0, np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0)))
    largest = max(float(np.abs(b[finite]).max(initial=0.0)), floor)
    most = float(off.max(initial=0.0))
    value = 0.0 if most == 0 else most / largest if largest else math.inf
    return _at_worst("relative", off, got, want, value, share)


def _rms(operand: Operand, got: NDArray, want: NDArray, strict: Distance) -> Distance:
    real = [
        (a if operand.quantization is None else dequantize(a, operand.quantization)).astype(float)
        for a in (got, want)
    ]
    error = float(np.sqrt(np.mean(np.square(np.nan_to_num(real[0] - real[1])))))
    size = float(np.sqrt(np.mean(np.square(np.nan_to_num(real[1])))))
    value = error / size if size else math.inf
    return replace(strict, measure="rms", value=value, limit=RELAXED_RMS)


def _at_worst(
    measure: Measure, off: NDArray, got: NDArray, want: NDArray, value: float, limit: float
) -> Distance:
    if not value:
        return Distance(measure, 0.0, limit)
    at = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
    return Distance(measure, value, limit, 0, at, _text(got[at]), _text(want[at]))


def _text(value: Any) -> str:
    return f"{float(value):.9g}" if np.asarray(value).dtype.kind == "f" else str(value)


def _incomparable(output: int, problem: str) -> Distance:
    return Distance("none", math.inf, 0.0, output, problem=problem)


def _epsilon(dtype: np.dtype[Any]) -> float:
    """One unit in the last place: the rounding error of a narrow float type."""
    # Published without types.
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def _is_hybrid(model: Model) -> bool:
    """Whether an operation multiplies float values by integer weights."""
    for operation in model.operations:
        operands = [model.operands[i] for i in operation.inputs]
        if operands and operands[0].dtype.is_float and operation.type != "QUANTIZE":
            weights = (o for o in operands[1:] if o.is_constant and o.quantization is not None)
            if any(o.dtype.is_integer for o in weights):
                return True
    return False


def _cancelling(model: Model, inputs: Sequence[NDArray]) -> float:
    if not any(operation.type in SUMMING for operation in model.operations):
        return 0.0
    largest = 0.0
    ports = _ports(model.entry.inputs, model.entry.ordinary_inputs, len(inputs))
    for operand, array in zip((model.operands[i] for i in ports), inputs, strict=True):
        if operand.dtype.is_float:
            values = np.abs(array.astype(np.float64))
            largest = max(largest, float(values[np.isfinite(values)].max(initial=0.0)))
    return largest * CANCELLATION
