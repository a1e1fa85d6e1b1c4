"""State in a TFLite file: ports as variable tensors or as resource variables.

A port whose state goes straight through one recurrent operation, from zeros, is a variable tensor,
which is how TFLite keeps such state. Every other port is a resource variable: VAR_HANDLE and
READ_VARIABLE before the first operation, ASSIGN_VARIABLE after the last, and CALL_ONCE of a
subgraph that assigns the initial values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.errors import NotExportable, Place
from penstock.ir.builder import pack
from penstock.ir.model import Model
from penstock.ir.operand import DataLocation
from penstock.ir.operation import AttributeValue, Operation
from penstock.ir.subgraph import ConstantPool, StatePort, Variable, constant_bytes
from penstock.ir.types import DType, NDArray

STATE_INPUTS: Final[dict[str, tuple[int, ...]]] = {
    "SVDF": (4,),
    "RNN": (4,),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (4,),
    "BIDIRECTIONAL_SEQUENCE_RNN": (4, 8),
    "LSTM": (18, 19),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (35, 36, 37, 38),
}
"""Positions of the state tensors that TFLite's recurrent operators change in place."""

RANDOM_INPUTS: Final[Mapping[str, int]] = {
    "RANDOM_UNIFORM": 1,
    "RANDOM_STANDARD_NORMAL": 1,
    "MULTINOMIAL": 2,
}
"""How many inputs TFLite's random operators have; the generator's position, which they keep inside,
follows.
"""

BASIC_LSTM_STATES: Final = (1, 4)
BASIC_LSTM_OUTPUTS: Final = 4


def state_positions(kind: str, attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
    """Positions of the state inputs of a recurrent operation; empty for other types."""
    if kind == "LSTM" and attributes.get("kernel_type") == "BASIC":
        return BASIC_LSTM_STATES
    return STATE_INPUTS.get(kind, ())


class SubgraphState(Struct):
    """How one subgraph's state is written."""

    variable_tensors: set[int] = field(default_factory=set)
    """Operands that become variable tensors."""
    dropped: set[int] = field(default_factory=set)
    """New-state outputs, which TFLite's operators do not have."""
    kept_inputs: dict[int, int] = field(default_factory=dict)
    """Operation index to the number of its inputs that TFLite's operator has, where it has
    fewer.
    """
    mutated: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Operation index to the positions of the inputs it changes in place."""
    resources: list[StatePort] = field(default_factory=list)


def ports_by_variable(model: Model) -> Counter[int]:
    """How many state ports each variable has, in all subgraphs."""
    return Counter(p.variable for s in model.subgraphs for p in s.states)


def plan_state(model: Model, index: int, shared: Counter[int]) -> SubgraphState:
    """Decides for subgraph *index*; `NotExportable` for recurrent state that TFLite cannot keep.
    *shared* is `ports_by_variable`, which is the same for all subgraphs.
    """
    subgraph = model.subgraphs[index]
    plan = SubgraphState()
    uses = Counter(i for o in subgraph.operations for i in o.inputs)
    uses.update(subgraph.outputs)
    ports = {p.output: p for p in subgraph.states if p.output is not None and p.input is not None}
    through: set[int] = set()
    for at, operation in enumerate(subgraph.operations):
        own = RANDOM_INPUTS.get(operation.type)
        if own is not None:
            positions = tuple(range(own, len(operation.inputs)))
        else:
            positions = state_positions(operation.type, operation.attributes)
        if not positions:
            continue
        where = Place(index, at, type=operation.type)
        new = operation.outputs[_own_outputs(operation) :]
        if len(new) != len(positions):
            raise NotExportable(
                f"{len(new)} new states for {len(positions)} state inputs", where=where
            )
        for position, output in zip(positions, new, strict=True):
            port = ports.get(output)
            if port is None or not _fits(model, port, operation, position, uses, shared):
                raise NotExportable(
                    f"TFLite's {operation.type} keeps its state to itself, from zeros on; "
                    "here it is made or used elsewhere",
                    where=where,
                )
            if own is None:
                plan.variable_tensors.add(operation.inputs[position])
            through.add(port.variable)
        plan.dropped.update(new)
        if own is None:
            plan.mutated[at] = positions
        else:
            plan.kept_inputs[at] = own
    plan.resources = [p for p in subgraph.states if p.variable not in through]
    for find in (_type_fault, _size_fault):
        for port in plan.resources:
            variable = model.variables[port.variable]
            if fault := find(variable):
                raise NotExportable(f"variable {variable.name!r} {fault}", where=Place(index))
    return plan


def _type_fault(variable: Variable) -> str:
    if variable.dtype is DType.STRING:
        return "holds strings, which TFLite's cannot"
    return "" if variable.shape is not None else "has no known rank, which TFLite has no form for"


def _size_fault(variable: Variable) -> str:
    """A variable that has an initial value, which no constant could hold, has no form."""
    held = variable.value is not None or variable.location is not None
    unsized = variable.assigned and not held and None in (variable.shape or ())
    return "starts at zeros of unknown size, which TFLite has no form for" if unsized else ""


def _own_outputs(operation: Operation) -> int:
    """How many outputs TFLite's operator has; the new states follow them."""
    if operation.attributes.get("kernel_type") == "BASIC":
        return BASIC_LSTM_OUTPUTS
    return 2 if operation.attributes.get("merge_outputs") is False else 1


def _fits(
    model: Model,
    port: StatePort,
    operation: Operation,
    position: int,
    uses: Counter[int],
    shared: Counter[int],
) -> bool:
    return (
        position < len(operation.inputs)
        and operation.inputs[position] == port.input
        and uses[port.input] == 1
        and port.output is not None
        and uses[port.output] == 1
        and shared[port.variable] == 1
        and starts_at_zero(model, model.variables[port.variable])
    )


def starts_at_zero(model: Model, variable: Variable) -> bool:
    """Whether TFLite's reset of a variable tensor gives the initial value: zero, for int8 the zero
    point.
    """
    zero = 0
    if variable.dtype is DType.INT8 and variable.quantization is not None:
        zero = variable.quantization.zero_point % 256
    if variable.value is None and variable.location is None:
        return zero == 0
    data = constant_bytes(model.pools, variable)
    return data == bytes([zero]) * len(data)


def positions_in_file(model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which of *model*'s inputs and outputs the file of `with_state` has: those that are no
    operator's own state.
    """
    pairs = state_pairs(model)
    into, out = {i for i, _ in pairs}, {o for _, o in pairs}
    entry = model.entry
    return (
        tuple(k for k, i in enumerate(entry.inputs) if i not in into),
        tuple(k for k, o in enumerate(entry.outputs) if o not in out),
    )


def state_pairs(model: Model) -> list[tuple[int, int]]:
    """(input, output) of the state that TFLite's operators keep to themselves."""
    entry = model.entry
    pairs = []
    for operation in entry.operations:
        own = RANDOM_INPUTS.get(operation.type)
        positions = state_positions(operation.type, operation.attributes)
        if own is not None:
            positions = tuple(range(own, len(operation.inputs)))
        states = [operation.inputs[p] for p in positions]
        after = operation.outputs[len(operation.outputs) - len(states) :]
        pairs += [
            (before, new)
            for before, new in zip(states, after, strict=True)
            if before in entry.inputs and new in entry.outputs
        ]
    return pairs


def with_state(model: Model, inputs: Sequence[NDArray]) -> Model:
    """*model* with the state of its operations as state ports; *inputs* has the initial values."""
    entry = model.entry
    pairs = state_pairs(model)
    if not pairs:
        return model
    values = dict(zip(entry.inputs, inputs, strict=True))
    pools, variables = list(model.pools), []
    for given, _ in pairs:
        operand, value = entry.operands[given], values[given]
        data, _ = pack(value, operand.dtype)
        location = None
        if any(data):
            location = DataLocation(len(pools), 0, len(data))
            pools.append(ConstantPool(memoryview(data)))
        variables.append(
            Variable(
                operand.name, operand.dtype, value.shape, operand.quantization, location=location
            )
        )
    kept_in, kept_out = {i for i, _ in pairs}, {o for _, o in pairs}
    subgraph = replace(
        entry,
        inputs=(*(i for i in entry.inputs if i not in kept_in), *(i for i, _ in pairs)),
        outputs=(*(o for o in entry.outputs if o not in kept_out), *(o for _, o in pairs)),
        states=tuple(StatePort(at, i, o) for at, (i, o) in enumerate(pairs)),
    )
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = subgraph
    return replace(
        model, subgraphs=tuple(subgraphs), pools=tuple(pools), variables=tuple(variables)
    )


def named(model: Model) -> Model:
    """*model* with a name for each operand of its entry subgraph, and none twice: TFLite reads
    files without names, or where an input and an output share one, but not every reader of its
    files does.
    """
    entry, taken = model.entry, set[str]()
    operands = []
    for index, operand in enumerate(entry.operands):
        name = operand.name or f"tensor_{index}"
        while name in taken:
            name += f"_{index}"
        taken.add(name)
        operands.append(operand if name == operand.name else replace(operand, name=name))
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(entry, operands=tuple(operands))
    return replace(model, subgraphs=tuple(subgraphs))
