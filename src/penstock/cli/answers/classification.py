"""Classification: the classes with the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.cli.answers.base import Results, finite
from penstock.cli.output import percentage
from penstock.errors import counted
from penstock.ir import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output

ROUNDING: Final = 1e-3
"""How far outside [0, 1] a probability may lie through rounding."""


class Classification:
    """The best classes of the model's one output. *mislabelled* says why they have no labels, where
    a list of labels does not fit.
    """

    task = "classification"

    def __init__(self, results: Results) -> None:
        scores, note = probabilities(results.real(0).reshape(-1))
        best = np.argsort(-finite(scores), kind="stable")[: results.top].tolist()
        self.mislabelled, results = checked_labels(results, scores.size)
        top = [{"index": i, "label": results.label(i), "score": float(scores[i])} for i in best]
        self.data: dict[str, Any] = {"top": top}
        self.notes: Sequence[str] = [n for n in (note, self.mislabelled) if n]

    def show(self, output: Output) -> None:
        rows = [
            (
                row["index"],
                "" if row["label"] is None else row["label"],
                percentage(row["score"]),
            )
            for row in self.data["top"]
        ]
        output.table(("class", "label", "probability"), rows)

    def draw(self, picture: Image) -> Image | None:
        return None


def probabilities(values: NDArray) -> tuple[NDArray, str]:
    """*values* as probabilities, and what was done to them ("" for nothing).

    Values that all lie in [0, 1] are probabilities already: of one class out of all, or of each
    class by itself. Anything else is taken for logits and goes through softmax. What is not a
    number stays so.
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
    """*results* without labels where those are not as many as the *classes*, and why, in one
    clause; "" where they fit.

    A list of another length may name every class wrongly: a background class that it has, or lacks,
    shifts all others.
    """
    if results.labels is None or len(results.labels) == classes:
        return "", results
    reason = (
        f"there are {counted(len(results.labels), 'label')} for {counted(classes, 'class', 'classes')}, so classes are shown "
        "without labels, which may be shifted"
    )
    return reason, replace(results, labels=None)
