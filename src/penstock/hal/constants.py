"""Constants of a model in shareable memory: which of them a device can reach (NNAPI section 6.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.errors import GeneralFailure
from penstock.hal.capabilities import Support
from penstock.ir import Model, Operand, Subgraph
from penstock.ir.validate import subgraph_references

IMAGE: Final = "hardware_buffer"
"""The memory whose layout only its driver knows: it has no bytes to point into (NNAPI
section 6.3).
"""


def refuse_unmapped(
    model: Model, answers: Sequence[Support], memory_kinds: Container[str]
) -> Sequence[Support]:
    """*answers*, a driver's own for the operations of *model*'s entry subgraph, with a no for each
    operation that reads a constant which the device cannot reach, directly or in a subgraph that
    the operation refers to.

    A device reaches constants in the caller's own memory, and in shareable memory whose kind is
    among *memory_kinds* and is no image. A driver returns this from `Device.supported_operations`,
    so that `prepare_model` never refuses what had a yes; the runtime applies it to every driver's
    answers. A no stays as it is. *answers* itself is returned where every constant is reached. It
    must have one answer an operation.
    """
    reasons = _reasons(model, memory_kinds)
    if not reasons:
        return answers
    return [
        replace(answer, supported=False, reason=reasons[index], distance="")
        if answer.supported and index in reasons
        else answer
        for index, answer in enumerate(answers)
    ]


def check_constants(model: Model, memory_kinds: Container[str]) -> None:
    """Raises `GeneralFailure` where a device that maps *memory_kinds* cannot reach a constant that
    an operation of *model*'s entry subgraph reads, as in `refuse_unmapped`, or that is an output.
    It names the first such operation.
    """
    for index, reason in _reasons(model, memory_kinds).items():
        raise GeneralFailure(f"operation {index} ({model.operations[index].key}): {reason}")
    foreign = _foreign_pools(model, memory_kinds)
    for index in model.entry.outputs if foreign else ():
        if (kind := _kind(model.operands[index], foreign)) is not None:
            raise GeneralFailure(_reason(model.operands[index], index, kind))


def _reasons(model: Model, memory_kinds: Container[str]) -> dict[int, str]:
    """Why operations of the entry subgraph are out of reach, by their indexes, in order."""
    foreign = _foreign_pools(model, memory_kinds)
    if not foreign:
        return {}
    below = _out_of_reach(model, foreign)
    found: dict[int, str] = {}
    for index, operation in enumerate(model.operations):
        reason = _read_by(model.entry, operation.inputs, foreign)
        for target in subgraph_references(operation):
            reason = reason or below.get(target)
        if reason is not None:
            found[index] = reason
    return found


def _foreign_pools(model: Model, memory_kinds: Container[str]) -> dict[int, str]:
    return {
        number: pool.kind
        for number, pool in enumerate(model.pools)
        if pool.kind and (pool.kind not in memory_kinds or pool.kind == IMAGE)
    }


def _out_of_reach(model: Model, foreign: dict[int, str]) -> dict[int, str]:
    """The subgraphs that use a constant in a *foreign* pool, in themselves or in one that they
    refer to, with the reason. Each is looked at once, however often others refer to it.
    """
    callers: dict[int, list[int]] = {}
    found: dict[int, str] = {}
    for number, subgraph in enumerate(model.subgraphs):
        read = [i for operation in subgraph.operations for i in operation.inputs]
        if (reason := _read_by(subgraph, (*read, *subgraph.outputs), foreign)) is not None:
            found[number] = reason
        for operation in subgraph.operations:
            for target in subgraph_references(operation):
                callers.setdefault(target, []).append(number)
    pending = deque(found)
    while pending:
        target = pending.popleft()
        for caller in callers.get(target, ()):
            if caller not in found:
                found[caller] = found[target]
                pending.append(caller)
    return found


def _read_by(subgraph: Subgraph, operands: Sequence[int], foreign: dict[int, str]) -> str | None:
    for index in operands:
        operand = subgraph.operands[index]
        if (kind := _kind(operand, foreign)) is not None:
            return _reason(operand, index, kind)
    return None


def _kind(operand: Operand, foreign: dict[int, str]) -> str | None:
    return None if operand.location is None else foreign.get(operand.location.pool)


def _reason(operand: Operand, index: int, kind: str) -> str:
    name = repr(operand.name) if operand.name else f"operand {index}"
    return f"constant {name} lies in {kind} memory, which this device does not map"
