"""What all subgraphs of one interpreter share: the file, how it is compiled, network state, and who
looks on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.execution import CompiledModel, State
from penstock.ir import Model, NDArray
from penstock.loaders.tflite.catalog import Catalog
from penstock.runtime.session import compile_model
from penstock.tflite.loading import LoadedFile
from penstock.tflite.transforms import entered, with_every_output, with_input_shapes
from penstock.tflite.views import Guests

if TYPE_CHECKING:
    from penstock.delegates.graph import DelegatedGraph, Subgraphs
    from penstock.tflite.program import Program


class Session:
    """One interpreter's options and state; `compile` is the only way to a program."""

    def __init__(
        self,
        file: LoadedFile,
        options: Mapping[str, Any],
        *,
        preserve: bool,
        compress_zero_points: bool,
        cluster_nodes: bool = True,
        fuse_nodes: bool = True,
    ) -> None:
        self.file, self.preserve = file, preserve
        self._cluster, self._fuse = cluster_nodes, fuse_nodes
        self.allow_buffer_handle_output = False
        self.subgraphs: Subgraphs | None = None
        self.compress_zero_points = compress_zero_points
        self.guests = Guests()
        self._options = dict(options)
        self._state: State | None = None

    @property
    def catalog(self) -> Catalog:
        return self.file.catalog

    def shaped(self, subgraph: int, shapes: Mapping[int, tuple[int, ...]]) -> Model:
        """The model entered through *subgraph*, for full input shapes by position. `ModelError`
        where they do not fit.
        """
        return with_input_shapes(entered(self.file.model, subgraph), shapes)

    def compile(self, model: Model) -> CompiledModel:
        """*model*, all of the file's or a part of it, as the interpreter's options say. Raises what
        compiling does.
        """
        return compile_model(with_every_output(model) if self.preserve else model, **self._options)

    def delegated(self, subgraph: int, model: Model) -> DelegatedGraph:
        """A subgraph that delegates can be added to; *model* is entered through it."""
        from penstock.delegates.graph import DelegatedGraph

        return DelegatedGraph(
            self.catalog.subgraphs[subgraph],
            subgraph,
            model,
            cluster=self._cluster,
            fuse=self._fuse,
            num_threads=self._options.get("num_threads"),
            subgraphs=self.subgraphs,
        )

    def state_for(self, program: Program) -> State | None:
        """The interpreter's State; all its subgraphs share it. None where *program* has no state."""
        if not program.compiled.model.entry.states:
            return None
        if self._state is None:
            self._state = State(program.compiled.model)
        return self._state

    def variable(self, program: Program, variable: int) -> NDArray | None:
        """The present value of a variable, as it lies in the State."""
        state = self.state_for(program)
        return None if state is None else state.get(variable)

    def set_variable(self, program: Program, variable: int, value: NDArray) -> None:
        """Puts *value*, which is taken over, in the place of a variable's."""
        state = self.state_for(program)
        if state is not None:
            state.replace({variable: value})

    def after_fork(self) -> None:
        """Carries the state over into a child process: a lock may have been held in the parent."""
        if self._state is not None:
            old, self._state = self._state, State(self._state.model)
            known = filter(old.is_assigned, range(len(old.model.variables)))
            self._state.replace({v: old.get(v) for v in known})

    def reset(self, variables: Iterable[int]) -> None:
        """Gives *variables* their initial values."""
        state, chosen = self._state, tuple(variables)
        if state is not None and chosen:
            initial = State(state.model)
            state.replace({v: initial.get(v) for v in chosen})
