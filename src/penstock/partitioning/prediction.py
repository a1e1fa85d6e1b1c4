"""Predicts the cost of a plan: `Judge` compares placements.

The cost of a plan is the sum of its steps. The cost of a step is that of its operations on its
device, one dispatch, and the runtime's work for a step. It comes from measurements of the device
(`penstock.partitioning.costs`), if there are any, and otherwise from what the device declares. A
device that does not share host memory adds the transfer of every value that enters or leaves it.
Devices that share host memory transfer nothing between them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.distribution import FALLBACK_DEVICE
from penstock.hal import Capabilities, PerformanceInfo
from penstock.hal.device import is_isolated
from penstock.interrupts import polled
from penstock.ir import Model, Operation
from penstock.ir.types import is_static
from penstock.ir.validate import subgraph_references
from penstock.partitioning import work
from penstock.partitioning.costs import LOOP, NO_COSTS, Costs, EngineCosts
from penstock.partitioning.rounds import expected_runs
from penstock.partitioning.support import Candidate, Partition, SupportTable

STEP_NS: Final = 3_000.0
"""Time of the runtime for one step of a run."""

HOST_BYTES_PER_SECOND: Final = 8e9
"""Copy rate of the runtime in host memory."""

UNDECLARED: Final = 1e15
"""Price of an operation without a declared cost: higher than any declared one."""


LONGEST: Final = UNDECLARED / 1e3
"""Maximum cost of subgraphs, nested loops included: lower than that of anything undeclared."""


class Prices(Struct, frozen=True):
    """Costs in nanoseconds, or in units of the reference's energy in one nanosecond.

    *operations* has a row for each operation of the entry subgraph, with a price for each
    candidate. *steps* has the price of opening a step on each candidate, *moving* the price of a
    byte that enters or leaves it, *nbytes* the size of each operand. *worst* has each operation's
    upper bound in nanoseconds on any engine, including subgraphs (`times_of`).

    *error* is the factor within which predictions are expected to lie; 1 if all costs are declared.
    *declared* are the prices that the devices declare, if these prices are others.
    """

    operations: tuple[tuple[float, ...], ...]
    steps: tuple[float, ...]
    moving: tuple[float, ...]
    nbytes: tuple[float, ...]
    worst: tuple[float, ...] = ()
    error: float = 1.0
    declared: Prices | None = None


def price(table: SupportTable, costs: Costs = NO_COSTS, *, energy: bool = False) -> Prices:
    """The prices of every operation, step and byte of *table*, in time or in *energy*.

    Time: that of *costs* for a device that it has, and for operations whose cost it knows. Else the
    reference's measured or estimated time for the operation, multiplied by the device's declared
    execution time for the element type of its first input. Energy: the same estimate multiplied by
    the declared power usage, which is the device's energy for the work relative to the reference
    (NNAPI section 4.3). Dispatch and transfer count as host time at the reference's power. The
    operations inside an IF or WHILE have the shapes of the values passed to it.
    """
    model = table.model
    if any(operation.type in {"IF", "WHILE"} for operation in model.operations):
        from penstock.ir.transforms import specialized

        model = specialized(model)
    order = work.callees_first(model)
    both = {
        index: [
            work.times_of(model.subgraphs[index], o)
            for o in polled(model.subgraphs[index].operations)
        ]
        for index in polled(order)
    }
    if all(is_static(operand.shape) for operand in model.inputs):
        for index, times in both.items():
            endless = work.unbounded_operations(model.subgraphs[index])
            both[index] = [
                (ns, LONGEST if no_bound else worst)
                for (ns, worst), no_bound in zip(times, endless, strict=True)
            ]
    known = {} if energy else costs
    base = {index: [ns for ns, _ in times] for index, times in both.items()}
    if (reference := known.get(FALLBACK_DEVICE)) is not None:
        for index, estimated in base.items():
            own = model.subgraphs[index]
            taken = (reference.nanoseconds(own, o) for o in own.operations)
            base[index] = [ns or old for ns, old in zip(taken, estimated, strict=True)]
    measured = [known.get(c.name) for c in table.candidates]
    pairs = list(zip(table.candidates, measured, strict=True))
    columns = [_column(model, order, base, c.capabilities, energy, own) for c, own in pairs]
    prices = Prices(
        tuple(zip(*columns, strict=True)) if columns else ((),) * len(model.operations),
        tuple(_step_ns(c, own) for c, own in pairs),
        tuple(byte_ns(c.capabilities) + (own.edge_ns if own else 0.0) for c, own in pairs),
        tuple(0.0 if o.is_constant else work.nbytes_of(o) for o in model.operands),
        _worst(model, order, {index: [w for _, w in times] for index, times in both.items()}),
    )
    if not any(measured):
        return prices
    error = max(own.error for own in measured if own is not None)
    return replace(prices, error=error, declared=price(table))


def _step_ns(candidate: Candidate, measured: EngineCosts | None) -> float:
    declared = STEP_NS + min(UNDECLARED, max(0, candidate.capabilities.dispatch_ns))
    if measured is None:
        return declared
    # Costs of another process of the device do not have what its calls take.
    own = measured.step_ns * measured.scale
    return max(declared, own) if is_isolated(candidate.device) else own


def _worst(model: Model, order: Iterable[int], worst: dict[int, list[float]]) -> tuple[float, ...]:
    """The worst time of each entry operation, counting each subgraph that it enters once."""
    sums: dict[int, float] = {}
    for index in order:
        times = worst[index]
        for at, operation in enumerate(polled(model.subgraphs[index].operations)):
            for target in subgraph_references(operation):
                times[at] = min(LONGEST, times[at] + sums[target])
        sums[index] = math.fsum(times)
    return tuple(worst[model.main])


def byte_ns(capabilities: Capabilities) -> float:
    """Nanoseconds for a byte that enters or leaves the device: transfer and the runtime's copy."""
    total = 0.0
    if not capabilities.shares_host_memory:
        rate = capabilities.transfer_bytes_per_second
        total += 1e9 / rate if rate > 0 else UNDECLARED
    if not (capabilities.shares_host_memory and capabilities.accepts_host_memory):
        total += 1e9 / HOST_BYTES_PER_SECOND
    return total


class Judge:
    """Prices partitions of a live model; operations of *apart* are steps on the reference."""

    def __init__(self, model: Model, prices: Prices, apart: Collection[int] = ()) -> None:
        self._model, self.prices, self.apart = model, prices, frozenset(apart)
        self._entry_outputs = frozenset(model.entry.outputs)
        self.followers: Sequence[Sequence[int]] | None = None
        """For each operation, those that wait for it; None until computed."""
        self._readers: dict[int, set[int]] = {}
        for index, operation in enumerate(polled(model.operations)):
            for operand in operation.inputs:
                self._readers.setdefault(operand, set()).add(index)

    def plan(self, partitions: Sequence[Partition]) -> float:
        """The cost of the plan with these partitions."""
        return math.fsum(map(self.step, self.steps(partitions)))

    def steps(self, partitions: Sequence[Partition]) -> list[Partition]:
        """The steps of these partitions; operations taken apart are separate steps."""
        if self.apart:
            return [piece for partition in partitions for piece in self._pieces(partition)]
        return list(partitions)

    def is_apart(self, operation: int, device: int) -> bool:
        """Whether *operation* is a separate step on *device*."""
        return operation in self.apart and device == len(self.prices.steps) - 1

    def _pieces(self, partition: Partition) -> Iterator[Partition]:
        run: list[int] = []
        for index in partition.operations:
            if not self.is_apart(index, partition.device):
                run.append(index)
                continue
            if run:
                yield Partition(partition.device, tuple(run))
            yield Partition(partition.device, (index,))
            run = []
        if run:
            yield Partition(partition.device, tuple(run))

    def step(self, partition: Partition) -> float:
        """The cost of one partition as a step."""
        prices, device = self.prices, partition.device
        total = prices.steps[device]
        for index in polled(partition.operations):
            total += prices.operations[index][device]
        if rate := prices.moving[device]:
            total += rate * self.moved(partition.operations)
        return total

    def moved(self, operations: Sequence[int]) -> float:
        """Bytes that enter and leave a step of *operations*; each value counts once."""
        inside = frozenset(operations)
        chosen = [self._model.operations[index] for index in operations]
        written = {operand for operation in chosen for operand in operation.outputs}
        read = {operand for operation in chosen for operand in operation.inputs} - written
        leaving = {
            operand
            for operand in written
            if operand in self._entry_outputs
            or not inside.issuperset(self._readers.get(operand, ()))
        }
        return math.fsum(self.prices.nbytes[operand] for operand in read | leaving)


def whole(cost: float) -> int | None:
    """*cost* as a plan shows it: rounded, or None if a device declared no cost."""
    return None if cost >= UNDECLARED else round(cost)


def _column(
    model: Model,
    order: Iterable[int],
    base: dict[int, list[float]],
    capabilities: Capabilities,
    energy: bool,
    measured: EngineCosts | None = None,
) -> list[float]:
    sums: dict[int, float] = {}
    prices: list[float] = []
    for index in order:
        graph = model.subgraphs[index]
        prices = []
        for operation, ns in polled(zip(graph.operations, base[index], strict=True)):
            known = None if measured is None else measured.nanoseconds(graph, operation)
            if measured is not None and operation.type == "WHILE":
                runs = expected_runs(model, index, operation)
                known = measured.of(LOOP, (1.0, runs, 0.0, 0.0))
            if known is None:
                factor = declared_cost(model, index, operation, capabilities, energy=energy)
                known = ns * factor
            prices.append(min(UNDECLARED, known))
        for at, operation in enumerate(polled(graph.operations)):
            for target in subgraph_references(operation):
                inner = sums[target]
                share = expected_runs(model, index, operation)
                if max(inner, prices[at]) < UNDECLARED:
                    prices[at] = min(prices[at] + inner * share, max(LONGEST, prices[at]))
                else:
                    prices[at] += inner * float(share > 0)
        total = math.fsum(prices)
        declared = all(one < UNDECLARED for one in prices)
        sums[index] = min(total, max([LONGEST, *prices])) if declared else total
    return prices


def declared_cost(
    model: Model, subgraph: int, operation: Operation, capabilities: Capabilities, *, energy: bool
) -> float:
    """The declared cost of *operation* relative to the reference; infinite if none is declared."""
    performance: PerformanceInfo | None
    if operation.type == "IF":
        performance = capabilities.if_performance
    elif operation.type == "WHILE":
        performance = capabilities.while_performance
    elif ports := operation.inputs or operation.outputs:
        dtype = model.subgraphs[subgraph].operands[ports[0]].dtype
        performance = capabilities.performance_of(dtype.value)
    else:
        performance = capabilities.default_performance
    if performance is None:
        return math.inf
    value = performance.power_usage if energy else performance.execution_time
    return value if value > 0 else math.inf  # also for NaN
