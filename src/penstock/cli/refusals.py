"""Where there is no plan: which operations have no device, and what each device says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.ir import Model, infer_shapes
from penstock.partitioning.limits import laxer_class
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import SupportTable, collect_support
from penstock.runtime import manager
from penstock.runtime.planning import trusted


def refused(
    model: Model,
    devices: Sequence[str] | None = None,
    signature: str | None = None,
    policy: Policy | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """For each operation the *devices* that may run it and the others' reasons, as `--json` prints
    it, and what to ask for instead ("" where nothing is known to help).
    """
    entered = model if signature is None else model.signature_model(signature)
    entered = infer_shapes(entered, {})
    held_to = policy or Policy()
    chosen = trusted(manager.choose(devices or None), held_to)
    table = collect_support(entered, chosen, held_to)
    every = range(len(table.model.operations))
    homeless = [index for index in every if not table.takers(index)]
    return [_answer(table, index) for index in every], laxer_class(table, homeless)


def _answer(table: SupportTable, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "type": table.model.operations[index].key,
        "name": table.model.entry.operation_name(index),
        "devices": [table.candidates[k].name for k in table.takers(index)],
        "reasons": {name: str(why) for name, why in table.refusals(index).items()},
    }
