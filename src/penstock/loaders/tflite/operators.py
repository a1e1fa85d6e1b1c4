"""Operators of a file: type, operand indexes and attributes, checked against the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

from penstock.errors import IndexOutOfRange, InvalidAttribute, Place, UnknownOperator
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE, Field, Kind
from penstock.faults import Fault, FaultCode
from penstock.ir.operand import Operand, Origin
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.loaders.flatbuffer import Values
from penstock.loaders.tflite.tensors import File, integers

PLACEHOLDER: Final = 127
"""`deprecated_builtin_code` of operators whose number does not fit a byte."""

CODE_MEMORY: Final = 128
OPERATOR_MEMORY: Final = 576
ATTRIBUTE_MEMORY: Final = 64
ARGUMENT_MEMORY: Final = 32
MUTATED_MEMORY: Final = 512
"""What an operator code, an operator, each attribute, each operand it names and each input it
changes take in all that is made of them, besides the numbers as they were read.
"""

SUBGRAPH_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
    "CALL_ONCE": ("init_subgraph_index",),
    "CALL": ("subgraph",),
    "STABLEHLO_COMPOSITE": ("decomposition_subgraph_index",),
    "STABLEHLO_WHILE": ("cond_subgraph_index", "body_subgraph_index"),
    "STABLEHLO_REDUCE": ("body_subgraph_index",),
    "STABLEHLO_REDUCE_WINDOW": ("body_subgraph_index",),
    "STABLEHLO_SORT": ("comparator_subgraph_index",),
    "STABLEHLO_SCATTER": ("update_computation_subgraph_index",),
}
"""Options that refer to subgraphs, in the order in which the operator enters them."""


class OperatorCode(Struct, frozen=True):
    """One entry of the file's operator codes."""

    type: str
    number: int
    version: int
    custom_code: str


BRANCHES: Final = frozenset({"IF", "STABLEHLO_CASE"})
"""Operators that enter one of several subgraphs, by their first input."""


class RawOperator(Struct):
    """An operator before network state is lowered; *attributes* are the IR's."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, AttributeValue]
    origin: Origin
    mutated: frozenset[int] = frozenset()
    """Positions of the inputs that the file marks as changed in place."""
    intermediates: tuple[int, ...] = ()
    targets: tuple[int, ...] = field(default=())
    """The subgraphs it enters."""

    @property
    def place(self) -> Place:
        return Place(self.origin.subgraph, operator=self.origin.index, type=self.type)


class Key(Struct, frozen=True):
    """A piece of state: a resource variable by *container* and *name*, variable tensor *number* of
    *subgraph*, hash table *number* (its keys, its values, and whether it is filled), whether
    CALL_ONCE has entered *subgraph*, or the position of the generator of random operator *number*
    of *subgraph*.
    """

    kind: Literal["resource", "tensor", "table", "keys", "values", "filled", "once", "random"]
    container: str = ""
    name: str = ""
    subgraph: int = -1
    number: int = -1


class RawSubgraph(Struct):
    """A subgraph before state is lowered: operands by tensor index, operators as in the file."""

    index: int
    name: str
    operands: list[Operand]
    operators: list[RawOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: frozenset[int]
    """Its variable tensors."""
    handles: dict[int, Key] = field(default_factory=dict)
    """Resource tensors: tensor index to the state that it refers to."""


def read_codes(file: File) -> list[OperatorCode]:
    """The operator codes of the file; `UnknownOperator` for a number the schema does not have."""
    codes: list[OperatorCode] = []
    tables = file.tables("operator_codes")
    file.charge(CODE_MEMORY * len(tables), "operator codes")
    for index, table in enumerate(tables):
        deprecated, number = table["deprecated_builtin_code"], table["builtin_code"]
        if deprecated != PLACEHOLDER:
            number = max(deprecated, number)
        name = TFLITE.name("BuiltinOperator", number)
        if name is None or name == "PLACEHOLDER_FOR_GREATER_OP_CODES":
            raise UnknownOperator(
                f"operator code {number} is not in the format", where=f"operator code {index}"
            )
        custom = table["custom_code"] or ""
        if name == "CUSTOM" and not custom:
            raise UnknownOperator("a custom operator has no name", where=f"operator code {index}")
        codes.append(OperatorCode(name, number, table["version"], custom))
    return codes


def code_of(codes: Sequence[OperatorCode], index: int, where: Place) -> OperatorCode:
    """The operator code at *index*; `IndexOutOfRange` where there is none."""
    if index >= len(codes):
        fault = Fault(FaultCode.OPERATOR_CODE, found=index, count=len(codes))
        raise IndexOutOfRange(fault, where=where)
    return codes[index]


def read_operator(
    file: File,
    codes: list[OperatorCode],
    subgraph: int,
    index: int,
    table: Values,
    tensors: int,
    subgraphs: int,
) -> RawOperator:
    """One operator. *tensors* and *subgraphs* bound its indexes; -1 is an omitted input."""
    place = Place(subgraph, operator=index)
    code = code_of(codes, table["opcode_index"], place)
    place = place._replace(type=code.type)
    inputs, outputs = integers(table["inputs"]), integers(table["outputs"])
    file.charge(OPERATOR_MEMORY + ARGUMENT_MEMORY * (len(inputs) + len(outputs)), place)
    for kind, indexes, least in (("input", inputs, -1), ("output", outputs, 0)):
        if indexes and not (least <= min(indexes) and max(indexes) < tensors):
            wrong = next(i for i in indexes if not least <= i < tensors)
            raise IndexOutOfRange(f"{kind} refers to tensor {wrong} of {tensors}", where=place)
    origin = Origin(subgraph, index, code.number, code.version)
    if code.type == "CUSTOM":
        attributes = _custom(file, code, table, place)
    else:
        attributes = read_attributes(file, code.type, table, place)
    flags = table["mutating_variable_inputs"]
    mutated: frozenset[int] = frozenset()
    if flags is not None:
        mutated = frozenset(flags[: len(inputs)].nonzero()[0].tolist())
        file.charge(MUTATED_MEMORY * len(mutated), place)
    intermediates = integers(table["intermediates"])
    if any(not -1 <= i < tensors for i in intermediates):
        raise IndexOutOfRange(
            f"an intermediate tensor of {intermediates} is not among {tensors}", where=place
        )
    targets = _targets(code.type, attributes, subgraphs, place)
    return RawOperator(
        code.type, inputs, outputs, attributes, origin, mutated, intermediates, targets
    )


def read_attributes(
    file: File, kind: str, table: Values, place: Place
) -> dict[str, AttributeValue]:
    """The operator's options as attributes of the same names; absent options have the schema's
    defaults.
    """
    expected = OPTIONS_OF_OPERATOR.get(kind)
    if expected is None:
        return {}
    options: Values = TFLITE.table(expected).defaults
    for name in ("builtin_options", "builtin_options2"):
        number = table[f"{name}_type"]
        if not number:
            continue
        union = TFLITE.unions["BuiltinOptions" if name == "builtin_options" else "BuiltinOptions2"]
        found = union[number] if number < len(union) else f"options of kind {number}"
        if found != expected:
            raise InvalidAttribute(f"carries {found}, not {expected}", where=place)
        options = table[name] or options
    row = OPERATIONS.get(kind)
    known = None if row is None else {a.name for a in row.attributes}
    attributes: dict[str, AttributeValue] = {}
    fields = TFLITE.table(expected).fields
    file.charge(ATTRIBUTE_MEMORY * len(fields), place)
    for description in fields:
        value = _attribute(file, description, options[description.name], place)
        if known is None or description.name in known:
            attributes[description.name] = value
    return attributes


def _attribute(file: File, description: Field, value: Any, place: Place) -> AttributeValue:
    if description.enum:
        if description.kind is Kind.NUMBERS:
            return integers(value)
        name = TFLITE.name(description.enum, value)
        if name is None:
            raise InvalidAttribute(
                f"{description.name} {value} is not a {description.enum}", where=place
            )
        return name
    if description.kind is Kind.SCALAR:
        return value  # type: ignore[no-any-return]  # a scalar the reader unpacked
    if description.kind is Kind.STRING:
        return value or ""
    if description.scalar == "uint8":
        return file.copy(value, place)
    return integers(value)


def _custom(
    file: File, code: OperatorCode, table: Values, place: Place
) -> dict[str, AttributeValue]:
    options = table["custom_options"]
    if table["large_custom_options_offset"] > 1 and table["large_custom_options_size"] > 1:
        options = file.outside(
            table["large_custom_options_offset"], table["large_custom_options_size"], place
        )
    return {"custom_code": code.custom_code, "custom_options": file.copy(options, place)}


def _targets(
    kind: str, attributes: Mapping[str, AttributeValue], subgraphs: int, place: Place
) -> tuple[int, ...]:
    names = SUBGRAPH_FIELDS.get(kind, ())
    found = [attributes.get(name) for name in names]
    if kind == "STABLEHLO_CASE":
        branches = attributes.get("branch_subgraph_indices")
        found = list(branches) if isinstance(branches, tuple) else []
    targets = tuple(t for t in found if isinstance(t, int))
    for target in targets:
        if not 0 <= target < subgraphs:
            raise IndexOutOfRange(f"refers to subgraph {target} of {subgraphs}", where=place)
    return targets
