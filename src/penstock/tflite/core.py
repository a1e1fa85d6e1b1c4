"""What stands behind an interpreter and its signature runners: the graphs, one user at a time, open or closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.errors import ClosedError, StateError
from penstock.tflite import texts
from penstock.tflite.graph import Graph
from penstock.tflite.session import Session
from penstock.tflite.views import Guests


class Core:
    """The subgraphs of one interpreter, each made when first used."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._graphs: dict[int, Graph] = {}
        self._busy = threading.Lock()
        self._closed = False

    @property
    def guests(self) -> Guests:
        """Who refers to the memory."""
        return self.session.guests

    @contextmanager
    def use(self, *, exclusive: bool = False) -> Iterator[Graph]:
        """The main subgraph, for the one call inside the block.

        Raises `StateError` while another thread is in such a block, `ClosedError` after `close`, and, where
        *exclusive* says that the call may move or overwrite memory, `RuntimeError` while anybody refers to it.
        """
        if not self._busy.acquire(blocking=False):
            raise StateError(
                "this interpreter is in use by another thread; give each thread an interpreter of its own"
            )
        try:
            self.check_open()
            if exclusive and self.guests:
                raise RuntimeError(texts.HELD)
            yield self.graph(0)
        finally:
            self._busy.release()

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("interpreter used after close()")

    def graph(self, index: int) -> Graph:
        """The subgraph of that index; `ValueError` with LiteRT's words where there is none."""
        graph = self._graphs.get(index)
        if graph is None:
            count = len(self.session.catalog.subgraphs)
            if not 0 <= index < count:
                raise ValueError(
                    f"Invalid subgraph index {index} exceeds max subgraph index {count}"
                )
            graph = self._graphs[index] = Graph(self.session, index)
        return graph

    def details(self, tensor: int, subgraph: int) -> dict[str, Any]:
        """LiteRT's dictionary for one tensor."""
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
        """Resizes, allocates, sets, runs and gets, by the names of one signature."""
        signature = self.session.catalog.signatures[key]
        with self.use():
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

    def reset_variables(self) -> None:
        """Gives every variable tensor its initial value."""
        for index in {0, *self._graphs}:
            self.graph(index).reset_variables()

    def close(self) -> None:
        """Releases what was compiled; twice is harmless."""
        if self._closed:
            return
        with self.use():
            self._closed = True
            for graph in self._graphs.values():
                graph.close()
