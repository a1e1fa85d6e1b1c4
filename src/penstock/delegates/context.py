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
    """One tensor of the graph in its present state. It stays valid after the call."""

    __slots__ = ("_tensors", "index")

    def __init__(self, tensors: Tensors, index: int) -> None:
        self._tensors = tensors
        self.index = index

    @property
    def name(self) -> str:
        """The tensor's name in the file."""
        return self._tensors.name(self.index)

    @property
    def dtype(self) -> DType:
        """The element type; equals NumPy's type of the same name."""
        return self._tensors.held(self.index).dtype

    @property
    def shape(self) -> Shape:
        """The dimensions. Before a run, None is an unknown dimension, or an unknown rank."""
        return self._tensors.shape(self.index)

    @property
    def quantization(self) -> Quantization | None:
        """The scales and zero points that map stored values to real ones."""
        return self._tensors.held(self.index).quantization

    @property
    def is_constant(self) -> bool:
        """Whether its value is a constant of the file."""
        return self._tensors.held(self.index).is_constant

    @property
    def is_variable(self) -> bool:
        """Whether it keeps its value between runs. A kernel changes the value in place."""
        return self._tensors.is_variable(self.index)

    @property
    def data(self) -> NDArray:
        """Its memory as an array of `dtype` and `shape`, up to date.

        The array is writable if the present kernel writes the tensor, otherwise read-only. Packed
        types have one element per byte; strings are an array of bytes objects. Constants always
        have data. Other tensors have data from the first run on, unless the tensor is internal to
        the graph. Raises `StateError` if there is no data.
        """
        return self._tensors.data(self.index)

    @property
    def buffer_handle(self) -> int:
        """Its buffer; NULL_BUFFER_HANDLE for none. A kernel may set it for tensors of its delegate.

        When the kernel returns, the replaced buffer is freed (`Delegate.free_buffer_handle`),
        unless it holds another tensor.
        """
        return self._tensors.buffer(self.index).handle

    @buffer_handle.setter
    def buffer_handle(self, handle: int) -> None:
        self._tensors.set_handle(self.index, handle)

    @property
    def data_is_stale(self) -> bool:
        """Whether the buffer is newer than host memory. A kernel sets it for its outputs."""
        return self._tensors.buffer(self.index).stale

    @data_is_stale.setter
    def data_is_stale(self, stale: bool) -> None:
        self._tensors.set_stale(self.index, stale)

    def __repr__(self) -> str:
        return f"<DelegateTensor {self.index}: {self.name!r}, {self.dtype.value} {self.shape}>"


class PartitionModel(Struct, frozen=True, eq=False):
    """Nodes of a graph as a separate model, for the present shapes.

    *inputs* and *outputs* are the tensors of the model's inputs and outputs, in order. A variable
    tensor that the nodes change is both; the caller must write that output to the tensor's data.
    *nodes* has the node of each operation of the model's main subgraph.
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
        """A number that is unique among the living subgraphs of an interpreter."""
        return id(self._graph)

    @property
    def execution_plan(self) -> tuple[int, ...]:
        """Node indexes in execution order. Delegate nodes replace the nodes that they took."""
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
        """Node *index*, also one that has been replaced, with its operator."""
        return self._graph.node(index)

    def tensor(self, index: int) -> DelegateTensor:
        """Tensor *index*."""
        return self._graph.tensors.tensor(index)

    def replace_node_subsets_with_delegate_kernels(
        self, registration: DelegateRegistration, nodes: Iterable[int], delegate: Delegate
    ) -> None:
        """Replaces *nodes* of the execution plan by as few delegate nodes as dependencies allow.

        Calls `init` for each. Only a delegate's `prepare` may call it, for that delegate. Raises
        `StateError` at any other time; `InputError` for a node that is not in the plan, belongs to
        another delegate, or stays with the interpreter (`reason_kept`); `DelegateError` if `init`
        fails. Each of these errors restores the graph after `prepare`.
        """
        self._graph.replace(registration, nodes, delegate)

    def preview_delegate_partitioning(self, nodes: Iterable[int]) -> list[DelegateParams]:
        """The subsets that would replace *nodes*, in execution order."""
        return self._graph.preview(nodes)

    def nodes_within_limits(
        self, nodes: Iterable[int], most: int | None = None, least: int = 0
    ) -> list[int]:
        """The nodes of the *most* largest subsets (None: all) with at least *least* nodes."""
        return self._graph.within_limits(nodes, most, least)

    def reason_kept(self, index: int) -> str:
        """Why node *index* cannot be replaced; "" if it can.

        Another delegate owns it, or no tensor holds its network state.
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
        """Gives another shape, and new memory, to a tensor that the present kernel writes.

        Allowed for an output whose shape is only known at run time, before its data is written, and
        for the kernel's own tensors. Raises `StateError` for any other tensor, `InputError` for a
        shape that contradicts the known one.
        """
        self._graph.tensors.resize(index, shape)

    @property
    def num_threads(self) -> int | None:
        """The interpreter's number of threads; None if it has no setting."""
        return self._graph.num_threads
