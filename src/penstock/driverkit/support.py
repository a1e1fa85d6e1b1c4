"""A driver's answers about a model's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.driverkit.checks import F32
from penstock.driverkit.site import QUANTIZED, Refused, Site
from penstock.driverkit.unrolling import Unrolled
from penstock.errors import PenstockError
from penstock.hal import ACCURACY_RANK, AccuracyClass, Support
from penstock.hal.capabilities import class_fault
from penstock.interrupts import polled
from penstock.ir import DType, Model, Operation

UNSTEADY: Final = frozenset({"CUSTOM:MaxPoolingWithArgmax2D"})
"""Position-sensitive operations: they turn the last bit of a float into a position."""

LEFT_OUT: Final = {
    "WHILE": "its rounds are known only when it runs, or too many to be written out; "
    "the runtime ends it with its run"
}
"""The reason for refusing an operation that a `flattened` model still contains."""

NEVER_MEASURED: Final = "how far off was never measured on such hardware"
POSITIONS: Final = "its last bits become positions later on, any distance away"
HYBRID: Final = (
    "off by up to 1e-2 of the largest result: values are not quantised as TFLite does in the run"
)
WIDE: Final = "off by up to 1 % of the results' root mean square"
STEPS: Final = "off by a step at most, and by more where steps add up through a network"
ANOTHER: Final = "of values that are equal, or nearly, it may give another's position"
FEW_STEPS: Final = "off by up to two steps, and by more where they add up through a network"
"""The measured differences of engines' stepwise and relaxed results from the reference
(docs/onnxruntime.md, docs/openvino.md).
"""

STUMBLES: Final = (PenstockError, ValueError, LookupError, ArithmeticError)
"""Exceptions that a check raises for an operation whose operands contradict each other."""


def answered(
    sites: Sequence[Site],
    judge: Callable[[Site], AccuracyClass],
    best: AccuracyClass,
    steady: Callable[[Site], bool] = lambda _: False,
) -> list[Support]:
    """One answer for each of *sites*, which are all operations of a model.

    The class of an operation is what *judge* returns, limited to *best*. If *judge* raises
    `Refused`, its text is the reason of the refusal. Operations that a position-sensitive operation
    depends on are relaxed: there, a float32 rounding error changes which values move where.
    *steady* says which of them the driver computes to the last bit.
    """
    unsteady = read_by_unsteady([site.operation for site in sites])

    def answer(site: Site) -> Support:
        try:
            accuracy = judge(site)
        except Refused as refusal:
            return Support(False, str(refusal))
        except STUMBLES as error:
            return Support(False, f"not computable as it stands: {error}")
        moves = unsteady.intersection(site.output_indexes) and not steady(site)
        known = POSITIONS if moves else ""
        known = NEVER_MEASURED if best == "relaxed" else known
        if known and not class_fault(Support(True, "", accuracy)):
            return Support(True, "", "relaxed", known)
        distance = STEPS if accuracy == "stepwise" else ""
        return Support(True, "", accuracy, distance_of(site) if accuracy == "relaxed" else distance)

    return [answer(site) for site in polled(sites)]


def read_by_unsteady(operations: Sequence[Operation]) -> set[int]:
    """The operands that an operation of `UNSTEADY` depends on, directly or indirectly."""
    reached: set[int] = set()
    for operation in reversed(operations):
        if operation.key in UNSTEADY or reached.intersection(operation.outputs):
            reached.update(operation.inputs)
    return reached


def distance_of(site: Site) -> str:
    """The measured error of a relaxed operation, by its element types; "" if its results are within
    float32 rounding.
    """
    given = {o.dtype for o in site.inputs if o is not None}
    types = given | {o.dtype for o in site.outputs}
    if DType.INT16 in types:
        return WIDE
    if types.isdisjoint(QUANTIZED):
        return ""
    if site.output().dtype in {DType.INT32, DType.INT64}:
        return ANOTHER
    return HYBRID if F32 in given and site.output().dtype is F32 else FEW_STEPS


def joined(model: Model, flat: Unrolled, answers: Iterable[Support]) -> list[Support]:
    """The answers for *model*, from *answers* for its `flattened` form *flat*."""
    parts: list[list[tuple[str, Support]]] = [[] for _ in model.operations]
    rows = zip(flat.origins, flat.model.operations, answers, strict=True)
    for origin, operation, answer in polled(rows):
        parts[origin].append((operation.key, answer))
    pairs = polled(zip(model.operations, parts, strict=True))
    return [_joined(operation.key, given) for operation, given in pairs]


def _joined(kind: str, answers: Sequence[tuple[str, Support]]) -> Support:
    """The answer for an operation of type *kind* from the answers for its parts: the first refusal
    or accuracy that is no class, or else the lowest class.
    """
    for part, answer in answers:
        if not answer.supported:
            reason = answer.reason if part == kind else f"its {part}: {answer.reason}"
            return Support(False, reason)
        if class_fault(answer):
            return answer
    if not answers:
        return Support(False, f"a {kind} whose results nothing reads")
    return min((a for _, a in answers), key=lambda a: ACCURACY_RANK[a.accuracy])
