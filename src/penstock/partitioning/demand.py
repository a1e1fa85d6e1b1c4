"""What a run of a model asks for by its shapes: the bytes that are held at a time, and limits for
them.

Shapes that are known at run time only count as nothing: a run for which they are known is looked at
by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from penstock import knobs
from penstock.errors import LimitExceeded, Place
from penstock.interrupts import polled
from penstock.ir import Model, Operand, Subgraph
from penstock.ir.transforms import entered_from
from penstock.ir.types import static_shape
from penstock.ir.validate import subgraph_references
from penstock.memory.limits import MIB, available_memory
from penstock.partitioning.work import LEAST_LIMIT


class Peak(Struct, frozen=True):
    """The most *nbytes* that values of a model take at a time, constants left out, and the
    operation of its entry subgraph that runs then; None where its inputs and outputs alone take
    most.
    """

    nbytes: int = 0
    operation: int | None = None


def run_limit() -> int:
    """Bytes that the values of one run may take at a time: the knob `max_run_mib`, else half of
    `available_memory`, and `LEAST_LIMIT` at least.
    """
    wanted = knobs.max_run_mib()
    return wanted * MIB if wanted else max(LEAST_LIMIT, available_memory() // 2)


def check_memory(model: Model) -> None:
    """Raises `LimitExceeded`, with the operation, where a run of *model* would hold more bytes than
    `run_limit` at a time.
    """
    limit, peak = run_limit(), peak_of(model)
    if peak.nbytes <= limit:
        return
    where = None
    if peak.operation is not None:
        operation = model.operations[peak.operation]
        name = model.entry.operation_name(peak.operation)
        where = Place(model.main, peak.operation, type=operation.type, name=name)
    raise LimitExceeded(
        f"a run would hold {peak.nbytes} bytes of values at a time; the limit is {limit} (knob max_run_mib)",
        where=where,
    )


def peak_of(model: Model) -> Peak:
    """What a run holds where each value is dropped after its last reader, and inputs and outputs
    are held throughout.
    """
    inner: dict[int, int] = {}
    for index in entered_from(model, model.main):
        inner[index] = _peak(model.subgraphs[index], inner).nbytes
    return _peak(model.entry, inner)


def _peak(subgraph: Subgraph, inner: dict[int, int]) -> Peak:
    kept = {*subgraph.inputs, *subgraph.outputs}
    last: dict[int, int] = {}
    for at, operation in enumerate(polled(subgraph.operations)):
        last.update(dict.fromkeys((*operation.inputs, *operation.outputs), at))
    held = peak = _total(subgraph, kept)
    where = None
    for at, operation in enumerate(polled(subgraph.operations)):
        held += _total(subgraph, set(operation.outputs) - kept)
        within = max((inner.get(t, 0) for t in subgraph_references(operation)), default=0)
        if held + within > peak:
            peak, where = held + within, at
        ports = {*operation.inputs, *operation.outputs} - kept
        held -= _total(subgraph, {i for i in ports if last[i] == at})
    return Peak(peak, where)


def _total(subgraph: Subgraph, operands: Iterable[int]) -> int:
    return sum(nbytes_of(subgraph.operands[index]) for index in operands)


def nbytes_of(operand: Operand) -> int:
    """Bytes of a value of known shape that is no constant; 0 of any other."""
    if operand.is_constant or not operand.has_value:
        return 0
    shape = static_shape(operand.shape)
    return 0 if shape is None else math.prod(shape) * max(8, operand.dtype.bits or 8) // 8
