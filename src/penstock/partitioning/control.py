"""Control flow carried out by the runtime: the branches of IF and WHILE get plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import ModelError, PlacementError
from penstock.interrupts import polled
from penstock.ir import DType, Model, Operation, infer_shapes
from penstock.ir.transforms import entered_from
from penstock.ir.types import Shape, element_count, static_shape
from penstock.partitioning.plan import Control, ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.partitioning.prediction import UNDECLARED, Prices
from penstock.partitioning.rounds import expected_runs
from penstock.partitioning.split import extract, size_of
from penstock.partitioning.support import HANDLES, SupportTable

CONTROL_NS: Final = 10_000.0
"""Time of the runtime for one evaluation of a condition, and for one run of a branch."""

MOST_DEPTH: Final = 4
"""Nesting depth of control flow up to which it is taken apart; deeper, it is placed as a whole."""

MOST_TAKEN_APART: Final = 1 << 12
"""Limit of the branch operands and operations that a placement plans, beyond the model's share."""

PlaceBranch: TypeAlias = Callable[[Model], ExecutionPlan]

Key: TypeAlias = tuple[int, tuple[Shape, ...]]
"""A subgraph, and the shapes of its inputs."""


class Room:
    """What remains of `MOST_TAKEN_APART` for one placement and everything placed within it."""

    def __init__(self, model: Model) -> None:
        self._left = MOST_TAKEN_APART + MOST_DEPTH * sum(map(size_of, model.subgraphs))

    def takes(self, model: Model, subgraph: int) -> bool:
        """Reserves room for *subgraph* and all that it enters; returns whether there was enough."""
        if self._left <= 0:
            return False
        every = (*entered_from(model, subgraph), subgraph)
        self._left -= sum(size_of(model.subgraphs[index]) for index in every)
        return self._left >= 0


_KINDS: Final[dict[str, tuple[Literal["IF", "WHILE"], tuple[str, str]]]] = {
    "IF": ("IF", ("then_subgraph_index", "else_subgraph_index")),
    "WHILE": ("WHILE", ("cond_subgraph_index", "body_subgraph_index")),
}


class Apart(Struct, frozen=True):
    """An operation taken apart: its plan, predicted *time* in ns, and *cost* in price units."""

    control: Control
    time: float
    cost: float


def take_apart(
    table: SupportTable,
    policy: Policy,
    prices: Prices,
    place: PlaceBranch,
    depth: int,
    room: Room,
    *,
    energy: bool,
) -> dict[int, Apart]:
    """Plans the branches of control flow that would run on the reference (NNAPI section 4.3).

    An operation is taken apart if the reference may run it, all its values have known shapes and
    none is a handle. Its branches must put something on another device. Under "cost" the result
    must also be predicted to be cheaper. *place* plans a subgraph; *depth* is the nesting depth.

    Limits on partitions apply to whole plans: with such a limit nothing is taken apart. A subgraph
    entered several times with the same shapes is planned once. Nothing more is taken apart once
    *room* is used up.
    """
    is_limited = policy.max_partitions is not None or policy.min_partition_size > 1
    reference = next((c for c in table.candidates if c.is_reference), None)
    if depth >= MOST_DEPTH or is_limited or reference is None or len(table.candidates) == 1:
        return {}
    found: dict[int, Apart] = {}
    branches = _Branches(table.model, place, room)
    for index, operation in enumerate(polled(table.model.operations)):
        if operation.type not in _KINDS or not reference.answers[index].supported:
            continue
        apart = _taken_apart(branches, operation, energy)
        if apart is None:
            continue
        if policy.placement == "nnapi" or apart.cost < prices.operations[index][-1]:
            found[index] = apart
    return found


def with_apart(prices: Prices, costs: dict[int, float]) -> Prices:
    """*prices* with the costs of operations taken apart, on the reference (the last candidate)."""
    if not costs:
        return prices
    rows = tuple(
        (*row[:-1], costs[index]) if index in costs else row
        for index, row in enumerate(prices.operations)
    )
    return replace(prices, operations=rows)


class _Branches:
    """The subgraphs of a model, as models of known shapes, and their plans; None if impossible."""

    def __init__(self, model: Model, place: PlaceBranch, room: Room) -> None:
        self.model, self._place, self._room = model, place, room
        self._models: dict[Key, Model | None] = {}
        self._plans: dict[Key, ExecutionPlan | None] = {}

    def as_model(self, key: Key) -> Model | None:
        if key not in self._models:
            fits = self._room.takes(self.model, key[0])
            self._models[key] = _branch(self.model, *key) if fits else None
        return self._models[key]

    def plan(self, key: Key, model: Model) -> ExecutionPlan | None:
        if key not in self._plans:
            try:
                self._plans[key] = self._place(model)
            except PlacementError:
                self._plans[key] = None
        return self._plans[key]


def _taken_apart(branches: _Branches, operation: Operation, energy: bool) -> Apart | None:
    kind, names = _KINDS[operation.type]
    found = _keys(branches, operation, kind, [operation.attributes.integer(n) for n in names])
    if found is None:
        return None
    first, second = (branches.plan(key, model) for key, model in found)
    if first is None or second is None:
        return None
    plans = first, second
    if not any(map(_leaves_reference, plans)):
        return None
    runs = expected_runs(branches.model, branches.model.main, operation)
    times = [_of_runs(runs, plan.predicted_ns) for plan in plans]
    energies = [_of_runs(runs, plan.predicted_energy) for plan in plans]
    return Apart(Control(kind, plans), sum(times), sum(energies if energy else times))


def _of_runs(runs: float, cost: int | None) -> float:
    return runs * (CONTROL_NS + (UNDECLARED if cost is None else cost))


def _leaves_reference(plan: ExecutionPlan) -> bool:
    return any(
        step.device != FALLBACK_DEVICE
        or (step.control is not None and any(map(_leaves_reference, step.control.branches)))
        for step in plan.steps
    )


def _keys(
    branches: _Branches, operation: Operation, kind: str, subgraphs: Sequence[int]
) -> list[tuple[Key, Model]] | None:
    """The two subgraphs as models with inferred shapes; None if a shape is unknown."""
    model = branches.model
    given = [model.operands[i] for i in operation.inputs]
    results = [model.operands[i] for i in operation.outputs]
    if any(o.dtype in HANDLES or not o.has_value for o in (*given, *results)):
        return None
    shapes = [static_shape(o.shape) for o in given]
    wanted = [static_shape(o.shape) for o in results]
    if None in shapes or None in wanted or any(o.dtype is DType.STRING for o in (*given, *results)):
        return None
    carried = shapes[1:] if kind == "IF" else shapes
    keys = [(index, tuple(carried)) for index in subgraphs]
    first, second = map(branches.as_model, keys)
    if first is None or second is None:
        return None
    if kind == "IF":
        fits = _gives(first, wanted) and _gives(second, wanted)
        fits = fits and element_count(shapes[0] or ()) > 0
    else:
        fits = _gives(second, carried) and wanted == carried and _decides(first)
    return list(zip(keys, (first, second), strict=True)) if fits else None


def _branch(model: Model, index: int, shapes: Sequence[Shape]) -> Model | None:
    subgraph = model.subgraphs[index]
    handles = any(o.dtype in HANDLES for o in subgraph.operands)
    if handles or subgraph.states or len(subgraph.inputs) != len(shapes):
        return None
    try:
        positions = {at: shape for at, shape in enumerate(shapes) if shape is not None}
        # All are complete.
        return infer_shapes(extract(model, index), positions)  # type: ignore[arg-type]
    except ModelError:
        return None


def _gives(model: Model, shapes: Sequence[Shape]) -> bool:
    return [static_shape(o.shape) for o in model.outputs] == list(shapes)


def _decides(model: Model) -> bool:
    (output, *others) = model.outputs
    shape = None if others or output.dtype is not DType.BOOL else static_shape(output.shape)
    return shape is not None and element_count(shape) > 0
