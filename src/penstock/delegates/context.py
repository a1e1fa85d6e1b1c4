"""The delegates' view of a graph and its tensors. Experimental until 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.ir import DType, Model, NDArray, Quantization, Shape

if TYPE_CHECKING:
    from penstock.delegates.api import (
        Delegate,
        DelegateNode,
        DelegateParams,
        DelegateRegistration,
        Registration,
    )
    from penstock.delegates.graph import DelegatedGraph
    from penstock.delegates.tensors import Tensors


class DelegateTensor:
    """One tensor of the graph, always as it is now: it may be kept from one call to the next."""

    __slots__ = ("_tensors", "index")

    def __init__(self, tensors: Tensors, index: int) -> None:
        self._tensors = tensors
        self.index = index

    @property
    def name(self) -> str:
        """The file's name of it."""
        return self._tensors.name(self.index)

    @property
    def dtype(self) -> DType:
        """The element type; equal to NumPy's of the same name."""
        return self._tensors.dtype(self.index)

    @property
    def shape(self) -> Shape:
        """The dimensions. Before a run, None in a place is a dimension that only the run
        determines, and None an unknown rank.
        """
        return self._tensors.shape(self.index)

    @property
    def quantization(self) -> Quantization | None:
        """How stored values stand for real ones."""
        return self._tensors.quantization(self.index)

    @property
    def is_constant(self) -> bool:
        """Whether the file has its value."""
        return self._tensors.is_constant(self.index)

    @property
    def is_variable(self) -> bool:
        """Whether it keeps its value between runs; a kernel changes it in place."""
        return self._tensors.is_variable(self.index)

    @property
    def data(self) -> NDArray:
        """Its memory as an array of `dtype` and `shape`, up to date.

        Writable if the present kernel writes the tensor, else read-only. Packed types have one
        element a byte; strings are an array of bytes objects. Constants always have data; other
        tensors from the run on, unless the graph computes them for nobody else. Raises `StateError`
        if there is none.
        """
        return self._tensors.data(self.index)

    @property
    def buffer_handle(self) -> int:
        """Its buffer, NULL_BUFFER_HANDLE for none. A kernel may set that of its delegate's tensors.
        The replaced buffer is freed (`Delegate.free_buffer_handle`) when the kernel returns, unless
        a tensor is in it then.
        """
        return self._tensors.handle(self.index)

    @buffer_handle.setter
    def buffer_handle(self, handle: int) -> None:
        self._tensors.set_handle(self.index, handle)

    @property
    def data_is_stale(self) -> bool:
        """Whether only the buffer has the present value. A kernel sets it for its outputs."""
        return self._tensors.is_stale(self.index)

    @data_is_stale.setter
    def data_is_stale(self, stale: bool) -> None:
        self._tensors.set_stale(self.index, stale)

    def __repr__(self) -> str:
        return f"<DelegateTensor {self.index}: {self.name!r}, {self.dtype.value} {self.shape}>"


class PartitionModel(Struct, frozen=True, eq=False):
    """Nodes of a graph as a model of their own, for the present shapes.

    *inputs* and *outputs* are the tensors of the model's inputs and outputs, in order. A variable
    tensor that the nodes change is both; its output must be written to its data. *nodes* has the
    node of each operation of the model's main subgraph.
    """

    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]


class DelegateContext:
    """One subgraph of an interpreter: nodes, tensors, and the order in which the nodes run.

    Nodes and tensors have the file's numbers; delegates add higher ones. An unknown index raises
    `InputError`.
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
        """Node indexes in the order in which they run; delegate nodes replace others."""
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

        Only a delegate's `prepare` may call it, for itself. Raises `StateError` elsewhere;
        `InputError` for a node that is not in the plan, is another delegate's, or stays with the
        interpreter (`reason_kept`); `DelegateError` if `init` fails. Each of these restores the
        graph after `prepare`.
        """
        self._graph.replace(registration, nodes, delegate)

    def preview_delegate_partitioning(self, nodes: Iterable[int]) -> list[DelegateParams]:
        """The subsets that *nodes* would be replaced by, in the order in which they would run."""
        return self._graph.preview(nodes)

    def nodes_within_limits(
        self, nodes: Iterable[int], most: int | None = None, least: int = 0
    ) -> list[int]:
        """The nodes of the *most* largest subsets (None: all) with at least *least* nodes."""
        return self._graph.within_limits(nodes, most, least)

    def reason_kept(self, index: int) -> str:
        """Why node *index* cannot be replaced, "" if it can: it is another delegate's, or no tensor
        holds its network state.
        """
        return self._graph.reason_kept(index)

    def partition_model(self, nodes: Sequence[int]) -> PartitionModel:
        """*nodes*, all replaceable, as a model: for a delegate that passes them to a driver or to
        the runtime.

        From a kernel's `prepare` on, it has the shapes that the kernel is prepared for.
        """
        return self._graph.partition_model(nodes)

    def add_tensor(self, dtype: DType, shape: Sequence[int]) -> int:
        """Adds a tensor for its node's `temporaries`; its data persists between runs."""
        return self._graph.tensors.add(dtype, shape)

    def resize_tensor(self, index: int, shape: Sequence[int]) -> None:
        """Gives a tensor that the present kernel writes another shape; its data is new memory.

        For an output whose shape only the run determines, before its data is written; and for the
        kernel's own tensors. Raises `StateError` for any other tensor, `InputError` for a shape
        that contradicts the known one.
        """
        self._graph.tensors.resize(index, shape)

    @property
    def num_threads(self) -> int | None:
        """How many threads the interpreter was given; None where it was not told."""
        return self._graph.num_threads
