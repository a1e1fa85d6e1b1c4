"""Operators of a file: type, operand indexes and attributes, and the types of their outputs.

Most kernels of LiteRT set the type of their output from the inputs, so that a wrong declaration
does not matter (`OVERWRITTEN`). Some kernels keep the declared type and write other values under it
(`RELABELLED`): the bytes of a float32 sum that is declared int32 are read as int32. If both types
have the same width, this becomes a BITCAST. Otherwise LiteRT writes beyond its tensor or leaves a
part of it unwritten. The declaration then stays, and the operation table rejects it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.errors import (
    IndexOutOfRange,
    InvalidAttribute,
    ModelError,
    Place,
    UnknownOperator,
)
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE, Field, Kind
from penstock.faults import Fault, FaultCode
from penstock.ir.operand import Operand, Origin
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import FLOATS, DType
from penstock.loaders.flatbuffer import Values
from penstock.loaders.tflite.tensors import OPERAND_MEMORY, File, integers

PLACEHOLDER: Final = 127
"""`deprecated_builtin_code` of operators whose number does not fit a byte."""

CODE_MEMORY: Final = 128
OPERATOR_MEMORY: Final = 576
ATTRIBUTE_MEMORY: Final = 64
ARGUMENT_MEMORY: Final = 32
MUTATED_MEMORY: Final = 512
"""Memory of everything made from an operator code, an operator, an attribute, an operand of an
operator, and an input changed in place, without the numbers as they were read.
"""


class OperatorCode(Struct, frozen=True):
    """One entry of the file's operator codes."""

    type: str
    number: int
    version: int
    custom_code: str


BRANCHES: Final = frozenset({"IF", "STABLEHLO_CASE"})
"""Operators that enter one of several subgraphs, by their first input."""


RESOURCE_OPERATORS: Final = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}
    | {"HASHTABLE", "HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE"}
)


class RawOperator(Struct):
    """An operator before network state is lowered. *attributes* are those of the IR."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, AttributeValue]
    origin: Origin
    mutated: frozenset[int] = frozenset()
    """Positions of the inputs that the file marks as changed in place."""
    intermediates: tuple[int, ...] = ()
    targets: tuple[int, ...] = field(default=())
    """The subgraphs that the operator enters."""

    @property
    def place(self) -> Place:
        return Place(self.origin.subgraph, operator=self.origin.index, type=self.type)


class Key(Struct, frozen=True):
    """Identifies a piece of state by *kind*.

    - resource: the resource variable with *container* and *name*
    - tensor: variable tensor *number* of *subgraph*
    - table, keys, values, filled: hash table *number*, its content, and whether it is filled
    - once: whether CALL_ONCE has entered *subgraph*
    - random: the position of the generator of random operator *number* of *subgraph*
    """

    kind: Literal["resource", "tensor", "table", "keys", "values", "filled", "once", "random"]
    container: str = ""
    name: str = ""
    subgraph: int = -1
    number: int = -1


class RawSubgraph(Struct):
    """A subgraph before its state is lowered: operands by tensor index, and operators as in the
    file.
    """

    index: int
    name: str
    operands: list[Operand]
    operators: list[RawOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: frozenset[int]
    """The subgraph's variable tensors."""
    handles: dict[int, Key] = field(default_factory=dict)
    """Resource tensors: tensor index to the state that it refers to."""


def read_codes(file: File) -> list[OperatorCode]:
    """The operator codes of the file. Raises `UnknownOperator` for a number that the schema does
    not have.
    """
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


def code_of(codes: Sequence[OperatorCode], index: int) -> OperatorCode:
    """The operator code at *index*. Raises `IndexOutOfRange` if it does not exist."""
    if index >= len(codes):
        raise IndexOutOfRange(Fault(FaultCode.OPERATOR_CODE, found=index, count=len(codes)))
    return codes[index]


def read_operator(
    file: File,
    codes: Sequence[OperatorCode],
    origin: Origin,
    table: Values,
    limits: tuple[int, int],
) -> RawOperator:
    """The operator at *origin*. *limits* are the numbers of tensors and of subgraphs, which bound
    its indexes; -1 is an omitted input.
    """
    place = Place(origin.subgraph, operator=origin.index)
    try:
        code = code_of(codes, table["opcode_index"])
        place = place._replace(type=code.type)
        return _operator(file, code, origin, table, *limits)
    except ModelError as error:
        raise error.at(place) from None


def _operator(
    file: File, code: OperatorCode, origin: Origin, table: Values, tensors: int, subgraphs: int
) -> RawOperator:
    inputs, outputs = integers(table["inputs"]), integers(table["outputs"])
    file.charge(OPERATOR_MEMORY + ARGUMENT_MEMORY * (len(inputs) + len(outputs)))
    intermediates = integers(table["intermediates"])
    for kind, indexes, least in (
        ("input", inputs, -1),
        ("output", outputs, 0),
        ("intermediate", intermediates, -1),
    ):
        if indexes and not (least <= min(indexes) and max(indexes) < tensors):
            wrong = next(i for i in indexes if not least <= i < tensors)
            raise IndexOutOfRange(f"{kind} refers to tensor {wrong} of {tensors}")
    if code.type == "CUSTOM":
        attributes = _custom(file, code, table)
    else:
        attributes = read_attributes(file, code.type, table)
    flags = table["mutating_variable_inputs"]
    mutated: frozenset[int] = frozenset()
    if flags is not None:
        mutated = frozenset(flags[: len(inputs)].nonzero()[0].tolist())
        file.charge(MUTATED_MEMORY * len(mutated))
    targets = _targets(code.type, attributes)
    for target in targets:
        if not 0 <= target < subgraphs:
            raise IndexOutOfRange(f"refers to subgraph {target} of {subgraphs}")
    origin = replace(origin, opcode=code.number, version=code.version)
    return RawOperator(
        code.type, inputs, outputs, attributes, origin, mutated, intermediates, targets
    )


def read_attributes(file: File, kind: str, table: Values) -> dict[str, AttributeValue]:
    """The operator's options as attributes of the same names; absent options have the schema's
    defaults.
    """
    expected = OPTIONS_OF_OPERATOR.get(kind)
    if expected is None:
        return {}
    options: Values = TFLITE.table(expected).defaults
    for name, unions in (
        ("builtin_options", "BuiltinOptions"),
        ("builtin_options2", "BuiltinOptions2"),
    ):
        number, union = table[f"{name}_type"], TFLITE.unions[unions]
        if not number:
            continue
        found = union[number] if number < len(union) else f"options of kind {number}"
        if found != expected:
            raise InvalidAttribute(f"carries {found}, not {expected}")
        options = table[name] or options
    row = OPERATIONS.get(kind)
    known = None if row is None else {a.name for a in row.attributes}
    attributes: dict[str, AttributeValue] = {}
    fields = TFLITE.table(expected).fields
    file.charge(ATTRIBUTE_MEMORY * len(fields))
    for description in fields:
        value = _attribute(file, description, options[description.name])
        if known is None or description.name in known:
            attributes[description.name] = value
    return attributes


def _attribute(file: File, description: Field, value: Any) -> AttributeValue:
    if description.enum:
        if description.kind is Kind.NUMBERS:
            return integers(value)
        name = TFLITE.name(description.enum, value)
        if name is None:
            raise InvalidAttribute(f"{description.name} {value} is not a {description.enum}")
        return name
    if description.kind is Kind.SCALAR:
        return value  # type: ignore[no-any-return]  # a scalar the reader unpacked
    if description.kind is Kind.STRING:
        return value or ""
    if description.scalar == "uint8":
        return file.copy(value)
    return integers(value)


def _custom(file: File, code: OperatorCode, table: Values) -> dict[str, AttributeValue]:
    options = table["custom_options"]
    if table["large_custom_options_offset"] > 1 and table["large_custom_options_size"] > 1:
        options = file.outside(
            table["large_custom_options_offset"], table["large_custom_options_size"]
        )
    return {"custom_code": code.custom_code, "custom_options": file.copy(options)}


def _targets(kind: str, attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
    """The values of the attributes that refer to subgraphs."""
    row = OPERATIONS.get(kind)
    targets: list[int] = []
    for spec in () if row is None else row.attributes:
        value = attributes.get(spec.name)
        if spec.kind == "subgraph" and isinstance(value, int):
            targets.append(value)
        elif spec.kind == "subgraphs" and isinstance(value, tuple):
            targets += map(int, value)
    return tuple(targets)


Rule: TypeAlias = "int | str | DType | frozenset[DType]"
"""The type of an operator's outputs: that of the input at a position, the one that an attribute
names, one type, or that of the first input if it is one of several types.
"""


def _type_of(rule: Rule, operator: RawOperator, types: Sequence[DType | None]) -> DType | None:
    """The type by *rule*, from the types of the inputs (None: omitted); None if unknown."""
    if isinstance(rule, DType):
        return rule
    if isinstance(rule, str):
        value = operator.attributes.get(rule)
        return DType[value] if isinstance(value, str) and value in DType.__members__ else None
    if isinstance(rule, int):
        return types[rule] if rule < len(types) else None
    return types[0] if types and types[0] in rule else None


def _rows(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rule of each operator, from rules by the names of several."""
    return {name: rule for names, rule in rules.items() for name in names.split()}


OVERWRITTEN: Final = _rows(
    {
        "ADD_N BITWISE_XOR CEIL DYNAMIC_UPDATE_SLICE EXP EXPAND_DIMS FAKE_QUANT FLOOR FLOOR_DIV "
        "FLOOR_MOD GATHER GATHER_ND MATRIX_DIAG MATRIX_SET_DIAG MAXIMUM MINIMUM NEG POW PRELU "
        "RANGE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR RIGHT_SHIFT ROUND SPLIT_V "
        "STABLEHLO_SHIFT_LEFT ZEROS_LIKE": 0,
        "ADD SUB DIV SQUARED_DIFFERENCE FILL SCATTER_ND SELECT SELECT_V2 SPLIT": 1,
        "ONE_HOT SPARSE_TO_DENSE": 2,
        "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR": DType.BOOL,
        "BUCKETIZE RANK NON_MAX_SUPPRESSION_V4": DType.INT32,
        "WHERE": DType.INT64,
        "RFFT2D": DType.COMPLEX64,
        "DEQUANTIZE CUSTOM:NumericVerify CUSTOM:TFLite_Detection_PostProcess": DType.FLOAT32,
        "ARG_MAX ARG_MIN": "output_type",
        "SHAPE": "out_type",
    }
)
"""Operators whose kernels set the type of every output."""

RELABELLED: Final = _rows(
    {
        "CUMSUM MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RESHAPE SEGMENT_SUM "
        "SQUEEZE SUM STABLEHLO_ADD STABLEHLO_AND STABLEHLO_GATHER STABLEHLO_MAXIMUM "
        "STABLEHLO_MINIMUM STABLEHLO_MULTIPLY STABLEHLO_SCATTER UNSORTED_SEGMENT_MAX "
        "UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_SUM "
        "CUSTOM:aeq.hadamard_rotation BATCH_MATMUL SVDF": 0,
        # Kernels for integers use the output's type.
        "RNN UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN LSTM "
        "UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM": FLOATS,
        "SOFTMAX": FLOATS | {DType.INT16},
        "LSH_PROJECTION": DType.INT32,
    }
)
"""Operators whose kernels write values of this type, whatever type their output has."""

SUPPRESSION_V5: Final = (DType.INT32, DType.FLOAT32, DType.INT32)
"""Types of the outputs of NON_MAX_SUPPRESSION_V5: selected indexes, their scores, their number."""


ENTERING: Final = frozenset({"IF", "WHILE", "STABLEHLO_COMPOSITE", "STABLEHLO_CASE"})
"""Operators that set the types of the inputs of subgraphs that they enter. The first one does so
for a subgraph that several enter. Their outputs have the types of the outputs of the last subgraph;
STABLEHLO_CASE keeps the declared types.
"""

BITCAST_MEMORY: Final = OPERAND_MEMORY + OPERATOR_MEMORY + 2 * ARGUMENT_MEMORY


def infer_types(file: File, subgraphs: Sequence[RawSubgraph]) -> None:
    """Sets the types of computed tensors, and of the inputs of subgraphs that are entered.

    *file* is charged for added operands. Raises `CyclicModel` if a subgraph enters itself.
    """
    # The catalogue of a file infers no types, and an interpreter's start reads no more.
    from penstock.ir.validate import callees_first

    calls = [[t for o in s.operators for t in o.targets] for s in subgraphs]
    done: set[int] = set()
    for index in reversed(callees_first(calls)):
        _infer_subgraph(file, index, subgraphs, done)


def _infer_subgraph(
    file: File, index: int, subgraphs: Sequence[RawSubgraph], done: set[int]
) -> None:
    if index in done:
        return
    done.add(index)
    subgraph = subgraphs[index]
    fixed = subgraph.variables.union(subgraph.inputs)
    operators: list[RawOperator] = []
    for operator in subgraph.operators:
        for target in operator.targets:
            # The caller determines the types of the main subgraph's inputs.
            if target and target not in done:
                _pass_types(operator, subgraph.operands, subgraphs[target])
            _infer_subgraph(file, target, subgraphs, done)
        operators.append(operator)
        operators += _infer(file, operator, subgraph.operands, fixed, subgraphs)
    subgraph.operators = operators


def _pass_types(operator: RawOperator, operands: Sequence[Operand], target: RawSubgraph) -> None:
    """Sets the types of the inputs of *target* to those of the operands that *operator* passes."""
    given = operator.inputs[1:] if operator.type in BRANCHES else operator.inputs
    if operator.type not in ENTERING or len(given) != len(target.inputs):
        return
    for argument, index in zip(given, target.inputs, strict=True):
        if argument >= 0 and operands[argument].dtype is not target.operands[index].dtype:
            dtype = operands[argument].dtype
            target.operands[index] = replace(target.operands[index], dtype=dtype)


def _infer(
    file: File,
    operator: RawOperator,
    operands: list[Operand],
    fixed: Collection[int],
    subgraphs: Sequence[RawSubgraph],
) -> list[RawOperator]:
    """Sets the types of the outputs of one operator; returns operators to insert after it. *fixed*
    tensors keep their type.
    """
    types, relabelled = _computed(operator, operands, subgraphs)
    following: list[RawOperator] = []
    for position, (index, dtype) in enumerate(zip(operator.outputs, types, strict=False)):
        output = operands[index]
        if dtype is None or dtype is output.dtype or output.is_constant or index in fixed:
            continue
        if not relabelled:
            operands[index] = replace(output, dtype=dtype)
        elif dtype.bits is not None and dtype.bits == output.dtype.bits:
            file.charge(BITCAST_MEMORY, operator.place)
            following.append(_bitcast(operator, position, dtype, operands))
    return following


def _computed(
    operator: RawOperator, operands: Sequence[Operand], subgraphs: Sequence[RawSubgraph]
) -> tuple[Sequence[DType | None], bool]:
    """The types of the outputs (None: as declared), and whether they keep the declared type."""
    kind, count = operator.type, len(operator.outputs)
    code = operator.attributes.get("custom_code")
    if kind == "CUSTOM" and isinstance(code, str):
        kind = f"CUSTOM:{code}"
    if operator.targets and kind in ENTERING:
        target = subgraphs[operator.targets[-1]]
        outputs = [target.operands[i].dtype for i in target.outputs]
        return (outputs if len(outputs) == count else ()), kind == "STABLEHLO_CASE"
    if kind == "NON_MAX_SUPPRESSION_V5":
        return SUPPRESSION_V5, False
    rule = RELABELLED.get(kind, OVERWRITTEN.get(kind))
    if rule is None:
        return (), False
    given = [operands[i].dtype if i >= 0 else None for i in operator.inputs]
    return [_type_of(rule, operator, given)] * count, kind in RELABELLED


def _bitcast(
    operator: RawOperator, position: int, dtype: DType, operands: list[Operand]
) -> RawOperator:
    """A BITCAST of an output to its declared type; *operator* writes a new operand."""
    declared = operator.outputs[position]
    operands.append(replace(operands[declared], dtype=dtype, origin=None))
    outputs = list(operator.outputs)
    outputs[position] = len(operands) - 1
    operator.outputs = tuple(outputs)
    origin = Origin(operator.origin.subgraph, operator.origin.index)
    return RawOperator("BITCAST", (outputs[position],), (declared,), {}, origin)
