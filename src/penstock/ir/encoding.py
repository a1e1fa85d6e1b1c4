"""Models as rows of plain values that msgspec encodes, without the bytes of their constant pools.

A row is a list or a tuple. Rows are decoded without types: to find the types of all fields takes
longer than to decode a network.

Only for encodings that are authenticated before they are decoded: a restored model is not validated
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import msgpack
from msgspec.structs import astuple

from penstock.ir.model import Model, restored
from penstock.ir.operand import DataLocation, ExtensionType, Lifetime, Operand, Origin
from penstock.ir.operation import Attributes, AttributeValue, Operation, restored_attributes
from penstock.ir.subgraph import (
    ConstantPool,
    Metadata,
    Signature,
    StatePort,
    Subgraph,
    TensorMetadata,
    Variable,
)
from penstock.ir.types import DType, Quantization, restored_quantization

Row: TypeAlias = Sequence[Any]

_TYPES: Final = {kind.value: kind for kind in DType}
_LIFETIMES: Final = {lifetime.value: lifetime for lifetime in Lifetime}


class Parts:
    """The rows of the operands and operations of several models, each kept once: the model of a
    plan, and those of its steps, have most in common.
    """

    def __init__(self) -> None:
        self.operands: list[Row] = []
        self.operations: list[Row] = []
        self._known: dict[tuple[bool, bytes], int] = {}

    def operand(self, operand: Operand) -> int:
        """The number of the row of *operand*."""
        return self._number(_operand_row(operand), self.operands)

    def operation(self, operation: Operation) -> int:
        """The number of the row of *operation*."""
        return self._number(_operation_row(operation), self.operations)

    def _number(self, row: Row, rows: list[Row]) -> int:
        key = rows is self.operands, msgpack.encode(row)
        if key not in self._known:
            self._known[key] = len(rows)
            rows.append(row)
        return self._known[key]


class RestoredParts:
    """The operands and operations that `Parts` has the rows of."""

    def __init__(self, operands: Row, operations: Row) -> None:
        self.operand = [*map(_operand, operands)].__getitem__
        self.operation = [*map(_operation, operations)].__getitem__


def row_of(model: Model, number: Callable[[ConstantPool], int], parts: Parts) -> Row:
    """The row of *model*, whose operands and operations are in *parts*. *number* gives the number
    of each of its pools.

    It contains the model's digests; one is empty if it was not known.
    """
    metadata = astuple(model.metadata)
    *texts, inputs, outputs, entries, files = metadata
    return (
        tuple(_subgraph_row(subgraph, parts) for subgraph in model.subgraphs),
        tuple(map(number, model.pools)),
        tuple(map(_variable_row, model.variables)),
        {name: astuple(signature) for name, signature in model.signatures.items()},
        (*texts, *(tuple(map(astuple, s)) for s in (inputs, outputs)), dict(entries), dict(files)),
        model.main,
        *model.known_digests,
    )


def model_of(row: Row, pools: Sequence[ConstantPool], parts: RestoredParts) -> Model:
    """The model of *row*, with operands and operations of *parts*. It is not checked: *row* must be
    of a valid model with *pools*.
    """
    subgraphs, numbers, variables, signatures, metadata, main, *digests = row
    *texts, inputs, outputs, entries, files = metadata
    given, computed = (
        tuple(TensorMetadata(*map(fixed, one)) for one in tensors) for tensors in (inputs, outputs)
    )
    described: Row = (*texts, given, computed, entries, files)
    structure, constants = digests
    return restored(
        tuple(_subgraph(one, parts) for one in subgraphs),
        tuple(pools[number] for number in numbers),
        tuple(map(_variable, variables)),
        {name: Signature(*map(fixed, one)) for name, one in signatures.items()},
        Metadata(*described),
        main,
        (structure, constants),
    )


def fixed(value: Any) -> Any:
    """*value* with tuples for its lists: fields of models have no lists."""
    return tuple(map(fixed, value)) if type(value) is list else value


def _subgraph_row(subgraph: Subgraph, parts: Parts) -> Row:
    operands, operations, inputs, outputs, states, name = astuple(subgraph)
    return (
        tuple(map(parts.operand, operands)),
        tuple(map(parts.operation, operations)),
        inputs,
        outputs,
        tuple(map(astuple, states)),
        name,
    )


def _subgraph(row: Row, parts: RestoredParts) -> Subgraph:
    operands, operations, inputs, outputs, states, name = row
    return Subgraph(
        tuple(map(parts.operand, operands)),
        tuple(map(parts.operation, operations)),
        tuple(inputs),
        tuple(outputs),
        tuple(StatePort(*one) for one in states),
        name,
    )


def _operand_row(operand: Operand) -> Row:
    dtype, shape, lifetime, name, quantization, value, location, origin, *rest = astuple(operand)
    declared, extension = rest
    return (
        dtype.value,
        shape,
        lifetime.value,
        name,
        _quantization_row(quantization),
        value,
        _optional(location),
        _optional(origin),
        declared,
        _optional(extension),
    )


def _operand(row: Row) -> Operand:
    dtype, shape, lifetime, name, quantization, value, location, origin, *rest = row
    declared, extension = rest
    return Operand(
        _TYPES[dtype],
        None if shape is None else tuple(shape),
        _LIFETIMES[lifetime],
        name,
        None if quantization is None else _quantization(quantization),
        value,
        None if location is None else DataLocation(*location),
        None if origin is None else Origin(*origin),
        declared,
        None if extension is None else ExtensionType(*extension),
    )


def _operation_row(operation: Operation) -> Row:
    kind, inputs, outputs, attributes, origin = astuple(operation)
    return kind, inputs, outputs, dict(attributes), _optional(origin)


def _operation(row: Row) -> Operation:
    kind, inputs, outputs, attributes, origin = row
    return Operation(
        kind,
        tuple(inputs),
        tuple(outputs),
        restored_attributes({name: fixed(value) for name, value in attributes.items()}),
        None if origin is None else Origin(*origin),
    )


def _variable_row(variable: Variable) -> Row:
    name, dtype, shape, quantization, value, location, assigned = astuple(variable)
    packed = _quantization_row(quantization)
    return name, dtype.value, shape, packed, value, _optional(location), assigned


def _variable(row: Row) -> Variable:
    name, dtype, shape, quantization, value, location, assigned = row
    return Variable(
        name,
        _TYPES[dtype],
        None if shape is None else tuple(shape),
        None if quantization is None else _quantization(quantization),
        value,
        None if location is None else DataLocation(*location),
        assigned,
    )


def _optional(value: Any) -> Row | None:
    return None if value is None else astuple(value)


def _quantization_row(quantization: Quantization | None) -> Row | None:
    """Packed numbers, because a network has tens of thousands of scales: their NumPy type, in the
    order of bytes of this machine. No bytes of zero points are all zeros.
    """
    if quantization is None:
        return None
    scales, points, dimension = astuple(quantization)
    if len(scales) == 1:
        return scales[0], points[0], dimension
    with np.errstate(over="ignore"):
        singles = np.array(scales, np.float32)
    code = "f4" if singles.tolist() == list(scales) else "f8"
    integers = np.array(points, np.int32).tobytes() if any(points) else b""
    return code, np.array(scales, code).tobytes(), integers, dimension


def _quantization(row: Row) -> Quantization:
    if len(row) == 3:
        scale, point, dimension = row
        return restored_quantization((scale,), (point,), dimension)
    code, packed, integers, dimension = row
    scales = tuple(np.frombuffer(packed, code).tolist())
    points = tuple(np.frombuffer(integers, np.int32).tolist()) or (0,) * len(scales)
    return restored_quantization(scales, points, dimension)


def encode_hook(value: object) -> object:
    """Encodes `Attributes`, and mappings that cannot be changed, as dictionaries.

    Raises `TypeError` for any other type.
    """
    if isinstance(value, Attributes | MappingProxyType):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be encoded")


def attributes_of(value: object) -> Attributes:
    """The attributes in a decoded *value*. Raises `TypeError` if it has none, or invalid ones."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} for attributes")
    if wrong := [name for name in value if not isinstance(name, str)]:
        raise TypeError(f"the attribute name {wrong[0]!r}")
    return Attributes({name: _attribute(v) for name, v in value.items()})


def _attribute(value: object) -> AttributeValue:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case list() if all(type(v) in {int, float} for v in value):
            return tuple(value)
    raise TypeError(f"an attribute of type {type(value).__name__}")
