"""Classification, undecided outputs, and the summary of outputs without a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from penstock.cli.answers.base import Answer, Results, finite, named
from penstock.cli.output import percentage
from penstock.errors import counted
from penstock.ir import NDArray
from penstock.ir.model import show_shape

if TYPE_CHECKING:
    from penstock.cli.output import Output


ROUNDING: Final = 1e-3
"""How far outside [0, 1] a probability may be because of rounding."""


class Classification(Answer):
    """The best classes of the model's one output."""

    task = "classification"

    def __init__(self, results: Results) -> None:
        scores, note = probabilities(results.real(0).reshape(-1))
        best = np.argsort(-finite(scores), kind="stable")[: results.top].tolist()
        self.mislabelled, results = checked_labels(results, scores.size)
        top = [{"index": i, "label": results.label(i), "score": float(scores[i])} for i in best]
        self.data = {"top": top}
        self.notes = [n for n in (note, self.mislabelled) if n]

    def show(self, output: Output) -> None:
        rows = [(*named(row), percentage(row["score"])) for row in self.data["top"]]
        output.table(("class", "label", "probability"), rows)


def probabilities(values: NDArray) -> tuple[NDArray, str]:
    """*values* as probabilities, and a note on the conversion.

    Values in [0, 1] are probabilities already. Others count as logits and go through softmax. NaN
    stays NaN.
    """
    real = np.asarray(values, np.float64)
    known = real[~np.isnan(real)]
    if known.size == 0 or (known.min() >= -ROUNDING and known.max() <= 1 + ROUNDING):
        return real, ""
    with np.errstate(invalid="ignore"):  # infinity less itself is a NaN, and is shown as one
        shifted = np.exp(real - known.max())
        shares = shifted / np.nansum(shifted)
    return shares, "the outputs are not probabilities (they leave [0, 1]): softmax applied"


def checked_labels(results: Results, classes: int) -> tuple[str, Results]:
    """Drops the labels of *results* unless their number equals *classes*. Returns the reason, "" if
    it does.

    Another number may shift all names, for example by a background class.
    """
    if results.labels is None or len(results.labels) == classes:
        return "", results
    reason = (
        f"there are {counted(len(results.labels), 'label')} for "
        f"{counted(classes, 'class', 'classes')}, so classes are shown "
        "without labels, which may be shifted"
    )
    return reason, replace(results, labels=None)


CHECK: Final = "check that the input, and how it is prepared, is what the model takes"
REMEDY: Final = f"{CHECK}; --task outputs shows the outputs as they are"

NAMED: Final = 5
"""How many of the classes with equal scores are named."""

BY_MAXIMUM: Final = frozenset({"classification", "segmentation"})
"""Tasks whose answer is the position of a maximum. A single NaN makes it arbitrary."""


def why_undecided(results: Results, task: str) -> str:
    """Why the outputs decide nothing about *task*: NaN values or a tie; "" if they decide.

    8-bit outputs often tie, because two likely classes may fall into one quantisation step.
    """
    if task == "outputs":
        return ""
    for position, operand in enumerate(results.operands):
        if not operand.dtype.is_float or (position and task in BY_MAXIMUM):
            continue
        unknown = np.isnan(np.asarray(results.arrays[position], np.float64))
        if unknown.size and (unknown.any() if task in BY_MAXIMUM else unknown.all()):
            count = int(np.count_nonzero(unknown))
            share = f"{count} of {unknown.size}" if count < unknown.size else f"all {count}"
            return (
                f"the result holds no numbers: {share} values of output {operand.name!r} are NaN "
                "(not a number)"
            )
    return _tie(results) if task == "classification" else ""


def _tie(results: Results) -> str:
    scores, _ = probabilities(results.real(0).reshape(-1))
    if np.isnan(scores).any():
        return "the result holds no usable numbers: the best scores are infinite"
    sharing = np.flatnonzero(scores == scores.max()).tolist()
    if len(sharing) == 1:
        return ""
    named = checked_labels(results, scores.size)[1]
    classes = ", ".join(f"{i} {named.label(i) or ''}".strip() for i in sharing[:NAMED])
    rest = ", ..." if len(sharing) > NAMED else ""
    return (
        f"no class stands out: {len(sharing)} of {scores.size} classes share the best score, "
        f"{percentage(float(scores.max()))} ({classes}{rest})"
    )


SHOWN: Final = 8
"""How many strings of an output are shown, and how many characters of each."""

LONGEST: Final = 60


class Summary(Answer):
    """Least, mean and greatest real value of each output; for strings the first few."""

    task = "outputs"

    def __init__(self, results: Results) -> None:
        self.data = {
            "values": [
                {"name": o.name, "dtype": o.dtype.value, "shape": list(a.shape)}
                | _statistics(results, i)
                for i, (o, a) in enumerate(zip(results.operands, results.arrays, strict=True))
            ]
        }
        self.notes = [
            f"{v['name']} holds {', '.join(map(repr, v['strings']))}"
            + (", ..." if np.prod(v["shape"]) > SHOWN else "")
            for v in self.data["values"]
            if v.get("strings")
        ]

    def show(self, output: Output) -> None:
        rows = [
            (
                v["name"],
                v["dtype"] + show_shape(tuple(v["shape"])),
                *("" if v[k] is None else f"{v[k]:.6g}" for k in ("min", "mean", "max")),
            )
            for v in self.data["values"]
        ]
        output.table(("output", "type", "least", "mean", "greatest"), rows)


def _statistics(results: Results, position: int) -> dict[str, Any]:
    values = results.real(position)
    unknown: dict[str, Any] = {"min": None, "mean": None, "max": None}
    if values.dtype.kind == "O":
        first = [bytes(s).decode("utf-8", "replace") for s in values.reshape(-1)[:SHOWN].tolist()]
        return {**unknown, "strings": [s[:LONGEST] for s in first]}
    if values.dtype.kind in "SUc" or values.size == 0:
        return unknown
    real = np.asarray(values, np.float64)
    with np.errstate(invalid="ignore"):  # the mean of both infinities is a NaN, and is shown as one
        mean = float(real.mean())
    return {"min": float(real.min()), "mean": mean, "max": float(real.max())}
