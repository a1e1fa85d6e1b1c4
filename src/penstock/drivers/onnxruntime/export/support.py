"""What of a model the driver takes: an answer for each operation, without the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final

from penstock.drivers.onnxruntime.export.rules import judge
from penstock.drivers.onnxruntime.export.rules.rule import UNSTEADY
from penstock.engines.site import Refused, Site, make_sites
from penstock.engines.unrolling import flattened
from penstock.errors import PenstockError
from penstock.hal import ACCURACY_RANK, AccuracyClass, Support
from penstock.ir import Model
from penstock.ir.settled import has_control_flow
from penstock.ir.types import static_shape

MAX_BYTES: Final = 1 << 31
"""What an ONNX model may hold: the limit of its wire form."""

ROOM: Final = 1 << 24
"""Kept free for everything besides the constants."""


def examine(model: Model, best: AccuracyClass = "exact") -> Sequence[Support]:
    """One answer an operation. No class is better than *best*: what a provider was measured to meet.

    What an unsteady operation reads in the end is relaxed: float32 rounding there moves whole values later on.
    """
    if (size := constant_bytes(model)) > MAX_BYTES - ROOM:
        reason = f"{size} bytes of constants; an ONNX model holds less than {MAX_BYTES}"
        return [Support(False, reason) for _ in model.operations]
    flat = flattened(model)
    unsteady = _read_by_unsteady(flat.model)
    parts: list[list[tuple[str, Support]]] = [[] for _ in model.operations]
    for site, origin in zip(make_sites(flat.model), flat.origins, strict=True):
        known = "relaxed" if unsteady.intersection(site.output_indexes) else best
        parts[origin].append((site.operation.key, _answer(site, known)))
    return [
        _joined(operation.key, answers)
        for operation, answers in zip(model.operations, parts, strict=True)
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


def constant_bytes(model: Model) -> int:
    """Bytes that the constants take in an ONNX model, where 8-bit ones may become float32: those of the entry subgraph,
    and where that has control flow of all others.
    """
    total = 0
    subgraphs = model.subgraphs if has_control_flow(model) else (model.entry,)
    for operand in chain.from_iterable(graph.operands for graph in subgraphs):
        if operand.is_constant and (shape := static_shape(operand.shape)) is not None:
            total += math.prod(shape) * max(4, operand.dtype.numpy.itemsize)
    return total


def _read_by_unsteady(model: Model) -> set[int]:
    """The operands of the entry subgraph from which an unsteady operation computes."""
    reached: set[int] = set()
    for operation in reversed(model.operations):
        if operation.key in UNSTEADY or reached.intersection(operation.outputs):
            reached.update(operation.inputs)
    return reached


def _answer(site: Site, best: AccuracyClass) -> Support:
    try:
        accuracy = judge(site)
    except Refused as refusal:
        return Support(False, str(refusal))
    except (PenstockError, ValueError, LookupError, ArithmeticError) as error:
        return Support(False, f"not computable as it stands: {error}")
    return Support(True, "", "relaxed" if best == "relaxed" else accuracy)
