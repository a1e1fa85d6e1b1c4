"""Answers of a driver about a model's operations, each judged by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.engines.site import Refused, Site
from penstock.errors import PenstockError
from penstock.hal import ACCURACY_RANK, AccuracyClass, Support
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.engines.unrolling import Unrolled

UNSTEADY: Final = frozenset({"CUSTOM:MaxPoolingWithArgmax2D"})
"""Operations that turn the last bit of a float into a position."""

LEFT_OUT: Final = {
    "WHILE": "its rounds are known only when it runs, or too many to be written out; the runtime stops it in time",
}
"""Why operations are not taken as they stand by engines that take what they are `flattened` to."""

STUMBLES: Final = (PenstockError, ValueError, LookupError, ArithmeticError)
"""What a check raises for an operation that contradicts itself."""


def answered(
    sites: Sequence[Site], judge: Callable[[Site], AccuracyClass], best: AccuracyClass
) -> list[Support]:
    """One answer an operation of *sites*, which are a model's: the class that *judge* tells, or why it raises `Refused`.
    No class is better than relaxed where *best* is.

    What an unsteady operation reads in the end is relaxed: float32 rounding there moves whole values later on.
    """
    unsteady = _read_by_unsteady(sites)
    return [
        _answer(site, judge, "relaxed" if unsteady.intersection(site.output_indexes) else best)
        for site in sites
    ]


def _read_by_unsteady(sites: Sequence[Site]) -> set[int]:
    """The operands from which an unsteady operation computes."""
    reached: set[int] = set()
    for site in reversed(sites):
        if site.operation.key in UNSTEADY or reached.intersection(site.output_indexes):
            reached.update(site.input_indexes)
    return reached


def _answer(site: Site, judge: Callable[[Site], AccuracyClass], best: AccuracyClass) -> Support:
    try:
        accuracy = judge(site)
    except Refused as refusal:
        return Support(False, str(refusal))
    except STUMBLES as error:
        return Support(False, f"not computable as it stands: {error}")
    return Support(True, "", "relaxed" if best == "relaxed" else accuracy)


def joined(model: Model, flat: Unrolled, answers: Iterable[Support]) -> list[Support]:
    """One answer an operation of *model* by the *answers* for those of *flat*, which it is `flattened` to."""
    parts: list[list[tuple[str, Support]]] = [[] for _ in model.operations]
    for origin, operation, answer in zip(flat.origins, flat.model.operations, answers, strict=True):
        parts[origin].append((operation.key, answer))
    return [
        _joined(operation.key, given)
        for operation, given in zip(model.operations, parts, strict=True)
    ]


def _joined(kind: str, answers: Sequence[tuple[str, Support]]) -> Support:
    """The answer for an operation of type *kind* by those for what it is written as."""
    for part, answer in answers:
        if not answer.supported:
            reason = answer.reason if part == kind else f"its {part}: {answer.reason}"
            return Support(False, reason)
    if not answers:
        return Support(False, f"a {kind} whose results nothing reads")
    worst = min((a.accuracy for _, a in answers), key=ACCURACY_RANK.__getitem__)
    return Support(True, "", worst)
