"""One subgraph compiled for one set of input shapes, and the mapping of its operands to the file's
tensors.

READ_VARIABLE and DENSIFY write tensors without a separate operand: lowering replaces their values
by those of other operands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import InvalidOperand, counted
from penstock.execution import CompiledModel
from penstock.execution.bound_run import BoundRun
from penstock.export.tflite.fields import RANDOM_INPUTS
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.loaders.tflite.catalog import SubgraphEntry

if TYPE_CHECKING:
    from penstock.delegates.steps import DelegatedModel, DelegatedRun


ENTERING: Final = frozenset({"IF", "WHILE", "CALL_ONCE"})
"""Operators whose subgraphs may assign any variable."""


class Holders(Struct):
    """By tensor: another tensor, a variable, or a sparse constant that holds its value."""

    tensors: dict[int, int] = {}
    variables: dict[int, str] = {}
    dense: dict[int, int] = {}


def holders(catalog: SubgraphEntry, computed: Collection[int]) -> Holders:
    """The holders of values in one subgraph. *computed* are the operators that a run executes."""
    found = Holders()
    handles: dict[int, str] = {}
    assigned: dict[str, int] = {}
    unsure = False
    for index, operator in enumerate(catalog.operators):
        inputs, outputs = operator.inputs, operator.outputs
        name = handles.get(inputs[0]) if inputs else None
        if operator.name == "VAR_HANDLE" and outputs:
            handles[outputs[0]] = operator.resource
        elif operator.name == "DENSIFY" and inputs and outputs:
            found.dense[outputs[0]] = inputs[0]
        elif operator.name in ENTERING and index in computed:
            unsure = True
            assigned.clear()
        elif name is None:
            continue
        elif operator.name == "ASSIGN_VARIABLE" and len(inputs) > 1:
            assigned[name] = inputs[1]
        elif operator.name == "READ_VARIABLE" and outputs:
            if name in assigned:
                found.tensors[outputs[0]] = assigned[name]
            elif not unsure:
                found.variables[outputs[0]] = name
    return found


class Program:
    """A compiled model as the interpreter sees it.

    *inputs* are the tensors of a run's inputs, in order. *outputs* are those of its outputs, None
    if the tensor's value is in another place (an input, a constant, a variable, an earlier output).
    The first *own* outputs are the subgraph's. *variables* maps variable tensors to the model's
    variables. *shapes* and *types* describe computed tensors; an operator may give another type
    than the file. *holders* locate the values of tensors without an operand.
    """

    def __init__(
        self, compiled: CompiledModel | DelegatedModel, catalog: SubgraphEntry, subgraph: int
    ) -> None:
        self.compiled = compiled
        model, entry = compiled.model, compiled.model.entry
        self.inputs = given_tensors(catalog, len(model.inputs))
        own = _stored(catalog.outputs, catalog)
        self.own = len(own)
        ordinary = entry.ordinary_outputs
        if len(self.inputs) != len(model.inputs) or len(own) > len(ordinary):
            takes, gives = counted(len(model.inputs), "input"), counted(len(ordinary), "output")
            raise InvalidOperand(
                f"the model takes {takes} and gives {gives}, the file has {len(self.inputs)} and "
                f"{len(own)}",
                where=f"subgraph {subgraph}",
            )
        computed = {o.origin.index for o in entry.operations if o.origin is not None}
        self.holders = holders(catalog, computed)
        before = _before(model, self.holders)
        more = [
            before.get(i) if i in before else _tensor(entry.operands[i], subgraph)
            for i in ordinary[len(own) :]
        ]
        self.outputs: list[int | None] = []
        held = [i for i, t in enumerate(catalog.tensors) if t.data is not None or t.is_variable]
        elsewhere: set[int | None] = {*self.inputs, *held}
        for tensor in (*own, *more):
            self.outputs.append(None if tensor in elsewhere else tensor)
            elsewhere.add(tensor)
        self.static = [
            static_shape(o.shape) if o.dtype is not DType.STRING else None for o in model.outputs
        ]
        self.variables = {
            tensor: port.variable
            for port in entry.states
            if port.input is not None
            and (tensor := _tensor(model.operands[port.input], subgraph)) is not None
            and catalog.tensors[tensor].is_variable
        }
        # The variables with the state of random operations, which LiteRT resets.
        random = {
            i
            for o in model.operations
            if o.type in RANDOM_INPUTS
            for i in o.inputs[RANDOM_INPUTS[o.type] :]
        }
        self.generators = tuple(p.variable for p in entry.states if p.input in random)
        self.has_state = bool(entry.states)
        self._subgraph = subgraph
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.types: dict[int, DType] = {}
        computed_here = [(_tensor(o, subgraph), o) for o in model.operands if not o.is_constant]
        for tensor, operand in (*computed_here, *zip(own, model.outputs, strict=False)):
            if tensor is not None:
                self.types[tensor] = operand.dtype
                if (shape := static_shape(operand.shape)) is not None:
                    self.shapes[tensor] = shape

    def bind(
        self, given: Sequence[NDArray], out: Sequence[NDArray | None] | None
    ) -> BoundRun | DelegatedRun:
        """Runs on these arrays. Raises as the model's first run on them would."""
        if isinstance(self.compiled, CompiledModel):
            return BoundRun(self.compiled.executable, given, out)
        return self.compiled.bind(given, out)

    def dense_constant(self, tensor: int) -> NDArray | None:
        """The dense value of a constant tensor, read-only."""
        model = self.compiled.model
        for operand in model.operands:
            if operand.is_constant and _tensor(operand, self._subgraph) == tensor:
                return model.constant(operand)
        return None


def given_tensors(catalog: SubgraphEntry, count: int) -> list[int]:
    """The tensors of the model's *count* inputs. A repeated tensor may be one input."""
    listed = _stored(catalog.inputs, catalog)
    return listed if len(listed) == count else list(dict.fromkeys(listed))


def _stored(indexes: tuple[int, ...], catalog: SubgraphEntry) -> list[int]:
    """The tensors that hold values. Handles of resources do not reach the model."""
    return [i for i in indexes if catalog.tensors[i].dtype is not DType.RESOURCE]


def _tensor(operand: Operand, subgraph: int) -> int | None:
    origin = operand.origin
    return origin.index if origin is not None and origin.subgraph == subgraph else None


def _before(model: Model, found: Holders) -> dict[int, int]:
    """State inputs, with a tensor that reads their value and holds it for others."""
    names = [v.name for v in model.variables]
    before: dict[int, int] = {}
    for port in model.entry.states:
        name = model.variables[port.variable].name
        readers = [t for t, read in found.variables.items() if read == name]
        if port.input is None or not readers or names.count(name) > 1:
            continue
        before[port.input] = readers[0]
        found.tensors.update(dict.fromkeys(readers[1:], readers[0]))
    return before
