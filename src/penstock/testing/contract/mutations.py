"""Every mutation of a valid model or request that drivers must reject (NNAPI section 5.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.ir import (
    Attributes,
    DataLocation,
    DType,
    Lifetime,
    Model,
    Operand,
    Operation,
    Quantization,
    Subgraph,
)
from penstock.ir.operations import spec_of
from penstock.ir.types import is_static
from penstock.testing.contract.trial import Trial

ModelMutation: TypeAlias = tuple[str, Callable[[], Model]]
"""A mutation and its description: `ModelError`, or a model that no driver may accept."""

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


def model_mutations(model: Model) -> Iterator[ModelMutation]:
    """Every mutation of *model*'s entry subgraph, one at a time."""
    yield from _lists(model)
    for index, operand in enumerate(model.operands):
        for name, changed in _operand(operand):
            yield f"operand {index}: {name}", partial(_with_operand, model, index, changed)
    for index, operation in enumerate(model.operations):
        for name, changes in _operation(model.entry, operation):
            yield f"operation {index}: {name}", partial(_with_operation, model, index, changes)
    yield from _order(model)


def cycles(model: Model) -> Iterator[ModelMutation]:
    """*model* with an operation that reads its own result, or that of a later operation."""
    operations = model.operations
    for index, operation in enumerate(operations):
        for later in range(index, len(operations)):
            for output in operations[later].outputs[:1]:
                if later == index or _reads(operations[later], operation.outputs):
                    changes = {"inputs": (output, *operation.inputs[1:])}
                    name = f"operation {index} reads what operation {later} writes"
                    yield name, partial(_with_operation, model, index, changes)


def _reads(operation: Operation, operands: Sequence[int]) -> bool:
    return not set(operation.inputs).isdisjoint(operands)


def _with_entry(model: Model, **changes: Any) -> Model:
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(model.entry, **changes)
    return replace(model, subgraphs=tuple(subgraphs))


def _with_operand(model: Model, index: int, changed: Callable[[], Operand]) -> Model:
    operands = list(model.operands)
    operands[index] = changed()
    return _with_entry(model, operands=tuple(operands))


def _with_operation(model: Model, index: int, changes: Mapping[str, Any]) -> Model:
    operations = list(model.operations)
    operations[index] = replace(operations[index], **changes)
    return _with_entry(model, operations=tuple(operations))


def _lists(model: Model) -> Iterator[ModelMutation]:
    entry, count = model.entry, len(model.operands)
    for main in (len(model.subgraphs), -1):
        yield f"main subgraph {main}", partial(replace, model, main=main)
    for bad in (count, -1, 2**40):
        yield f"input {bad}", partial(_with_entry, model, inputs=(*entry.inputs, bad))
        yield f"output {bad}", partial(_with_entry, model, outputs=(*entry.outputs, bad))
    yield "an input twice", partial(_with_entry, model, inputs=(entry.inputs[0], *entry.inputs))
    for index, operand in enumerate(entry.operands):
        match operand.lifetime:
            case Lifetime.SUBGRAPH_INPUT:
                rest = tuple(i for i in entry.inputs if i != index)
                yield f"input {index} not listed", partial(_with_entry, model, inputs=rest)
            case Lifetime.SUBGRAPH_OUTPUT:
                rest = tuple(i for i in entry.outputs if i != index)
                yield f"output {index} not listed", partial(_with_entry, model, outputs=rest)
            case Lifetime.TEMPORARY_VARIABLE:
                more = (*entry.outputs, index)
                yield f"{index} listed as output", partial(_with_entry, model, outputs=more)
            case _:
                more = (*entry.inputs, index)
                yield f"{index} listed as input", partial(_with_entry, model, inputs=more)
    if model.pools:
        yield "no pools", partial(replace, model, pools=())


def _operand(operand: Operand) -> Iterator[tuple[str, Callable[[], Operand]]]:
    def changed(**changes: Any) -> Callable[[], Operand]:
        return partial(replace, operand, **changes)

    for lifetime in Lifetime:
        if lifetime is not operand.lifetime:
            yield f"lifetime {lifetime.value}", changed(lifetime=lifetime)
    if not operand.has_value:
        return
    yield "type string", changed(dtype=DType.STRING)
    yield "negative dimension", changed(shape=(*(operand.shape or ()), -1))
    yield "too many dimensions", changed(shape=(1,) * 65)
    yield "a size beyond 64 bits", changed(shape=(2**40, 2**40))
    rank = len(operand.shape or ())
    for scales, zero_points, dimension in (
        ((-1.0,), (0,), None),
        ((math.nan,), (0,), None),
        ((math.inf,), (0,), None),
        ((1.0, 1.0), (0, 0), None),
        ((1.0,), (), None),
        ((), (), None),
        ((1.0,), (0,), rank),
        ((1.0,), (0,), -1),
    ):
        name = f"scales {scales}, zero points {zero_points}, dimension {dimension}"
        yield name, partial(_quantized, operand, scales, zero_points, dimension)
    if operand.dtype in {DType.INT8, DType.UINT8, DType.INT16}:
        yield "zero point out of range", partial(_quantized, operand, (1.0,), (70000,), None)
    if operand.value is not None:
        yield "a byte less", changed(value=operand.value[:-1])
        yield "a byte more", changed(value=operand.value + b"\0")
        yield "value and location", changed(location=DataLocation(0, 0, len(operand.value)))
        yield "no value", changed(value=None)
    if operand.location is not None:
        at = operand.location
        for name, place in (
            ("pool", replace(at, pool=at.pool + 64)),
            ("negative pool", replace(at, pool=-1)),
            ("offset", replace(at, offset=2**62)),
            ("negative offset", replace(at, offset=-8)),
            ("length", replace(at, length=at.length - 1)),
            ("negative length", replace(at, length=-at.length)),
        ):
            yield f"location: {name}", changed(location=place)


def _quantized(
    operand: Operand,
    scales: tuple[float, ...],
    zero_points: tuple[int, ...],
    dimension: int | None,
) -> Operand:
    return replace(operand, quantization=Quantization(scales, zero_points, dimension))


def _operation(entry: Subgraph, operation: Operation) -> Iterator[tuple[str, Mapping[str, Any]]]:
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
    unknown = Attributes({**attributes, "no_such_attribute": 1})
    yield "unknown attribute", {"attributes": unknown}
    for row in spec.attributes:
        wrong = Attributes({**attributes, row.name: WRONG[row.kind]})
        yield f"attribute {row.name}", {"attributes": wrong}


def _order(model: Model) -> Iterator[ModelMutation]:
    operations = model.operations
    for index, operation in enumerate(operations):
        rest = (*operations[:index], *operations[index + 1 :])
        yield f"operation {index} left out", partial(_with_entry, model, operations=rest)
        twice = (*operations, operation)
        yield f"operation {index} twice", partial(_with_entry, model, operations=twice)
        if {i for o in rest[index:] for i in o.inputs} & set(operation.outputs):
            late = (*rest, operation)
            yield f"operation {index} too late", partial(_with_entry, model, operations=late)


def request_mutations(trial: Trial) -> Iterator[tuple[str, hal.Request]]:
    """Every mutation of *trial*'s request, one at a time. Each violates
    `penstock.hal.validate_request`.
    """
    request = trial.request
    inputs, outputs = request.inputs, request.outputs
    for index in range(len(inputs)):
        rest = inputs[:index] + inputs[index + 1 :]
        yield f"input {index} left out", hal.Request(rest, outputs, request.pools)
    for index in range(len(outputs)):
        rest = outputs[:index] + outputs[index + 1 :]
        yield f"output {index} left out", hal.Request(inputs, rest, request.pools)
    yield "an input more", hal.Request((*inputs, inputs[0]), outputs, request.pools)
    yield "an output more", hal.Request(inputs, (*outputs, outputs[0]), request.pools)
    if any(isinstance(a, hal.PoolArgument) for a in (*inputs, *outputs)):
        yield "no pools", hal.Request(inputs, outputs)
    for index, argument in enumerate(inputs):
        yield f"input {index}: omitted", trial.with_argument(index, hal.NO_VALUE_ARGUMENT)
        for name, changed in _argument(argument, is_input=True, sized=True):
            yield f"input {index}: {name}", trial.with_argument(index, changed)
    for index, argument in enumerate(outputs):
        sized = is_static(trial.operands[index].shape)
        for name, changed in _argument(argument, is_input=False, sized=sized):
            yield f"output {index}: {name}", trial.with_argument(len(inputs) + index, changed)


def _argument(
    argument: hal.RequestArgument, *, is_input: bool, sized: bool
) -> Iterator[tuple[str, hal.RequestArgument]]:
    """*sized*: whether the operand determines the length of the argument."""
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
    for name, place in (
        ("no such pool", replace(at, pool=1)),
        ("negative pool", replace(at, pool=-1)),
        ("offset beyond the pool", replace(at, offset=2**40)),
        ("offset and length that wrap at 64 bits", replace(at, offset=2**63, length=2**63)),
        ("negative offset", replace(at, offset=-1)),
        ("negative length", replace(at, length=-at.length)),
    ):
        yield name, hal.PoolArgument(place, dimensions)
    if sized:
        yield "a byte less", hal.PoolArgument(replace(at, length=at.length - 1), dimensions)
    if is_input:
        yield "a byte more", hal.PoolArgument(replace(at, length=at.length + 1), dimensions)
    yield "negative padding", hal.PoolArgument(at, dimensions, -1)
    yield "padding beyond the pool", hal.PoolArgument(at, dimensions, 2**40)
    yield "another rank", hal.PoolArgument(at, (1, *(dimensions or (1,) * 9)))
    if dimensions:
        rest, last = dimensions[:-1], dimensions[-1]
        yield "another dimension", hal.PoolArgument(at, (*rest, last + 1))
        yield "a negative dimension", hal.PoolArgument(at, (*rest, -1))
        yield "a huge dimension", hal.PoolArgument(at, (*rest, 2**62))
        yield "another first dimension", hal.PoolArgument(at, (2**62, *dimensions[1:]))
