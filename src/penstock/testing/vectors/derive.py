"""Derives runs from a case: NNAPI models, inputs and expected outputs.

- `plain` is the unchanged case.
- `tensors_as_inputs` makes constants model inputs.
- `inputs_as_internal` inserts an ADD of zero before inputs. If it lists constants, it also runs
  with those made inputs first.
- `dynamic_output_shape` leaves the dimensions of outputs unknown.
- `quant8_signed` converts unsigned 8-bit values to signed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np

from penstock.ir import ConstantPool, DataLocation, NDArray
from penstock.ir.operand import MAX_COPIED_VALUE
from penstock.ir.types import Shape
from penstock.nnapi.codes import EXPERIMENTAL
from penstock.nnapi.description import (
    ChannelQuantization,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.testing.vectors.format import (
    Case,
    OperandEntry,
    Specification,
    SubgraphEntry,
    VectorError,
)

LIFETIMES: Final = {
    "input": NnapiLifetime.SUBGRAPH_INPUT,
    "output": NnapiLifetime.SUBGRAPH_OUTPUT,
    "temporary": NnapiLifetime.TEMPORARY_VARIABLE,
    "no_value": NnapiLifetime.NO_VALUE,
    "subgraph": NnapiLifetime.SUBGRAPH,
}
SIGNED: Final = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
UNSIGNED: Final = OperandType.TENSOR_QUANT8_ASYMM


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected output and how to compare it. *values* None: nothing is recorded."""

    entry: OperandEntry
    values: NDArray | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one case: a model, the arrays of its inputs by operand (None: omitted), and its
    outputs.
    """

    case: Case
    kind: str
    model: NnapiModel
    feature_level: int
    inputs: Mapping[int, NDArray | None]
    outputs: tuple[Expected, ...]

    @property
    def omitted(self) -> frozenset[int]:
        """Positions of omitted inputs."""
        return frozenset(p for p, i in enumerate(self.model.main.inputs) if self.inputs[i] is None)

    @property
    def fed(self) -> list[NDArray]:
        """Arrays of the other inputs, in order."""
        arrays = [self.inputs[i] for i in self.model.main.inputs]
        return [a for a in arrays if a is not None]


def runs_of(case: Case) -> Iterator[Run]:
    """The plain run, and the runs that the case's `derive` names."""
    plain = plain_run(case)
    yield plain
    derive = case.entry.derive
    constants, listed = derive.tensors_as_inputs, derive.inputs_as_internal
    free = {
        i
        for i, o in enumerate(case.entry.main.operands)
        if o.lifetime in {"constant", "no_value"} and o.type.startswith("TENSOR_")
    }
    if not free.issuperset(constants) or not free.union(plain.inputs).issuperset(listed):
        raise VectorError(f"{case.name}: derive lists operands that cannot be inputs")
    if constants:
        yield tensors_as_inputs(plain, constants)
    inputs = tuple(i for i in listed if i in plain.inputs)
    if inputs:
        yield inputs_as_internal(plain, inputs)
    if inputs != listed:
        moved = tensors_as_inputs(plain, tuple(i for i in listed if i not in plain.inputs))
        yield inputs_as_internal(moved, listed)
    if derive.dynamic_output_shape:
        yield dynamic_output_shape(plain)
    if derive.quant8_signed:
        yield quant8_signed(plain)


def plain_run(case: Case) -> Run:
    """The unchanged case. Raises `VectorError` if the file contradicts itself."""
    entry, specification = case.entry, case.specification
    main = _subgraph(entry.main, specification)
    referenced = tuple(_subgraph(s, specification) for s in entry.referenced)
    model = NnapiModel(main, referenced, (ConstantPool(specification.blob),), relaxed=entry.relaxed)
    operands = entry.main.operands
    inputs: dict[int, NDArray | None] = {}
    outputs: list[Expected] = []
    try:
        for i in entry.main.inputs:
            inputs[i] = None if operands[i].omitted else _array(specification, operands[i])
            if inputs[i] is None and not operands[i].omitted:
                raise VectorError(f"{case.name}: input {i} has no values")
        for i in entry.main.outputs:
            outputs.append(Expected(operands[i], _array(specification, operands[i])))
            if outputs[-1].values is None and operands[i].compare == "near":
                raise VectorError(f"{case.name}: output {operands[i].name!r} has no values")
    except IndexError as error:
        raise VectorError(f"{case.name}: an input or output is no operand") from error
    levels = entry.feature_level, specification.header.feature_level
    level = max(EXPERIMENTAL if n is None else n for n in levels)
    return Run(case, "plain", model, level, MappingProxyType(inputs), tuple(outputs))


def _with_main(
    run: Run, kind: str, main: NnapiSubgraph, inputs: Mapping[int, NDArray | None] | None = None
) -> Run:
    """*run* with another main subgraph, and other inputs."""
    given = run.inputs if inputs is None else MappingProxyType(inputs)
    return replace(run, kind=kind, model=replace(run.model, main=main), inputs=given)


def tensors_as_inputs(run: Run, indexes: tuple[int, ...]) -> Run:
    """Makes the listed constants inputs of the model."""
    inputs = dict(run.inputs)
    operands = list(run.model.main.operands)
    for index in indexes:
        entry = run.case.entry.main.operands[index]
        inputs[index] = _array(run.case.specification, entry)
        operands[index] = replace(
            operands[index], lifetime=NnapiLifetime.SUBGRAPH_INPUT, value=None, location=None
        )
    main = replace(
        run.model.main, operands=tuple(operands), inputs=(*run.model.main.inputs, *indexes)
    )
    return _with_main(run, "tensors_as_inputs", main, inputs)


def inputs_as_internal(run: Run, indexes: tuple[int, ...]) -> Run:
    """Makes each listed input the sum of a new input and zero."""
    main = run.model.main
    operands, inputs = list(main.operands), dict(run.inputs)
    listed = list(main.inputs)
    leading: list[NnapiOperation] = []
    for index in indexes:
        old, new = operands[index], len(operands)
        copied = NnapiLifetime.CONSTANT_COPY
        value = np.array([old.zero_point], old.type.dtype.numpy).tobytes()
        zero = replace(old, dimensions=(1,), lifetime=copied, value=value, name="zero")
        int32 = OperandType.INT32
        none = NnapiOperand(int32, (), copied, value=bytes(4), name="activation")
        operands += [old, zero, none]
        operands[index] = replace(old, lifetime=NnapiLifetime.TEMPORARY_VARIABLE)
        leading.append(NnapiOperation("ADD", (new, new + 1, new + 2), (index,)))
        listed[listed.index(index)] = new
        inputs[new] = inputs.pop(index)
    changed = replace(
        main,
        operands=tuple(operands),
        inputs=tuple(listed),
        operations=(*leading, *main.operations),
    )
    kind = "inputs_as_internal" if run.kind == "plain" else f"{run.kind}, inputs_as_internal"
    return _with_main(run, kind, changed, inputs)


def dynamic_output_shape(run: Run) -> Run:
    """Makes the dimensions of every output unknown to the compile."""
    main = run.model.main

    def opened(index: int, operand: NnapiOperand) -> NnapiOperand:
        known = operand.dimensions
        if index not in main.outputs or known is None:
            return operand
        return replace(operand, dimensions=(None,) * len(known))

    changed = _with_main(run, "dynamic_output_shape", _mapped(main, opened))
    return replace(changed, feature_level=max(run.feature_level, 3))


def quant8_signed(run: Run) -> Run:
    """Subtracts 128 from values and zero points of unsigned 8-bit tensors, in every subgraph."""
    model = run.model

    def signed(_: int, operand: NnapiOperand) -> NnapiOperand:
        if operand.type is not UNSIGNED:
            return operand
        value, place = operand.value, operand.location
        if place is not None:
            value = bytes(model.pools[place.pool].view[place.offset : place.offset + place.length])
        constant = operand.lifetime.is_constant
        return replace(
            operand,
            type=SIGNED,
            zero_point=operand.zero_point - 128,
            lifetime=NnapiLifetime.CONSTANT_COPY if constant else operand.lifetime,
            value=None if value is None else _signed(np.frombuffer(value, np.uint8)).tobytes(),
            location=None,
        )

    operands = model.main.operands
    outputs = tuple(
        replace(e, values=_signed(e.values))
        if e.values is not None and e.entry.type == UNSIGNED.name
        else e
        for e in run.outputs
    )
    inputs = {
        i: _signed(a) if a is not None and operands[i].type is UNSIGNED else a
        for i, a in run.inputs.items()
    }
    moved = replace(
        model,
        main=_mapped(model.main, signed),
        referenced=tuple(_mapped(s, signed) for s in model.referenced),
    )
    return replace(
        run,
        kind="quant8_signed",
        model=moved,
        feature_level=max(run.feature_level, 4),
        inputs=MappingProxyType(inputs),
        outputs=outputs,
    )


def _signed(array: NDArray) -> NDArray:
    moved: NDArray = (array ^ np.uint8(0x80)).view(np.int8)
    return moved


def _mapped(
    subgraph: NnapiSubgraph, change: Callable[[int, NnapiOperand], NnapiOperand]
) -> NnapiSubgraph:
    return replace(subgraph, operands=tuple(change(i, o) for i, o in enumerate(subgraph.operands)))


def _subgraph(entry: SubgraphEntry, specification: Specification) -> NnapiSubgraph:
    return NnapiSubgraph(
        tuple(_operand(o, specification) for o in entry.operands),
        tuple(NnapiOperation(o.op, o.inputs, o.outputs) for o in entry.operations),
        entry.inputs,
        entry.outputs,
        entry.name or "",
    )


def _operand(entry: OperandEntry, specification: Specification) -> NnapiOperand:
    try:
        kind = OperandType[entry.type]
    except KeyError as error:
        raise VectorError(f"operand type {entry.type!r} is none of NNAPI") from error
    channels = entry.channel_quant
    value, location, lifetime = None, None, LIFETIMES.get(entry.lifetime)
    dimensions: Shape = tuple(d or None for d in entry.dims)
    if entry.lifetime == "constant":
        dimensions = entry.dims
        flat = specification.flat(entry)
        if flat is None:
            raise VectorError(f"constant {entry.name!r} has no value")
        in_pool = entry.shared_memory or flat.nbytes > MAX_COPIED_VALUE
        if entry.data is not None and in_pool:
            lifetime, location = (
                NnapiLifetime.CONSTANT_POOL,
                DataLocation(0, entry.data[0], flat.nbytes),
            )
        else:
            lifetime, value = NnapiLifetime.CONSTANT_COPY, flat.tobytes()
    elif kind.is_tensor and not entry.dims:
        dimensions = None
    if lifetime is None:
        raise VectorError(f"lifetime {entry.lifetime!r} of {entry.name!r}")
    return NnapiOperand(
        kind,
        dimensions,
        lifetime,
        entry.scale,
        entry.zero_point,
        None if channels is None else ChannelQuantization(channels.dim, channels.scales),
        value,
        location,
        entry.subgraph,
        entry.name,
    )


def _array(specification: Specification, entry: OperandEntry) -> NDArray | None:
    """The recorded values in the operand's dimensions; flat if their number differs."""
    flat = specification.flat(entry)
    if flat is None:
        return None
    if entry.type in {"TENSOR_BOOL8", "BOOL"}:
        flat = flat != 0
    full = min(entry.dims, default=0) >= 0 and prod(entry.dims) == flat.size
    return flat.reshape(entry.dims) if full else flat
