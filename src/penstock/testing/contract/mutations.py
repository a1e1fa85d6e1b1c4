"""Every mutation of a valid model or request that drivers must reject (NNAPI section 5.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import hal, ir
from penstock.errors import InvalidArgument
from penstock.ir.operations import spec_of
from penstock.ir.types import is_static
from penstock.testing.contract.cases import Case
from penstock.testing.contract.promise import refused, require
from penstock.testing.contract.trial import PLAIN, Trial

ModelMutation: TypeAlias = tuple[str, Callable[[], ir.Model]]
"""A mutation and its description: `ModelError`, or a model that no driver may accept."""

Change: TypeAlias = tuple[str, dict[str, Any]]
"""A description, and the fields that change. A quantisation is a tuple of its fields."""

WRONG: Final[dict[str, Any]] = {
    "int": "1",
    "subgraph": 1.0,
    "float": "1.0",
    "bool": 1,
    "enum": "NO_SUCH_CHOICE",
    "str": b"text",
    "bytes": "text",
    "ints": (1.5,),
    "subgraphs": (1.5,),
    "floats": ("1",),
}
"""Attribute values of a wrong kind, by the attribute's kind."""


def model_mutations(model: ir.Model) -> Iterator[ModelMutation]:
    """Every mutation of *model*'s entry subgraph, one at a time."""
    for main in (len(model.subgraphs), -1):
        yield f"main subgraph {main}", partial(replace, model, main=main)
    if model.pools:
        yield "no pools", partial(replace, model, pools=())
    for name, changes in _lists(model.entry):
        yield name, partial(_with_entry, model, **changes)
    for index, operand in enumerate(model.operands):
        for name, changes in _operand(operand):
            yield f"operand {index}: {name}", partial(_with, model, "operands", index, changes)
    for index, operation in enumerate(model.operations):
        for name, changes in _operation(model.entry, operation):
            yield f"operation {index}: {name}", partial(_with, model, "operations", index, changes)


def cycles(model: ir.Model) -> Iterator[ModelMutation]:
    """*model* with an operation that reads its own result, or that of a later operation."""
    operations = model.operations
    for index, operation in enumerate(operations):
        for later in range(index, len(operations)):
            for output in operations[later].outputs[:1]:
                reads = not set(operations[later].inputs).isdisjoint(operation.outputs)
                if later == index or reads:
                    changes = {"inputs": (output, *operation.inputs[1:])}
                    name = f"operation {index} reads what operation {later} writes"
                    yield name, partial(_with, model, "operations", index, changes)


def _with_entry(model: ir.Model, **changes: Any) -> ir.Model:
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(model.entry, **changes)
    return replace(model, subgraphs=tuple(subgraphs))


def _with(
    model: ir.Model, part: Literal["operands", "operations"], index: int, changes: dict[str, Any]
) -> ir.Model:
    if "quantization" in changes:
        changes = {"quantization": ir.Quantization(*changes["quantization"])}
    every = list(getattr(model, part))
    every[index] = replace(every[index], **changes)
    return _with_entry(model, **{part: tuple(every)})


def _lists(entry: ir.Subgraph) -> Iterator[Change]:
    inputs, outputs, operations = entry.inputs, entry.outputs, entry.operations
    for bad in (len(entry.operands), -1, 2**40):
        yield f"input {bad}", {"inputs": (*inputs, bad)}
        yield f"output {bad}", {"outputs": (*outputs, bad)}
    yield "an input twice", {"inputs": (inputs[0], *inputs)}
    for index, operand in enumerate(entry.operands):
        match operand.lifetime:
            case ir.Lifetime.SUBGRAPH_INPUT:
                rest = tuple(i for i in inputs if i != index)
                yield f"input {index} not listed", {"inputs": rest}
            case ir.Lifetime.SUBGRAPH_OUTPUT:
                rest = tuple(i for i in outputs if i != index)
                yield f"output {index} not listed", {"outputs": rest}
            case ir.Lifetime.TEMPORARY_VARIABLE:
                yield f"{index} listed as output", {"outputs": (*outputs, index)}
            case _:
                yield f"{index} listed as input", {"inputs": (*inputs, index)}
    for index, operation in enumerate(operations):
        others = (*operations[:index], *operations[index + 1 :])
        yield f"operation {index} left out", {"operations": others}
        yield f"operation {index} twice", {"operations": (*operations, operation)}
        if {i for o in others[index:] for i in o.inputs} & set(operation.outputs):
            yield f"operation {index} too late", {"operations": (*others, operation)}


def _operand(operand: ir.Operand) -> Iterator[Change]:
    for lifetime in ir.Lifetime:
        if lifetime is not operand.lifetime:
            yield f"lifetime {lifetime.value}", {"lifetime": lifetime}
    if not operand.has_value:
        return
    shape = operand.shape or ()
    yield "type string", {"dtype": ir.DType.STRING}
    yield "negative dimension", {"shape": (*shape, -1)}
    yield "too many dimensions", {"shape": (1,) * 65}
    yield "a size beyond 64 bits", {"shape": (2**40, 2**40)}
    for scales, zero_points, dimension in (
        ((-1.0,), (0,), None),
        ((math.nan,), (0,), None),
        ((math.inf,), (0,), None),
        ((1.0, 1.0), (0, 0), None),
        ((1.0,), (), None),
        ((), (), None),
        ((1.0,), (0,), len(shape)),
        ((1.0,), (0,), -1),
    ):
        name = f"scales {scales}, zero points {zero_points}, dimension {dimension}"
        yield name, {"quantization": (scales, zero_points, dimension)}
    if operand.dtype in {ir.DType.INT8, ir.DType.UINT8, ir.DType.INT16}:
        yield "zero point out of range", {"quantization": ((1.0,), (70000,), None)}
    if (value := operand.value) is not None:
        yield "a byte less", {"value": value[:-1]}
        yield "a byte more", {"value": value + b"\0"}
        yield "value and location", {"location": ir.DataLocation(0, 0, len(value))}
        yield "no value", {"value": None}
    if (at := operand.location) is not None:
        for name, place in (
            ("pool", {"pool": at.pool + 64}),
            ("negative pool", {"pool": -1}),
            ("offset", {"offset": 2**62}),
            ("negative offset", {"offset": -8}),
            ("length", {"length": at.length - 1}),
            ("negative length", {"length": -at.length}),
        ):
            yield f"location: {name}", {"location": replace(at, **place)}


def _operation(entry: ir.Subgraph, operation: ir.Operation) -> Iterator[Change]:
    count, spec = len(entry.operands), spec_of(operation)
    inputs, outputs = operation.inputs, operation.outputs
    yield "unknown type", {"type": "NO_SUCH_OPERATION"}
    for at in range(len(inputs)):
        for bad in (count, -1, *outputs):
            yield f"input {at} is {bad}", {"inputs": (*inputs[:at], bad, *inputs[at + 1 :])}
    for at in range(len(outputs)):
        for bad in (count, -1, *entry.inputs):
            yield f"output {at} is {bad}", {"outputs": (*outputs[:at], bad, *outputs[at + 1 :])}
    yield "no inputs", {"inputs": ()}
    yield "no outputs", {"outputs": ()}
    if len(inputs) == len(spec.inputs):
        yield "an input more", {"inputs": (*inputs, inputs[0])}
    yield "an output twice", {"outputs": (*outputs, outputs[0])}
    attributes = dict(operation.attributes)
    unknown = ir.Attributes({**attributes, "no_such_attribute": 1})
    yield "unknown attribute", {"attributes": unknown}
    for row in spec.attributes:
        wrong = ir.Attributes({**attributes, row.name: WRONG[row.kind]})
        yield f"attribute {row.name}", {"attributes": wrong}


def refuse_mutations(
    trial: Trial, execute: Callable[[hal.Request, hal.ExecutionConfig], object], what: str
) -> None:
    """*execute* must reject each mutation of *trial*'s request with `InvalidArgument`, and write
    nothing.
    """
    before = trial.snapshot()
    for name, request in request_mutations(trial):
        with refused(f"{what} ({trial.kind}), {name}", InvalidArgument):
            execute(request, PLAIN)
    require(trial.snapshot() == before, f"{what}: a refused run wrote memory")


def mutated_cases(cases: Sequence[Case]) -> list[Case]:
    """Few of *cases*, with each signature that matters to `request_mutations`.

    The mutations of a request depend on the number of inputs and of outputs. Those of an argument
    depend on its kind, on its rank, and on whether it is an input and has a known shape. Each of
    these that occurs in *cases* occurs in the cases returned. Element types and operations make no
    difference.
    """
    signatures = [_signature(case) for case in cases]
    left = set[object]().union(*signatures)
    chosen = []
    while left:
        best = max(range(len(cases)), key=lambda index: len(signatures[index] & left))
        chosen.append(cases[best])
        left -= signatures[best]
    return chosen


def _signature(case: Case) -> set[object]:
    entry = case.model.entry
    found: set[object] = {(len(entry.inputs), len(entry.outputs))}
    for place, index in enumerate((*entry.inputs, *entry.outputs)):
        shape, is_input = entry.operands[index].shape, place < len(entry.inputs)
        rank = None if shape is None else len(shape)
        # In a `mixed` trial the place decides on the kind of the argument.
        found.add((is_input, place % 2, rank, is_static(shape)))
    return found


def request_mutations(trial: Trial) -> Iterator[tuple[str, hal.Request]]:
    """Every mutation of *trial*'s request, one at a time. Each violates
    `penstock.hal.validate_request`.
    """
    request = trial.request
    for side, arguments in (("input", request.inputs), ("output", request.outputs)):
        for index in range(len(arguments)):
            rest = arguments[:index] + arguments[index + 1 :]
            yield f"{side} {index} left out", replace(request, **{f"{side}s": rest})
        yield f"an {side} more", replace(request, **{f"{side}s": (*arguments, arguments[0])})
    count, every = len(request.inputs), (*request.inputs, *request.outputs)
    if any(isinstance(a, hal.PoolArgument) for a in every):
        yield "no pools", replace(request, pools=())
    for place, argument in enumerate(every):
        is_input = place < count
        label = f"input {place}" if is_input else f"output {place - count}"
        sized = is_input or is_static(trial.operands[place - count].shape)
        for name, changed in _argument(argument, is_input=is_input, sized=sized):
            yield f"{label}: {name}", trial.with_argument(place, changed)


def _argument(
    argument: hal.RequestArgument, *, is_input: bool, sized: bool
) -> Iterator[tuple[str, hal.RequestArgument]]:
    """*sized*: whether the operand determines the length of the argument."""
    if is_input:
        yield "omitted", hal.NO_VALUE_ARGUMENT
    yield "token 0", hal.TokenArgument(0)
    yield "a negative token", hal.TokenArgument(-1)
    if isinstance(argument, hal.PoolArgument):
        yield from _pool_argument(argument, is_input=is_input, sized=sized)
    elif isinstance(argument, hal.HostMemory):
        array = argument.array
        yield "another type", hal.HostMemory(array.view(np.dtype(f"V{array.itemsize}")))
        yield "another rank", hal.HostMemory(array.reshape((1, *array.shape)))
        if array.ndim and array.shape[-1] > 1:
            yield "not contiguous", hal.HostMemory(np.repeat(array, 2, axis=-1)[..., ::2])
        if sized and array.ndim:
            yield "another dimension", hal.HostMemory(np.concatenate([array, array], axis=-1))
        if not is_input:
            frozen = array.view()
            frozen.flags.writeable = False
            yield "read-only", hal.HostMemory(frozen)


def _pool_argument(
    argument: hal.PoolArgument, *, is_input: bool, sized: bool
) -> Iterator[tuple[str, hal.RequestArgument]]:
    at, dimensions = argument.location, argument.dimensions
    places = {
        "no such pool": {"pool": 1},
        "negative pool": {"pool": -1},
        "offset beyond the pool": {"offset": 2**40},
        "offset and length that wrap at 64 bits": {"offset": 2**63, "length": 2**63},
        "negative offset": {"offset": -1},
        "negative length": {"length": -at.length},
    }
    if sized:
        places["a byte less"] = {"length": at.length - 1}
    if is_input:
        places["a byte more"] = {"length": at.length + 1}
    for name, place in places.items():
        yield name, hal.PoolArgument(replace(at, **place), dimensions)
    yield "negative padding", hal.PoolArgument(at, dimensions, -1)
    yield "padding beyond the pool", hal.PoolArgument(at, dimensions, 2**40)
    yield "another rank", hal.PoolArgument(at, (1, *(dimensions or (1,) * 9)))
    if dimensions:
        rest, last = dimensions[:-1], dimensions[-1]
        yield "another dimension", hal.PoolArgument(at, (*rest, last + 1))
        yield "a negative dimension", hal.PoolArgument(at, (*rest, -1))
        yield "a huge dimension", hal.PoolArgument(at, (*rest, 2**62))
        yield "another first dimension", hal.PoolArgument(at, (2**62, *dimensions[1:]))
