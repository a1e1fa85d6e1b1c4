"""Where there is no plan: which operations have no device, and what each device says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.ir import Model, infer_shapes
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import SupportTable, collect_support
from penstock.runtime import manager
from penstock.runtime.planning import trusted


def answers(
    model: Model,
    devices: Sequence[str] | None = None,
    signature: str | None = None,
    policy: Policy | None = None,
) -> list[dict[str, Any]]:
    """For each operation the *devices* that may run it and the others' reasons, as `--json` prints it."""
    entered = model if signature is None else model.signature_model(signature)
    entered = infer_shapes(entered, {})
    held_to = policy or Policy()
    chosen = trusted(manager.choose(devices or None), held_to)
    table = collect_support(entered, chosen, held_to)
    return [_answer(table, index) for index in range(len(entered.operations))]


def _answer(table: SupportTable, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "type": table.model.operations[index].key,
        "name": table.model.entry.operation_name(index),
        "devices": [table.candidates[k].name for k in table.takers(index)],
        "reasons": table.refusals(index),
    }
