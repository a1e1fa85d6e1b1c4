"""`place`: the partition stage as one function."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import InputError, PlacementError, Refusal, RefusalCode, counted
from penstock.hal import PREFERENCES, Device, Preference
from penstock.interrupts import polled
from penstock.ir import Model, Subgraph
from penstock.memory.layout import ArenaLayout
from penstock.partitioning import support
from penstock.partitioning.costs import NO_COSTS, Costs, basis_of
from penstock.partitioning.fallback import permit_fallback
from penstock.partitioning.placements import Alternative, Placement, Worst
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.partitioning.policy import Policy
from penstock.partitioning.prediction import Judge, price, whole
from penstock.partitioning.split import Cutter

if TYPE_CHECKING:
    from penstock.partitioning.arrangement import Proposal
    from penstock.partitioning.control import Apart, Room

DEFAULT_POLICY: Final = Policy()

NOT_READ: Final = Refusal(RefusalCode.UNUSED, "it is not run: nothing reads the results")


def place(
    model: Model,
    devices: Sequence[Device],
    policy: Policy = DEFAULT_POLICY,
    preference: Preference = "fast_single_answer",
    assignment: Sequence[str] | None = None,
    costs: Costs = NO_COSTS,
) -> ExecutionPlan:
    """Decides which of *devices* runs each operation of *model*'s entry subgraph; returns the plan.

    With `Policy(placement="cost")`, the plan has the least predicted time of the plans examined, or
    for "low_power" the least energy. On a chain of operations it is optimal.

    *costs* are measured costs of devices by name; other devices cost what they declare. With them,
    a plan over several devices must be predicted to gain more than the error of the predictions,
    and of devices whose difference is smaller, the one that declares less is used. Without them, a
    plan is never predicted to cost more than any single device with the others as substitutes.

    With "nnapi", each operation goes to the device with the smallest declared execution time (or
    power usage) for the element type of its first input (NNAPI section 4.3). Of equal devices the
    first in order is chosen, but "reference" before all.

    An IF or WHILE on "reference" is taken apart if that is better and puts something on another
    device. The runtime then carries it out, and its subgraphs get plans (`ExecutionStep.control`).
    Composites are placed as a whole. Shapes are used as the model has them: infer them first.

    *assignment* gives the device of each operation instead of a rule, if devices and policy allow
    it.

    An operation whose results are never read is neither priced nor run, and no limit counts it. It
    may even be one that no device supports. The plan lists it under a device that would support it.

    Pure: equal arguments give equal plans. Only the devices' support is queried.

    Raises `PlacementError`, with the operation's place and each device's reason, for an operation
    that no device may run, and if the limits of *policy* cannot be met. Raises `InputError` for an
    unknown preference, an object that is no device, two devices of one name, and policy keys that
    match nothing in this model.
    """
    answers = support.collect_support(model, devices, policy)
    ground = _ground(answers, policy, preference, costs)
    if assignment is not None and len(assignment) == len(model.operations) and ground.live:
        from penstock.partitioning.arrangement import arrange_as

        wanted = [assignment[index] for index in ground.live]
        given = arrange_as(ground.table, ground.judge, wanted, policy)
        if given is not None:
            return ground.plan(given)
    return _place(ground)


def candidates(
    model: Model,
    devices: Sequence[Device],
    policy: Policy = DEFAULT_POLICY,
    preference: Preference = "fast_single_answer",
    costs: Costs = NO_COSTS,
) -> list[tuple[str, ExecutionPlan]]:
    """Plans worth measuring, each with a name and no two alike. All satisfy *policy*.

    First, every device alone, with the others as substitutes for what it does not support. Then the
    plan of `place`. Then the cheapest plans under other assumptions about the cost of a step and of
    each device. Raises as `place` does.
    """
    from penstock.partitioning.arrangement import arrangements

    answers = support.collect_support(model, devices, policy)
    ground = _ground(answers, policy, preference, costs)
    if not ground.live:
        return []
    return [
        (name, ground.plan(arrangement))
        for name, arrangement in arrangements(ground.table, ground.judge, policy)
    ]


class _Ground(Struct, frozen=True):
    """The answers for all operations (*asked*) and live ones (*table*), prices, control flow."""

    asked: support.SupportTable
    live: tuple[int, ...]
    table: support.SupportTable
    policy: Policy
    preference: Preference
    time: Judge
    judge: Judge
    apart: dict[int, Apart]
    basis: str = ""

    @property
    def energy(self) -> bool:
        return self.preference == "low_power"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(candidate.name for candidate in self.table.candidates)

    def plan(
        self, arrangement: support.Arrangement, reasons: Sequence[dict[str, Refusal]] | None = None
    ) -> ExecutionPlan:
        """The plan of *arrangement*; *reasons* None derives them from the arrangement's cost."""
        if reasons is None:
            from penstock.partitioning.arrangement import Reasons

            reasons = Reasons(arrangement, self.judge, energy=self.energy).every()
        operations = tuple(
            _placement(self.asked, self.live[at], self.asked.candidates[position], reasons[at])
            for at, position in enumerate(polled(arrangement.assignment))
        )
        _check_coverage(operations, self.policy)
        kept = self.judge.steps(arrangement.partitions)
        steps = []
        for step, partition in zip(self._steps(kept), kept, strict=True):
            first = partition.operations[0]
            is_apart = self.judge.is_apart(first, partition.device)
            control = self.apart[first].control if is_apart else None
            ns, worst = whole(self.time.step(partition)), self._worst(partition)
            steps.append(replace(step, predicted_ns=ns, control=control, worst=worst))
        used, temporaries = {step.device for step in steps}, ArenaLayout()
        if len(steps) > 1:
            from penstock.partitioning.split import plan_temporaries

            capabilities = {c.name: c.capabilities for c in self.table.candidates}
            temporaries = plan_temporaries(self.table.model, steps, capabilities)
        return ExecutionPlan(
            self.asked.model,
            self.names,
            permit_fallback(steps, self.asked, operations, self.policy),
            self.with_unread(operations),
            temporaries,
            whole(self.time.plan(kept)),
            whole(self.judge.plan(kept)) if self.energy else None,
            tuple(self._alternative(at, arrangement) for at in range(len(self.names))),
            accuracy=self.policy.accuracy,
            doubts=tuple(
                (c.name, c.capabilities.accuracy_doubt)
                for c in self.asked.candidates
                if c.name in used and c.capabilities.accuracy_doubt
            ),
            basis=self.basis,
        )

    def with_unread(self, operations: Sequence[Placement] = ()) -> tuple[Placement, ...]:
        """The placements of executed operations, with those of unread operations in between."""
        placed = {placement.index: placement for placement in operations}
        return tuple(
            placed.get(index) or _unread(self.asked, index)
            for index in polled(range(len(self.asked.model.operations)))
        )

    def _steps(self, partitions: Sequence[support.Partition]) -> tuple[ExecutionStep, ...]:
        model = self.asked.model
        entry = model.entry
        if len(partitions) == 1 and len(self.live) == len(entry.operations) and _is_plain(entry):
            device = self.names[partitions[0].device]
            return (ExecutionStep(0, device, self.live, model, entry.inputs, entry.outputs),)
        chosen = [(p.device, [self.live[at] for at in p.operations]) for p in partitions]
        if len(chosen) == 1:
            chosen = [(chosen[0][0], list(self.live))]
        cutter = Cutter(model, self.live)
        from penstock.ir.rounding import rounded, sums_options

        sums = rounded(entry)
        cuts = [(self.names[device], cutter.cut(operations)) for device, operations in chosen]
        steps = []
        for at, (device, cut) in enumerate(cuts):
            options = sums_options({k: sums[o] for k, o in enumerate(cut.outputs) if o in sums})
            ports = cut.inputs, cut.outputs
            step = ExecutionStep(at, device, cut.operations, cut.model, *ports, options=options)
            steps.append(step)
        return tuple(steps)

    def _worst(self, partition: support.Partition) -> Worst | None:
        worst = self.time.prices.worst
        if not worst or not partition.operations:
            return None
        times = [worst[at] for at in partition.operations]
        most = max(times)
        longest = partition.operations[times.index(most)]
        return Worst(math.fsum(times), most, self.live[longest])

    def _alternative(self, position: int, chosen: support.Arrangement) -> Alternative:
        alone: support.Arrangement | Proposal = chosen
        if len(self.names) > 1:
            from penstock.partitioning.arrangement import single_device

            alone = single_device(self.table, self.judge, position)
        kept = self.judge.steps(alone.partitions)
        return Alternative(
            self.names[position],
            alone.assignment.count(position),
            len(kept),
            whole(self.time.plan(kept)),
            whole(self.judge.plan(kept)) if self.energy else None,
        )


def _ground(
    asked: support.SupportTable,
    policy: Policy,
    preference: Preference,
    costs: Costs,
    depth: int = 0,
    room: Room | None = None,
) -> _Ground:
    if preference not in PREFERENCES:
        raise InputError(f"preference must be one of {', '.join(PREFERENCES)}, not {preference!r}")
    live, energy = support.live_operations(asked.model), preference == "low_power"
    table = asked if len(live) == len(asked.model.operations) else asked.of(live)
    model = table.model
    time = price(table, costs)
    prices = price(table, energy=True) if energy else time
    apart: dict[int, Apart] = {}
    if len(table.candidates) > 1 and any(o.type in {"IF", "WHILE"} for o in model.operations):
        from penstock.partitioning.control import Room, take_apart, with_apart

        inner = replace(policy, min_coverage=0.0)
        devices = [candidate.device for candidate in table.candidates]
        left = Room(asked.model) if room is None else room

        def branch(model: Model) -> ExecutionPlan:
            answers = support.collect_support(model, devices, inner, check_keys=False)
            return _place(_ground(answers, inner, preference, costs, depth + 1, left))

        apart = take_apart(table, policy, prices, branch, depth, left, energy=energy)
        prices = with_apart(prices, {index: a.cost for index, a in apart.items()})
        time = with_apart(time, {index: a.time for index, a in apart.items()})
    judge = Judge(model, prices, apart)
    timed = Judge(model, time, apart) if energy else judge
    basis = basis_of(costs, [candidate.name for candidate in table.candidates])
    return _Ground(asked, live, table, policy, preference, timed, judge, apart, basis)


def _place(ground: _Ground) -> ExecutionPlan:
    model, policy = ground.table.model, ground.policy
    if not model.operations:
        unread = ground.with_unread()
        return ExecutionPlan(
            ground.asked.model, ground.names, (), unread, ArenaLayout(), 0, accuracy=policy.accuracy
        )
    if whole_model := _on_the_only_one(ground.table, policy):
        return ground.plan(whole_model, [{}] * len(model.operations))
    if policy.placement == "cost":
        from penstock.partitioning.arrangement import arrange_by_cost

        return ground.plan(arrange_by_cost(ground.table, ground.judge, policy))
    from penstock.partitioning.greedy import arrange, explain, measure

    costs = measure(ground.table, ground.preference)
    chosen = arrange(ground.table, costs, policy)
    placed = enumerate(chosen.assignment)
    reasons = [explain(chosen.table, costs, i, k, ground.preference) for i, k in placed]
    return ground.plan(chosen, reasons)


def _on_the_only_one(table: support.SupportTable, policy: Policy) -> support.Arrangement | None:
    """All operations on the only candidate, if it supports them all and none is unread."""
    entry = table.model.entry
    every = tuple(range(len(entry.operations)))
    if (
        len(table.candidates) != 1
        or len(every) < policy.min_partition_size
        or not all(map(table.takers, every))
        or not _is_plain(entry)
    ):
        return None
    return support.Arrangement(table, (0,) * len(every), (support.Partition(0, every),))


def _placement(
    asked: support.SupportTable, index: int, home: support.Candidate, refusals: dict[str, Refusal]
) -> Placement:
    entry, accuracy = asked.model.entry, home.answers[index].accuracy
    kind = entry.operations[index].type
    return Placement(index, kind, entry.operation_name(index), home.name, refusals, accuracy)


def _unread(asked: support.SupportTable, index: int) -> Placement:
    """The placement of an operation that is not run: the first device that would support it."""
    home = asked.candidates[next(iter(asked.takers(index)), -1)]
    reasons = {
        c.name: c.answers[index].refusal or NOT_READ for c in asked.candidates if c is not home
    }
    return _placement(asked, index, home, reasons)


def _check_coverage(operations: Sequence[Placement], policy: Policy) -> None:
    left = [placement for placement in operations if placement.device == FALLBACK_DEVICE]
    coverage = (len(operations) - len(left)) / len(operations)
    if coverage >= policy.min_coverage:
        return
    kinds: dict[str, Counter[str]] = {}
    for placement in left:
        for device, reason in placement.reasons.items():
            kinds.setdefault(device, Counter())[f"{placement.type}: {reason}"] += 1
    reasons = {
        device: "; ".join(f"{reason} ({n})" for reason, n in counter.most_common())
        for device, counter in kinds.items()
    }
    amount = f"{len(left)} of {counted(len(operations), 'operation')}"
    limit = f"a coverage of {coverage:.3g}, where min_coverage={policy.min_coverage:g}"
    raise PlacementError(f"{amount} would run on {FALLBACK_DEVICE}: {limit}", reasons)


def _is_plain(entry: Subgraph) -> bool:
    """Whether operations compute all outputs, and no two outputs are the same operand."""
    computed = {operand for operation in entry.operations for operand in operation.outputs}
    return computed.issuperset(entry.outputs) and len(set(entry.outputs)) == len(entry.outputs)
