"""The values between steps, and one arena for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.hal import Capabilities
from penstock.ir import Model
from penstock.memory.layout import (
    MIN_ALIGNMENT,
    ArenaLayout,
    ArenaRequest,
    array_nbytes,
    plan_arena,
)
from penstock.partitioning.plan import ExecutionStep


def plan_temporaries(
    model: Model, steps: Sequence[ExecutionStep], capabilities: Mapping[str, Capabilities]
) -> ArenaLayout:
    """A place for each operand that a step writes and a later one reads, save entry outputs.

    It lives from the step that writes it to the last that reads it, is aligned as the most
    demanding of these steps' devices prefers (*capabilities*, by name), and padded likewise (NNAPI
    section 6.8).
    """
    users: dict[int, list[ExecutionStep]] = {}
    outputs = frozenset(model.entry.outputs)
    for step in steps:
        users |= {operand: [step] for operand in step.outputs if operand not in outputs}
        for operand in step.inputs:
            if operand in users:
                users[operand].append(step)
    requests, dynamic = [], []
    for operand, involved in users.items():
        nbytes = array_nbytes(model.operands[operand])
        if nbytes is None:
            dynamic.append(operand)
            continue
        wishes = [capabilities[step.device] for step in involved]
        alignment = max(MIN_ALIGNMENT, *(wish.alignment for wish in wishes))
        padding = max(wish.padding for wish in wishes)
        first, last = involved[0].index, involved[-1].index
        requests.append(ArenaRequest(operand, nbytes, first, last, alignment, padding))
    return plan_arena(requests, dynamic)
