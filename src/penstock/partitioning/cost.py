"""What an operation costs on a device, by the device's own capabilities (NNAPI section 4.3)."""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from penstock.hal import Capabilities, PerformanceInfo, Preference
from penstock.ir import Model, Operation
from penstock.ir.validate import subgraph_references
from penstock.partitioning.support import SupportTable
from penstock.partitioning.work import callees_first

Costs: TypeAlias = "tuple[tuple[float, ...], ...]"
"""Cost of each operation on each candidate, relative to the reference; `inf` where none is
declared.
"""

IF_SHARE: Final = 0.5
"""Each branch of an IF counts as taken half of the time."""


def measure(table: SupportTable, preference: Preference) -> Costs:
    """The performance value of every operation on every candidate: the power usage that its
    capabilities declare for "low_power", else the execution time, by the element type of the first
    input.
    """
    columns = [_Pricing(table.model, c.capabilities, preference).entry() for c in table.candidates]
    return tuple(zip(*columns, strict=True))


class _Pricing:
    """Costs of one model on one device; the sum over each referenced subgraph is worked out once."""

    def __init__(self, model: Model, capabilities: Capabilities, preference: Preference) -> None:
        self._model, self._capabilities = model, capabilities
        self._power = preference == "low_power"
        self._sums: dict[int, float] = {}

    def entry(self) -> list[float]:
        for index in callees_first(self._model):
            if index != self._model.main:
                self._sums[index] = math.fsum(self._operations(index))
        return self._operations(self._model.main)

    def _operations(self, subgraph: int) -> list[float]:
        return [
            self._operation(subgraph, operation)
            for operation in self._model.subgraphs[subgraph].operations
        ]

    def _operation(self, subgraph: int, operation: Operation) -> float:
        inner = math.fsum(self._sums[target] for target in subgraph_references(operation))
        if operation.type == "IF":
            return self._value(self._capabilities.if_performance) + IF_SHARE * inner
        if operation.type == "WHILE":
            return self._value(self._capabilities.while_performance) + inner
        ports = operation.inputs or operation.outputs
        if not ports:
            return self._value(self._capabilities.default_performance)
        dtype = self._model.subgraphs[subgraph].operands[ports[0]].dtype
        return self._value(self._capabilities.performance_of(dtype.value))

    def _value(self, performance: PerformanceInfo | None) -> float:
        if performance is None:
            return math.inf
        value = performance.power_usage if self._power else performance.execution_time
        return value if value > 0 else math.inf  # also where it is not a number
