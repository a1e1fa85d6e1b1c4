"""The graph as a delegate sees it and changes it. Experimental until 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.delegates.tensor import DelegateTensor
from penstock.ir import DType, Model

if TYPE_CHECKING:
    from penstock.delegates.api import (
        Delegate,
        DelegateNode,
        DelegateParams,
        DelegateRegistration,
        Registration,
    )
    from penstock.delegates.graph import DelegatedGraph


class PartitionModel(Struct, frozen=True, eq=False):
    """Nodes of a graph as a model of their own, for the present shapes.

    *inputs* and *outputs* are the tensors that the model's inputs and outputs stand for, in order.
    A variable tensor that the nodes change is both; what the output gives is to be written to its
    data. *nodes* has, for each operation of the model's main subgraph, the node that it computes.
    """

    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]


class DelegateContext:
    """One subgraph of an interpreter: nodes, tensors, and the order in which the nodes run.

    Nodes and tensors have the file's numbers; what delegates add is numbered after them. An index
    that there is not raises `InputError`.
    """

    __slots__ = ("_graph",)

    def __init__(self, graph: DelegatedGraph) -> None:
        self._graph = graph

    @property
    def graph_id(self) -> int:
        """A number that no other subgraph of an interpreter has while this one lives."""
        return id(self._graph)

    @property
    def execution_plan(self) -> tuple[int, ...]:
        """Node indexes in the order in which they run; delegate nodes stand in the place of those
        they replaced.
        """
        return self._graph.plan

    @property
    def inputs(self) -> tuple[int, ...]:
        """The subgraph's input tensors."""
        return self._graph.catalog.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """The subgraph's output tensors."""
        return self._graph.catalog.outputs

    def node_and_registration(self, index: int) -> tuple[DelegateNode, Registration]:
        """Node *index*, also one that has been replaced, and what it computes."""
        return self._graph.node(index)

    def tensor(self, index: int) -> DelegateTensor:
        """Tensor *index*."""
        return self._graph.tensors.tensor(index)

    def replace_node_subsets_with_delegate_kernels(
        self, registration: DelegateRegistration, nodes: Iterable[int], delegate: Delegate
    ) -> None:
        """Replaces *nodes* of the execution plan by delegate nodes, as few as dependencies allow,
        and calls `init` for each.

        Only a delegate's `prepare` may call it, for itself. Raises `StateError` elsewhere,
        `InputError` for a node that is not in the plan, is another delegate's, or stays with the
        interpreter (`reason_kept`), `DelegateError` where `init` fails; in each case the graph is
        restored when `prepare` is over.
        """
        self._graph.replace(registration, nodes, delegate)

    def preview_delegate_partitioning(self, nodes: Iterable[int]) -> list[DelegateParams]:
        """The subsets that *nodes* would be replaced by, in the order in which they would run."""
        return self._graph.preview(nodes)

    def nodes_within_limits(
        self, nodes: Iterable[int], most: int | None = None, least: int = 0
    ) -> list[int]:
        """Those of *nodes* in the *most* largest subsets (None: all) of at least *least* nodes; of
        equal ones the first.
        """
        return self._graph.within_limits(nodes, most, least)

    def reason_kept(self, index: int) -> str:
        """Why node *index* cannot be replaced; empty where it can. A node that another delegate put
        there, or whose network state no tensor holds, stays.
        """
        return self._graph.reason_kept(index)

    def partition_model(self, nodes: Sequence[int]) -> PartitionModel:
        """*nodes*, none of which has a reason to stay, as a model: for a delegate that hands them
        to a driver or to the runtime.

        In a kernel's `prepare` and later its shapes are those that the kernel is prepared for.
        """
        return self._graph.partition_model(nodes)

    def add_tensor(self, dtype: DType, shape: Sequence[int]) -> int:
        """A new tensor for a kernel's own use, for its node's `temporaries`; its data stays from
        run to run.
        """
        return self._graph.tensors.add(dtype, shape)

    def resize_tensor(self, index: int, shape: Sequence[int]) -> None:
        """Gives a tensor that the kernel under way writes the shape *shape*; its data is new
        memory.

        For an output whose shape is known only at run time, before its data is written; and for the
        kernel's own tensors. Raises `StateError` for any other tensor, `InputError` for a shape
        that contradicts the known one.
        """
        self._graph.tensors.resize(index, shape)

    @property
    def num_threads(self) -> int | None:
        """How many threads the interpreter was given; None where it was not told."""
        return self._graph.num_threads
