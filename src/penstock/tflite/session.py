"""The state that all subgraphs of one interpreter share, and the models that it compiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from penstock.errors import InputError, ModelError, PlacementError
from penstock.execution.compiled import CompiledModel
from penstock.ir import DType, Model
from penstock.ir.operand import Lifetime
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import agrees
from penstock.loaders.tflite.catalog import Catalog, SubgraphEntry
from penstock.partitioning.policy import Policy
from penstock.runtime.compile_arguments import CompileArguments, cache_info
from penstock.runtime.compiling import ModelFile, compile_model
from penstock.runtime.session import Kept
from penstock.tflite import texts
from penstock.tflite.loading import LoadedFile
from penstock.tflite.values import Guests

if TYPE_CHECKING:
    from penstock.delegates.graph import DelegatedGraph, Subgraphs
    from penstock.execution.state import State
    from penstock.runtime.keeping import RestoredPlan
    from penstock.tflite.program import Program


def entered(model: Model, subgraph: int) -> Model:
    """The same model, entered through *subgraph*."""
    return model if subgraph == model.main else replace(model, main=subgraph)


def with_input_shapes(model: Model, shapes: Mapping[int, tuple[int, ...]]) -> Model:
    """*model* with full shapes for inputs, by position among `model.inputs`, and all inferred
    shapes.

    If a shape contradicts the declared one (TFLite's non-strict resize), the declared shapes of
    everything that depends on it are ignored. Raises `ShapeMismatch` if shapes do not fit.
    """
    from penstock.ir.infer import infer_shapes

    entry = model.entry
    changed = {
        entry.ordinary_inputs[position]
        for position, shape in shapes.items()
        if (declared := entry.operands[entry.ordinary_inputs[position]].shape) is None
        or not agrees(declared, shape)
    }
    if changed:
        touched = set(changed)
        for operation in entry.operations:
            if not touched.isdisjoint(operation.inputs):
                touched.update(operation.outputs)
        touched -= changed
        operands = tuple(
            replace(o, shape=None) if i in touched else o for i, o in enumerate(entry.operands)
        )
        model = _replace_entry(model, replace(entry, operands=operands))
    return infer_shapes(model, shapes)


def open_shapes(subgraph: SubgraphEntry) -> dict[int, tuple[int, ...]] | None:
    """The shapes of the inputs of *subgraph*, by position, if the file leaves one open.

    None if it does not, and if a position may be of another input of the model.
    """
    inputs, tensors = subgraph.inputs, subgraph.tensors
    if len(set(inputs)) != len(inputs) or not all(0 <= i < len(tensors) for i in inputs):
        return None
    given = [tensors[i] for i in inputs]
    if any(t.dtype in (DType.RESOURCE, DType.VARIANT) for t in given):
        return None
    if not any(t.signature is not None and -1 in t.signature for t in given):
        return None
    return {at: tensor.shape for at, tensor in enumerate(given)}


def with_every_output(model: Model) -> Model:
    """*model* with further outputs: all computed tensors of the file, and variables before."""
    entry = model.entry
    own = entry.ordinary_outputs
    states = entry.outputs[len(own) :]
    operands = list(entry.operands)
    computed = [
        i
        for operation in entry.operations
        for i in operation.outputs
        if i not in own
        and operands[i].origin is not None
        and operands[i].dtype not in (DType.RESOURCE, DType.VARIANT)
    ]
    inputs = [p.input for p in entry.states if p.input is not None]
    before = [i for i in inputs if operands[i].origin is None]
    for index in computed:
        operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)
    outputs = (*own, *computed, *before, *states)
    return _replace_entry(model, replace(entry, operands=tuple(operands), outputs=outputs))


def _replace_entry(model: Model, entry: Subgraph) -> Model:
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = entry
    return replace(model, subgraphs=tuple(subgraphs))


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
        self._keeps = False
        self._looked_up: tuple[ModelFile, RestoredPlan] | Literal[False] | None = None
        self._open = open_shapes(file.catalog.subgraphs[0])
        """The shapes to compile the file for, because it leaves some open; None if it does not."""
        self._opened: Model | None = None
        """The model with these shapes, whose plan is to be kept."""

    @property
    def catalog(self) -> Catalog:
        return self.file.catalog

    @property
    def model(self) -> Model:
        """The file's model, from the kept plan if there is one. Raises `ModelError`."""
        kept = self._kept()
        return self.file.model if kept is None else kept.model

    def shaped(self, subgraph: int, shapes: Mapping[int, tuple[int, ...]]) -> Model:
        """The model entered through *subgraph* with input shapes. Raises `ModelError`."""
        if (kept := self._kept()) is not None:
            planned = kept.plan.model
            given = planned.inputs if subgraph == planned.main else ()
            if given and all(given[at].shape == shape for at, shape in shapes.items()):
                return planned
        whole = self.model
        model = with_input_shapes(entered(whole, subgraph), shapes)
        if self._keeps and subgraph == whole.main and self._are_own(shapes, whole):
            self._opened = model
        return model

    def _are_own(self, shapes: Mapping[int, tuple[int, ...]], whole: Model) -> bool:
        """Whether a compile of the file alone is for these input *shapes*."""
        given = whole.inputs
        if self._open is None:
            return all(given[at].shape == shape for at, shape in shapes.items())
        agree = (agrees(given[at].shape, shape) for at, shape in shapes.items())
        return shapes == self._open and all(agree)

    def compile(self, model: Model) -> CompiledModel:
        """Compiles *model*, or a part, by the interpreter's options."""
        if self._looked_up and model is self._looked_up[1].plan.model:
            return compile_model(self._looked_up[0], shapes=self._open, **self._options)
        if model is self._opened:
            return compile_model(self.file.model, shapes=self._open, **self._options)
        return compile_model(with_every_output(model) if self.preserve else model, **self._options)

    def _kept(self) -> RestoredPlan | None:
        """The plan that is kept for the file and the interpreter's options; looked up once."""
        if self._looked_up is None:
            content = ModelFile(self.file.pool)
            kept = self._found(content)
            self._keeps = kept.case is not None
            self._looked_up = False if kept.restored is None else (content, kept.restored)
        return self._looked_up[1] if self._looked_up else None

    def _found(self, content: ModelFile) -> Kept:
        policy = self._options.get("policy") or Policy()
        if self.preserve or policy.shadow:
            return Kept()
        try:
            info, uncached = cache_info(self._options.get("cache", True))
        except InputError:  # the compile raises it
            return Kept()
        arguments = CompileArguments(
            self._options.get("devices"),
            num_threads=self._options.get("num_threads"),
            shapes=self._open,
            policy=policy,
            cache=info,
            uncached=uncached,
        )
        return content.kept(arguments)

    def reason(self, error: Exception, subgraph: int) -> str:
        """The text of the RuntimeError for *error*: LiteRT's message if known, then Penstock's."""
        text, operators = str(error), self.catalog.subgraphs[subgraph].operators
        if isinstance(error, texts.INCONSISTENCIES):
            return f"{texts.INCONSISTENT}\n{text}"
        place = self._operator(error, subgraph)
        if place is None or not 0 <= place < len(operators):
            return text
        operator = operators[place]
        # No device runs a custom operator that has no kernel.
        lacks_kernel = operator.custom and isinstance(error, PlacementError)
        words = texts.unresolved if lacks_kernel else texts.unprepared
        return f"{words(operator.name, place)}\n{text}"

    def _operator(self, error: Exception, subgraph: int) -> int | None:
        """The file's number of the operator that an error is about, if it is one of *subgraph*."""
        where = error.where if isinstance(error, ModelError | PlacementError) else None
        if where is None or where.subgraph != subgraph:
            return None
        if where.operation is None:
            return where.operator
        try:
            operations = self.file.model.subgraphs[subgraph].operations
        except ModelError:
            return None
        index = where.operation
        origin = operations[index].origin if index < len(operations) else None
        return None if origin is None else origin.index

    def delegated(self, subgraph: int, model: Model) -> DelegatedGraph:
        """A subgraph to which delegates can be added; *model* is entered through it."""
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
        """The State that all subgraphs share; None if *program* has none."""
        if not program.compiled.model.entry.states:
            return None
        if self._state is None:
            from penstock.execution.state import State

            self._state = State(program.compiled.model)
        return self._state

    def after_fork(self) -> None:
        """Moves the state to a child process, because the parent may have held a lock.

        The devices of a kept plan are found again.
        """
        self._looked_up = None
        if self._state is not None:
            from penstock.execution.state import State

            old, self._state = self._state, State(self._state.model)
            known = filter(old.is_assigned, range(len(old.model.variables)))
            self._state.replace({v: old.get(v) for v in known})

    def reset(self, variables: Iterable[int]) -> None:
        """Gives *variables* their initial values."""
        state, chosen = self._state, tuple(variables)
        if state is not None and chosen:
            initial = type(state)(state.model)
            state.replace({v: initial.get(v) for v in chosen})
