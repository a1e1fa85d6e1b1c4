"""The nodes of a subgraph, and the partitioning of a delegate's nodes into subsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from penstock.delegates.api import DelegateNode, Registration
from penstock.delegates.codes import BuiltinOperator
from penstock.export.tflite.fields import state_positions
from penstock.ir import DType, Operation, Subgraph
from penstock.ir.operation import NO_ATTRIBUTES
from penstock.ir.transforms import BRANCHES, branches_of
from penstock.loaders.tflite.catalog import OperatorEntry, SubgraphEntry


class Subset(Struct, frozen=True):
    """Nodes that run together, either all in the delegate or all outside, in topological order."""

    nodes: tuple[int, ...]
    delegated: bool


def cut_into_subsets(
    plan: Sequence[int],
    wanted: AbstractSet[int],
    depends: Mapping[int, Collection[int]],
    *,
    cluster: bool = True,
    fuse: bool = True,
) -> list[Subset]:
    """Partitions *plan* into few subsets, in execution order.

    *depends* has the earlier nodes whose results a node needs. A subset takes every node of its
    kind (delegated or not) that is ready, so the kinds alternate. The first kind is the one that
    leads to fewer subsets, otherwise that of the first ready node (TFLite's
    `PartitionGraphIntoIndependentNodeSubsets`). Without *cluster* nodes keep the order of the plan.
    Without *fuse* each wanted node is a separate subset.
    """
    if not cluster:
        kinds = groupby(plan, key=wanted.__contains__)
        found = [Subset(tuple(nodes), delegated) for delegated, nodes in kinds]
    else:
        # The order differs only if nodes of the other kind are ready, too.
        first = next((n in wanted for n in plan), False)
        found = _alternating(plan, wanted, depends, first)
        if any((n in wanted) is not first and not depends[n] for n in plan):
            other = _alternating(plan, wanted, depends, not first)
            found = min(found, other, key=len)
    if fuse:
        return found
    return [
        one
        for subset in found
        for one in ([Subset((n,), True) for n in subset.nodes] if subset.delegated else [subset])
    ]


def _alternating(
    plan: Sequence[int],
    wanted: AbstractSet[int],
    depends: Mapping[int, Collection[int]],
    delegated: bool,
) -> list[Subset]:
    found: list[Subset] = []
    done: set[int] = set()
    left = list(plan)
    while left:
        now, later = [], []
        for node in left:
            if (node in wanted) is delegated and done.issuperset(depends[node]):
                done.add(node)
                now.append(node)
            else:
                later.append(node)
        if now:
            found.append(Subset(tuple(now), delegated))
        left, delegated = later, not delegated
    return found


Value: TypeAlias = "tuple[Literal['tensor', 'operand'], int]"
"""A value that a node reads or writes: a tensor of the file, or an operand of the model."""

RESOURCE_TYPES: Final = frozenset({DType.RESOURCE, DType.VARIANT})

NOT_COMPUTED: Final = (
    "the interpreter does it when the model is loaded, there is nothing to compute"
)
HANDLES: Final = "it works on a handle that only the interpreter has"
HIDDEN_STATE: Final = "it has network state that no tensor holds"


@dataclass(slots=True, eq=False)
class Node:
    """One node of the file, or of a delegate.

    *operations* of the model's entry compute it. *kept* is the reason why it cannot be replaced, ""
    if it can. *targets* are the subgraphs of a replaceable branch (then, else) or loop (condition,
    body). *operands* maps the tensors that it reads to the operands with their values. *updates*
    maps the variable tensors that it changes to the operands with their new values.
    """

    index: int
    node: DelegateNode
    registration: Registration
    operations: tuple[int, ...] = ()
    kept: str = ""
    targets: tuple[int, ...] = ()
    operands: dict[int, int] = field(default_factory=dict)
    updates: dict[int, int] = field(default_factory=dict)
    reads: frozenset[Value] = frozenset()
    writes: frozenset[Value] = frozenset()


def nodes_of(catalog: SubgraphEntry, entry: Subgraph, subgraph: int) -> list[Node]:
    """The nodes of subgraph number *subgraph*, which was lowered to *entry*."""
    computed = {
        o.origin.index: at
        for at, o in enumerate(entry.operations)
        if o.origin is not None and o.origin.subgraph == subgraph
    }
    variables = frozenset(i for i, t in enumerate(catalog.tensors) if t.is_variable).difference(
        catalog.inputs
    )
    found = []
    for index, operator in enumerate(catalog.operators):
        at = computed.get(index)
        operation = None if at is None else entry.operations[at]
        attributes = NO_ATTRIBUTES if operation is None else operation.attributes
        node = DelegateNode(operator.inputs, operator.outputs, attributes=attributes)
        origin = None if operation is None else operation.origin
        version = 1 if origin is None or origin.version is None else origin.version
        builtin = "CUSTOM" if operator.custom else operator.name
        custom = operator.name if operator.custom else ""
        made = Node(index, node, Registration(BuiltinOperator[builtin], builtin, custom, version))
        inputs = [i for i in operator.inputs if i >= 0]
        made.reads = frozenset(("tensor", i) for i in inputs if i not in variables)
        made.writes = frozenset(("tensor", i) for i in operator.outputs if i not in variables)
        found.append(made)
        if operation is None or at is None:
            made.kept = NOT_COMPUTED
            continue
        made.operations = (at,)
        made.reads |= frozenset(("operand", i) for i in operation.inputs)
        made.writes |= frozenset(("operand", i) for i in operation.outputs)
        held = (*inputs, *(i for i in operator.outputs if i >= 0))
        if any(catalog.tensors[i].dtype in RESOURCE_TYPES for i in held):
            made.kept = HANDLES
        elif not _match(made, operator, operation, variables):
            made.kept = HIDDEN_STATE
        elif operation.type in BRANCHES:
            made.targets = branches_of(operation)
    return found


def _match(
    made: Node, operator: OperatorEntry, operation: Operation, variables: Collection[int]
) -> bool:
    """Finds the operand of each tensor; False if an operand has no tensor."""
    more = len(operation.outputs) - len(operator.outputs)
    if len(operation.inputs) != len(operator.inputs) or more < 0:
        return False
    made.operands = {t: o for t, o in zip(operator.inputs, operation.inputs, strict=True) if t >= 0}
    changed = list(zip(operator.outputs, operation.outputs, strict=False))
    if more:
        positions: Sequence[int] = state_positions(operation.type, operation.attributes)
        state = [operator.inputs[i] for i in positions if i < len(operator.inputs)]
        if operator.custom:
            state = [t for t in operator.inputs if t in variables]
        if len(state) != more:
            return False
        changed += zip(state, operation.outputs[-more:], strict=True)
    made.updates = {t: o for t, o in changed if t in variables}
    return True
