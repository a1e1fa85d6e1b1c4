"""The graphs behind an interpreter and its signature runners, for one thread at a time.

An interpreter that preserves all tensors also has values inside the subgraphs of IF and WHILE. They
are computed on demand: the subgraph runs again on the operator's inputs, a loop step by step. As in
LiteRT, the body's inputs afterwards are its last outputs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ClosedError, StateError
from penstock.ir import DType, NDArray, Operation
from penstock.tflite import texts
from penstock.tflite.graph import Graph
from penstock.tflite.session import Session

if TYPE_CHECKING:
    from penstock.delegates import Delegate


def enter(main: Graph, subgraph: int, find: Callable[[int], Graph]) -> bool:
    """Runs *subgraph* as in the main subgraph's last run. Returns whether that entered it."""
    from penstock.ir.transforms import BRANCHES, branches_of

    for operation in main.operations:
        if operation.type in BRANCHES and subgraph in branches_of(operation):
            break
    else:
        return False
    if (given := _given(main, operation)) is None:
        return False
    first, second = branches_of(operation)
    if operation.type == "IF":
        if bool(np.all(given[0])) is not (subgraph == first):
            return False
        run(find(subgraph), given[1:])
        return True
    condition, body = find(first), find(second)
    while np.all(run(condition, given)[0]):
        given = run(body, given)
    _feed(body, given)
    return True


def run(graph: Graph, given: Sequence[Any]) -> list[Any]:
    """The outputs of one subgraph for *given* inputs, which determine its shapes."""
    _feed(graph, given)
    graph.invoke()
    return [graph.get(tensor) for tensor in graph.catalog.outputs]


def _feed(graph: Graph, given: Sequence[Any]) -> None:
    for tensor, value in zip(graph.catalog.inputs, given, strict=True):
        graph.resize(tensor, np.array(np.shape(value), np.int32), strict=False)
    graph.allocate()
    for tensor, value in zip(graph.catalog.inputs, given, strict=True):
        graph.set(tensor, value)


def _given(main: Graph, operation: Operation) -> list[Any] | None:
    """The inputs of the file's operator; None if they include resources, not only tensor values."""
    if operation.origin is None:
        return None
    inputs = main.catalog.operators[operation.origin.index].inputs
    if len(inputs) != len(operation.inputs) or min(inputs, default=0) < 0:
        return None
    if any(main.tensor(i).dtype in (DType.RESOURCE, DType.VARIANT) for i in inputs):
        return None
    return [main.get(i) for i in inputs]


class Core:
    """The subgraphs of one interpreter. As a context manager it admits one thread."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._graphs = session.subgraphs = Graphs(session)
        self._main = self._graphs.find(0)
        self._named = {s.subgraph for s in session.catalog.signatures.values()}
        self._entered: dict[int, int] = {}
        self.busy = threading.Lock()
        """Held during a call."""
        self.direct = self._main.direct
        """As `Graph.direct` of the main subgraph: a call with one of these needs no other check."""
        self._closed = False
        # Programs for LiteRT do not call `close`: dropping the last reference frees the drivers'
        # models.
        weakref.finalize(self, self._graphs.close).atexit = False

    def __enter__(self) -> Graph:
        """The main subgraph, for one call in the block. Raises `StateError`, `ClosedError`."""
        if not self.busy.acquire(blocking=False):
            raise StateError(
                "this interpreter is in use by another thread; give each thread an interpreter of "
                "its own"
            )
        if self._closed:
            self.busy.release()
            self.check_open()
        return self._main

    def __exit__(self, *_: object) -> None:
        self.busy.release()

    def ensure_unshared(self) -> None:
        """Raises `RuntimeError` while a view of the memory exists: the call may invalidate it."""
        if self.session.guests.present:
            raise RuntimeError(texts.HELD)

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("interpreter used after close()")

    def graph(self, index: int) -> Graph:
        """The subgraph of that index. Raises `ValueError` with LiteRT's message."""
        count = len(self.session.catalog.subgraphs)
        if not 0 <= index < count:
            raise ValueError(f"Invalid subgraph index {index} exceeds max subgraph index {count}")
        return self._graphs.find(index)

    def get(self, tensor: int, subgraph: int) -> Any:
        """A copy of a tensor's value, also inside called subgraphs if all tensors are preserved."""
        graph = self.graph(subgraph)
        if (
            subgraph
            and self.session.preserve
            and self._main.runs != self._entered.get(subgraph)
            and subgraph not in self._named
            and graph.tensor(tensor).data is None
        ):
            try:
                entered = enter(self._main, subgraph, self.graph)
            except RuntimeError as error:
                raise ValueError(f"{texts.NO_DATA}\n{error}") from error
            if not entered:
                raise ValueError(f"{texts.NO_DATA}\nThe last run did not enter subgraph {subgraph}")
            self._entered[subgraph] = self._main.runs
        return graph.get(tensor)

    def details(self, tensor: int, subgraph: int) -> dict[str, Any]:
        self.check_open()
        return self.graph(subgraph).details(tensor)

    def signatures(self) -> dict[str, dict[str, dict[str, int]]]:
        """Signature -> {"inputs" and "outputs": name -> tensor index}."""
        self.check_open()
        return {
            key: {"inputs": dict(entry.inputs), "outputs": dict(entry.outputs)}
            for key, entry in self.session.catalog.signatures.items()
        }

    def run_signature(self, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Resizes, allocates, sets, runs and returns outputs, by a signature's names."""
        signature = self.session.catalog.signatures[key]
        with self:
            graph = self.graph(signature.subgraph)
            for name, value in given.items():
                if name not in signature.inputs:
                    raise ValueError(f"Invalid Input name ({name}) for SignatureDef")
                shape = np.array(value.shape, dtype=np.int32)
                graph.resize(signature.inputs[name], shape, strict=False)
            graph.allocate()
            for name, value in given.items():
                graph.set(signature.inputs[name], value)
            graph.invoke()
            return {name: graph.get(index) for name, index in signature.outputs.items()}

    def add_delegate(self, delegate: Delegate) -> None:
        """Adds a delegate to every entry subgraph, and to those entered if it accepts them."""
        done: list[Graph] = []
        seen: set[int] = set()
        entries = {0, *self._named}
        waiting = sorted(entries)
        try:
            while waiting:
                index = waiting.pop(0)
                if index in seen:
                    continue
                seen.add(index)
                graph = self.graph(index)
                if index in entries or graph.can_take(delegate):
                    graph.add_delegate(delegate)
                    done.append(graph)
                    waiting += graph.entered
            for graph in done:
                graph.forget_steps()
        except BaseException:
            for graph in reversed(done):
                graph.remove_delegate()
            raise

    def reset_variables(self) -> None:
        for graph in self._graphs.known.values():
            graph.reset_variables()

    def close(self) -> None:
        """Closes the compiled models. A second call has no effect."""
        if self._closed:
            return
        with self:
            self._closed = True
            self._graphs.close()


class Graphs:
    """The subgraphs of one interpreter, created on demand. It must not keep the `Core` alive."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.known: dict[int, Graph] = {}

    def find(self, index: int) -> Graph:
        if index not in self.known:
            self.known[index] = Graph(self._session, index)
        return self.known[index]

    def has_kernels(self, subgraph: int) -> bool:
        """Whether a delegate has a node in this subgraph, or in a subgraph that it enters."""
        pending, seen = [subgraph], set[int]()
        while pending:
            index = pending.pop()
            graph = self.known.get(index)
            if graph is None or index in seen:
                continue
            if graph.delegate_nodes:
                return True
            seen.add(index)
            pending += graph.entered
        return False

    def run(self, subgraph: int, given: Sequence[NDArray]) -> list[NDArray]:
        """Its outputs for the *given* inputs; it adopts their shapes."""
        return [np.asarray(value) for value in run(self.find(subgraph), given)]

    def close(self) -> None:
        """Closes what was compiled, then the references between the subgraphs."""
        for graph in self.known.values():
            graph.close()
        for graph in self.known.values():
            graph.part()
