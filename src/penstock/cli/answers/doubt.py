"""Outputs that have the shape of an answer and decide nothing: not-a-number values, and ties."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.cli.answers.base import Results
from penstock.cli.answers.classification import checked_labels, probabilities
from penstock.cli.output import percentage

REMEDY: Final = "check that the input, and how it is prepared, is what the model takes; --task outputs shows the outputs as they are"

NAMED: Final = 5
"""How many of the classes that share a score are named."""

BY_MAXIMUM: Final = frozenset({"classification", "segmentation"})
"""Tasks whose answer is the place of a maximum: a single value that is not a number makes it
arbitrary.
"""


def why_undecided(results: Results, task: str) -> str:
    """Why the outputs decide nothing about *task*, in one clause; "" where they do.

    A table of best classes would hide it and show some class first all the same. Outputs of 8 bits
    often tie: their steps do not tell two likely classes apart.
    """
    if task == "outputs":
        return ""
    for position, operand in enumerate(results.operands):
        if not operand.dtype.is_float or (position and task in BY_MAXIMUM):
            continue
        unknown = np.isnan(np.asarray(results.arrays[position], np.float64))
        if unknown.size and (unknown.any() if task in BY_MAXIMUM else unknown.all()):
            return f"the result holds no numbers: {_share(unknown)} of output {operand.name!r} are NaN (not a number)"
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


def _share(unknown: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> str:
    count = int(np.count_nonzero(unknown))
    return f"all {count} values" if count == unknown.size else f"{count} of {unknown.size} values"
