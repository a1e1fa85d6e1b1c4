"""State in a TFLite file: ports become variable tensors or resource variables.

A port is a variable tensor if its state starts from zeros and only one recurrent operation reads
and writes it. TFLite stores such state so. Every other port is a resource variable: VAR_HANDLE and
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
"""Number of inputs of TFLite's random operators. The generator's position, which TFLite stores
inside the operator, comes after them.
"""

BASIC_LSTM_STATES: Final = (1, 4)
BASIC_LSTM_OUTPUTS: Final = 4


def state_positions(kind: str, attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
    """Positions of the state inputs of a recurrent operation; empty for other types."""
    if kind == "LSTM" and attributes.get("kernel_type") == "BASIC":
        return BASIC_LSTM_STATES
    return STATE_INPUTS.get(kind, ())


class SubgraphState(Struct):
    """The form in which one subgraph's state is written."""

    variable_tensors: set[int] = field(default_factory=set)
    """Operands that are written as variable tensors."""
    dropped: set[int] = field(default_factory=set)
    """New-state outputs, which TFLite's operators do not have."""
    kept_inputs: dict[int, int] = field(default_factory=dict)
    """Number of inputs of TFLite's operator, by operation index, for operators with fewer
    inputs.
    """
    mutated: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Positions of the inputs that an operation changes in place, by operation index."""
    resources: list[StatePort] = field(default_factory=list)


def ports_by_variable(model: Model) -> Counter[int]:
    """The number of state ports of each variable, in all subgraphs."""
    return Counter(p.variable for s in model.subgraphs for p in s.states)


def plan_state(model: Model, index: int, shared: Counter[int]) -> SubgraphState:
    """The form for subgraph *index*. Raises `NotExportable` for recurrent state that TFLite cannot
    store. *shared* is `ports_by_variable`, which is the same for all subgraphs.
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
    """Raises an error for a variable whose initial value no constant can hold."""
    held = variable.value is not None or variable.location is not None
    unsized = variable.assigned and not held and None in (variable.shape or ())
    return "starts at zeros of unknown size, which TFLite has no form for" if unsized else ""


def _own_outputs(operation: Operation) -> int:
    """The number of outputs of TFLite's operator. The new states come after them."""
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
    """The inputs and outputs of *model* that the file of `with_state` has: all but the state of
    operators.
    """
    pairs = state_pairs(model)
    into, out = {i for i, _ in pairs}, {o for _, o in pairs}
    entry = model.entry
    return (
        tuple(k for k, i in enumerate(entry.inputs) if i not in into),
        tuple(k for k, o in enumerate(entry.outputs) if o not in out),
    )


def state_pairs(model: Model) -> list[tuple[int, int]]:
    """(input, output) of the state that TFLite's operators store themselves."""
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
    """*model* with the state of its operations as state ports. *inputs* has the initial values."""
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
    """*model* with a unique name for each operand of its entry subgraph.

    TFLite accepts files without names, or with an input and an output of the same name. Some other
    readers of its files do not.
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
