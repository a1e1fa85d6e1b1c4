"""`OperationSpec`: one row of the operation table, and the checks derived from it.

A row is the single source for an operation's signature, attribute types, type rules, shape
inference, feature level and versions. Validation, documentation and coverage tests use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from penstock.errors import InvalidAttribute, InvalidOperation
from penstock.ir.operand import EXTENSION, Operand
from penstock.ir.operation import Attributes, AttributeValue, Operation
from penstock.ir.types import DType, NDArray, Shape

AttributeKind: TypeAlias = Literal[
    "int", "float", "bool", "enum", "str", "bytes", "ints", "floats", "subgraph", "subgraphs"
]

Vocabulary: TypeAlias = Literal["tflite", "nnapi", "custom", "extension"]


class AttributeSpec(Struct, frozen=True):
    """One attribute. *kind* is its type: `enum` is a string out of *choices*; `subgraph` is a
    subgraph index, -1 for none; `subgraphs` are several.

    *default* is its value if it is absent (None: it is required). Vectors of booleans are `ints` of
    0 and 1, vectors of bytes are `bytes`.
    """

    name: str
    kind: AttributeKind
    default: AttributeValue = None
    choices: tuple[str, ...] = ()


class Port(Struct, frozen=True):
    """One input or output. If *types* is None, it accepts every type. Ports that share a *var* have
    the same dtype.

    *optional* inputs may be omitted (NO_VALUE, or missing at the end of the list). *optional*
    outputs may be missing at the end. A *variadic* port is always the last, and takes any number of
    operands, including none.
    """

    name: str
    types: frozenset[DType] | None = None
    var: str = ""
    optional: bool = False
    variadic: bool = False


class ShapeContext(Protocol):
    """The operation whose shapes a shape rule infers.

    An unknown rank is None; an unknown dimension is None within the shape. A rule infers as much as
    it can and leaves the rest None. It raises `ShapeMismatch` for shapes that contradict each
    other.
    """

    operation: Operation
    attributes: Attributes

    @property
    def input_count(self) -> int:
        """The number of inputs in the list, including omitted ones."""
        ...

    @property
    def output_count(self) -> int: ...

    def has(self, index: int) -> bool:
        """Whether input *index* is present and not omitted."""
        ...

    def shape(self, index: int) -> Shape:
        """The shape of input *index*; None if it is unknown or if the input is omitted."""
        ...

    def dtype(self, index: int) -> DType: ...

    def value(self, index: int) -> NDArray | None:
        """The value of input *index* if it is known before running, otherwise None."""
        ...

    def declared(self, index: int) -> Shape:
        """The shape that the model declares for output *index*."""
        ...

    def output_dtype(self, index: int) -> DType: ...

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        """Output shapes of a referenced subgraph for these input shapes."""
        ...


ShapeRule: TypeAlias = Callable[[ShapeContext], Sequence[Shape]]
"""Returns one shape for each output of the operation."""

FoldRule: TypeAlias = Callable[[ShapeContext], "Sequence[NDArray] | None"]
"""Returns the output values of a small shape computation, or None if an input is unknown."""

Requirement: TypeAlias = Callable[[Operation, Sequence[Operand], Sequence[Operand]], None]
"""Checks conditions that ports cannot express: relations of types and quantisation between inputs
and outputs. Raises `InvalidOperation` or `InvalidQuantization`.
"""


class OperationSpec(Struct, frozen=True):
    """One row of the operation table.

    *vocabulary* is the origin of the operation. *feature_level* is the level of NNAPI that
    introduced it (None: NNAPI has no such operation). *nnapi_name* is NNAPI's name, if it differs.
    *versions* is the newest operator version that LiteRT registers a kernel for.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    infer: ShapeRule
    attributes: tuple[AttributeSpec, ...] = ()
    fold: FoldRule | None = None
    require: Requirement | None = None
    vocabulary: Vocabulary = "tflite"
    feature_level: int | None = None
    nnapi_name: str = ""
    versions: int = 1
    doc: str = ""

    def check(self, operation: Operation, operands: Sequence[Operand]) -> None:
        """Checks counts, omissions, types, attributes and requirements of *operation*.

        Raises `InvalidOperation`, `InvalidAttribute` or `InvalidQuantization`. Indexes must be
        checked before.
        """
        given = [operands[i] for i in operation.inputs]
        written = [operands[i] for i in operation.outputs]
        if self.name not in OPAQUE:
            _check_plain(self.name, given, written)
        bound: dict[str, DType] = {}
        self._check_ports("input", self.inputs, given, bound)
        self._check_ports("output", self.outputs, written, bound)
        self._check_attributes(operation.attributes)
        if self.require is not None:
            self.require(operation, given, written)

    def _check_ports(
        self,
        kind: str,
        ports: tuple[Port, ...],
        operands: Sequence[Operand],
        bound: dict[str, DType],
    ) -> None:
        """*bound* has the element type of each letter, and gets those of these ports."""
        if not (ports and ports[-1].variadic) and len(operands) > len(ports):
            raise InvalidOperation(
                f"{self.name} takes {len(ports)} {kind}s at most, not {len(operands)}"
            )
        for index, port in enumerate(ports):
            missing = index >= len(operands) or not operands[index].has_value
            if missing and not port.optional and not port.variadic:
                raise InvalidOperation(f"{self.name} needs {kind} {index} ({port.name})")
        for index, operand in enumerate(operands):
            if not operand.has_value:
                continue
            port, dtype = ports[min(index, len(ports) - 1)], operand.dtype
            if port.types is not None and dtype not in port.types:
                raise InvalidOperation(
                    f"{kind} {index} ({port.name}) of {self.name} cannot be {dtype.value}"
                )
            if port.var and bound.setdefault(port.var, dtype) is not dtype:
                raise InvalidOperation(
                    f"{kind} {index} ({port.name}) of {self.name} is {dtype.value}, "
                    f"where {bound[port.var].value} is needed"
                )

    def _check_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        known = {spec.name: spec for spec in self.attributes}
        for name, value in attributes.items():
            if name not in known:
                raise InvalidAttribute(f"{self.name} has no attribute {name!r}")
            check_attribute(known[name], value)
        for spec in self.attributes:
            if spec.default is None and spec.name not in attributes:
                raise InvalidAttribute(f"{self.name} needs the attribute {spec.name!r}")

    def complete(self, attributes: Mapping[str, AttributeValue]) -> Attributes:
        """*attributes* with the defaults of this row."""
        defaults = {s.name: s.default for s in self.attributes if s.default is not None}
        return Attributes({**defaults, **attributes})


OPAQUE: Final = frozenset({EXTENSION, "IF", "WHILE", "CALL"})
"""Operations that may have operands of extensions' types: operations of extensions, and operations
that pass values on.
"""


def _check_plain(name: str, given: Sequence[Operand], written: Sequence[Operand]) -> None:
    for operand in (*given, *written):
        if operand.extension is not None:
            raise InvalidOperation(
                f"{name} cannot have the operand {operand.name!r} of an extension's type, "
                f"{operand.extension.name}"
            )


_VALID: Final[Mapping[AttributeKind, Callable[[Any], bool]]] = {
    "int": lambda v: type(v) is int,
    "subgraph": lambda v: type(v) is int,
    "float": lambda v: isinstance(v, float) or type(v) is int,
    "bool": lambda v: isinstance(v, bool),
    "enum": lambda v: isinstance(v, str),
    "str": lambda v: isinstance(v, str),
    "bytes": lambda v: isinstance(v, bytes),
    "ints": lambda v: isinstance(v, tuple) and all(type(n) is int for n in v),
    "subgraphs": lambda v: isinstance(v, tuple) and all(type(n) is int for n in v),
    "floats": lambda v: isinstance(v, tuple) and all(isinstance(n, int | float) for n in v),
}


def check_attribute(spec: AttributeSpec, value: AttributeValue) -> None:
    """Raises `InvalidAttribute` unless *value* has the kind of *spec*."""
    if not _VALID[spec.kind](value) or (spec.kind == "enum" and value not in spec.choices):
        wanted = f"one of {', '.join(spec.choices)}" if spec.kind == "enum" else spec.kind
        raise InvalidAttribute(f"attribute {spec.name!r} must be {wanted}, not {value!r}")
