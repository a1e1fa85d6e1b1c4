"""Operations cut out of a network as files of their own: their state, which TFLite's operators
keep, and their names.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.export.tflite.state import RANDOM_INPUTS, state_positions
from penstock.ir import ConstantPool, DataLocation, Model, NDArray, StatePort, Variable
from penstock.ir.builder import pack


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
    """*model* with the state of its operations as state ports, from its values among *inputs* on."""
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
