"""State in a TFLite file: ports become variable tensors or resource variables.

A port is a variable tensor if its state starts from zeros and only one recurrent operation reads
and writes it. TFLite stores such state so. Every other port is a resource variable: VAR_HANDLE and
READ_VARIABLE before the first operation, ASSIGN_VARIABLE after the last, and CALL_ONCE of a
subgraph that assigns the initial values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.errors import NotExportable, Place
from penstock.export.tflite.fields import RANDOM_INPUTS, state_positions
from penstock.ir.builder import pack
from penstock.ir.model import Model
from penstock.ir.operand import DataLocation
from penstock.ir.operation import Operation
from penstock.ir.subgraph import ConstantPool, StatePort, Variable, constant_bytes
from penstock.ir.types import DType, NDArray

BASIC_LSTM_OUTPUTS = 4


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
    ports = {
        p.output: p
        for p in subgraph.states
        if p.output is not None and uses[p.output] == 1 == shared[p.variable]
    }
    through: set[int] = set()
    for at, operation in enumerate(subgraph.operations):
        positions = _state_inputs(operation)
        if not positions:
            continue
        own = RANDOM_INPUTS.get(operation.type)
        where = Place(index, at, type=operation.type)
        new = operation.outputs[_own_outputs(operation) :]
        if len(new) != len(positions):
            raise NotExportable(
                f"{len(new)} new states for {len(positions)} state inputs", where=where
            )
        for position, output in zip(positions, new, strict=True):
            port = ports.get(output)
            before = operation.inputs[position] if position < len(operation.inputs) else None
            if (
                port is None
                or before is None
                or port.input != before
                or uses[before] != 1
                or not starts_at_zero(model, model.variables[port.variable])
            ):
                raise NotExportable(
                    f"TFLite's {operation.type} keeps its state to itself, from zeros on; another "
                    "operation of the model makes or uses this state",
                    where=where,
                )
            if own is None:
                plan.variable_tensors.add(before)
            through.add(port.variable)
        plan.dropped.update(new)
        if own is None:
            plan.mutated[at] = positions
        else:
            plan.kept_inputs[at] = own
    plan.resources = [p for p in subgraph.states if p.variable not in through]
    variables = [model.variables[port.variable] for port in plan.resources]
    for variable in sorted(variables, key=lambda v: v.dtype is not DType.STRING):
        if fault := _variable_fault(variable):
            raise NotExportable(f"variable {variable.name!r} {fault}", where=Place(index))
    return plan


def _state_inputs(operation: Operation) -> tuple[int, ...]:
    """Positions of the inputs whose values TFLite's operator stores itself."""
    own = RANDOM_INPUTS.get(operation.type)
    if own is not None:
        return tuple(range(own, len(operation.inputs)))
    return state_positions(operation.type, operation.attributes)


def _variable_fault(variable: Variable) -> str:
    """Why TFLite has no form for a variable; empty if it has."""
    if variable.dtype is DType.STRING:
        return "holds strings, which TFLite's cannot"
    if variable.shape is None:
        return "has no known rank, which TFLite has no form for"
    held = variable.value is not None or variable.location is not None
    if variable.assigned and not held and None in variable.shape:
        return "starts at zeros of unknown size, which TFLite has no form for"
    return ""


def _own_outputs(operation: Operation) -> int:
    """The number of outputs of TFLite's operator. The new states come after them."""
    if operation.attributes.get("kernel_type") == "BASIC":
        return BASIC_LSTM_OUTPUTS
    return 2 if operation.attributes.get("merge_outputs") is False else 1


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
        states = [operation.inputs[p] for p in _state_inputs(operation)]
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
        name, quantization = operand.name, operand.quantization
        variables.append(
            Variable(name, operand.dtype, value.shape, quantization, location=location)
        )
    kept_in, kept_out = {i for i, _ in pairs}, {o for _, o in pairs}
    stateful = replace(
        entry,
        inputs=(*(i for i in entry.inputs if i not in kept_in), *(i for i, _ in pairs)),
        outputs=(*(o for o in entry.outputs if o not in kept_out), *(o for _, o in pairs)),
        states=tuple(StatePort(at, i, o) for at, (i, o) in enumerate(pairs)),
    )
    return model.with_entry(stateful, pools=tuple(pools), variables=tuple(variables))


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
    return model.with_entry(replace(entry, operands=tuple(operands)))
