"""NNAPI's local greedy rule (NNAPI sections 4.3 and 4.4): the best device for each operation by itself,
then partitions by draining one queue of ready operations after another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.hal import Capabilities, PerformanceInfo, Preference
from penstock.ir import Model, Operation
from penstock.ir.validate import subgraph_references
from penstock.partitioning.support import SupportTable

Costs: TypeAlias = "tuple[tuple[float, ...], ...]"
"""Cost of each operation on each candidate, relative to the reference; `inf` where none is declared."""

IF_SHARE: Final = 0.5
"""Each branch of an IF counts as taken half of the time."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Operations, in an order in which they can run, for the candidate at position *device*."""

    device: int
    operations: tuple[int, ...]


def measure(table: SupportTable, preference: Preference) -> Costs:
    """The performance value of every operation on every candidate: the power usage that its
    capabilities declare for "low_power", else the execution time, by the element type of the first input.
    """
    columns = [_Pricing(table.model, c.capabilities, preference).entry() for c in table.candidates]
    return tuple(zip(*columns, strict=True))


def best_device(table: SupportTable, costs: Costs, operation: int) -> int | None:
    """The candidate with the smallest value; of equals the first, save that the reference device beats
    them all. None where no candidate may run the operation.
    """
    best: int | None = None
    for position in table.takers(operation):
        cost = costs[operation][position]
        tie = table.candidates[position].is_reference
        if (
            best is None
            or cost < costs[operation][best]
            or (tie and cost == costs[operation][best])
        ):
            best = position
    return best


def explain(
    table: SupportTable, costs: Costs, operation: int, chosen: int, preference: Preference
) -> dict[str, str]:
    """Device name -> why *operation* is not there, for every candidate but the chosen one."""
    quantity = "power usage" if preference == "low_power" else "execution time"
    winner = table.candidates[chosen].name
    reasons: dict[str, str] = {}
    for position, candidate in enumerate(table.candidates):
        if position == chosen:
            continue
        answer, cost, best = (
            candidate.answers[operation],
            costs[operation][position],
            costs[operation][chosen],
        )
        if not answer.supported:
            reasons[candidate.name] = answer.reason
        elif cost == best:
            reasons[candidate.name] = f"{quantity} no better than on {winner}, which goes first"
        elif math.isinf(cost):
            reasons[candidate.name] = f"declares no {quantity} for this element type; {winner} does"
        else:
            reasons[candidate.name] = f"{quantity} {cost:g}, on {winner} {best:g}"
    return reasons


def partitions_of(model: Model, assignment: Sequence[int], candidates: int) -> list[Partition]:
    """The partitions of an assignment (operation -> candidate), in an order in which they can run.

    One first-in-first-out queue of ready operations for each candidate. The last candidate whose queue
    is not empty opens a partition and drains its queue, what becomes ready meanwhile included: earlier
    candidates get more chances to gather inputs.
    """
    readers: dict[int, list[int]] = {}
    waiting = [0] * len(model.operations)
    written = {operand for operation in model.operations for operand in operation.outputs}
    for index, operation in enumerate(model.operations):
        for operand in written.intersection(operation.inputs):
            readers.setdefault(operand, []).append(index)
            waiting[index] += 1
    queues: list[deque[int]] = [deque() for _ in range(candidates)]
    for index, count in enumerate(waiting):
        if count == 0:
            queues[assignment[index]].append(index)
    partitions: list[Partition] = []
    while any(queues):
        device = max(k for k, queue in enumerate(queues) if queue)
        drained: list[int] = []
        while queues[device]:
            index = queues[device].popleft()
            drained.append(index)
            for operand in model.operations[index].outputs:
                for reader in readers.get(operand, ()):
                    waiting[reader] -= 1
                    if waiting[reader] == 0:
                        queues[assignment[reader]].append(reader)
        partitions.append(Partition(device, tuple(drained)))
    return partitions


class _Pricing:
    """Costs of one model on one device; the sum over each referenced subgraph is worked out once."""

    def __init__(self, model: Model, capabilities: Capabilities, preference: Preference) -> None:
        self._model, self._capabilities = model, capabilities
        self._power = preference == "low_power"
        self._sums: dict[int, float] = {}

    def entry(self) -> list[float]:
        for index in _callees_first(self._model):
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
        return value if value > 0 else math.inf


def _callees_first(model: Model) -> list[int]:
    """The subgraphs reachable from the entry, each after everything it refers to."""
    order: list[int] = []
    pending = [(model.main, False)]
    seen = set()
    while pending:
        index, finished = pending.pop()
        if finished:
            order.append(index)
        elif index not in seen:
            seen.add(index)
            pending.append((index, True))
            operations = model.subgraphs[index].operations
            pending += [(target, False) for o in operations for target in subgraph_references(o)]
    return order
