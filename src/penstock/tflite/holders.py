"""Tensors that are no operand of their own in the model: what READ_VARIABLE and DENSIFY write.

Lowering makes their values those of other operands. To show them, an interpreter asks who holds the
value.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from penstock.loaders.tflite.catalog import SubgraphEntry

ENTERING: Final = frozenset({"IF", "WHILE", "CALL_ONCE"})
"""Operators whose subgraphs may assign any variable."""


@dataclass(slots=True)
class Holders:
    """By tensor: *tensors* another tensor of the same value, *variables* the variable whose value
    before the run it is, *dense* the sparse constant that it is the dense form of.
    """

    tensors: dict[int, int] = field(default_factory=dict)
    variables: dict[int, str] = field(default_factory=dict)
    dense: dict[int, int] = field(default_factory=dict)


def holders(catalog: SubgraphEntry, computed: Collection[int]) -> Holders:
    """Who holds what in one subgraph. *computed* are the operators that a run really computes."""
    found = Holders()
    handles: dict[int, str] = {}
    assigned: dict[str, int] = {}
    unsure = False
    for index, operator in enumerate(catalog.operators):
        inputs, outputs = operator.inputs, operator.outputs
        name = handles.get(inputs[0]) if inputs else None
        if operator.name == "VAR_HANDLE" and outputs:
            handles[outputs[0]] = operator.resource
        elif operator.name == "DENSIFY" and inputs and outputs:
            found.dense[outputs[0]] = inputs[0]
        elif operator.name in ENTERING and index in computed:
            unsure = True
            assigned.clear()
        elif name is None:
            continue
        elif operator.name == "ASSIGN_VARIABLE" and len(inputs) > 1:
            assigned[name] = inputs[1]
        elif operator.name == "READ_VARIABLE" and outputs:
            if name in assigned:
                found.tensors[outputs[0]] = assigned[name]
            elif not unsure:
                found.variables[outputs[0]] = name
    return found
