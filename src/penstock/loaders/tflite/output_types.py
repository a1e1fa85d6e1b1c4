"""Element types of computed tensors, where LiteRT's differ from what the file declares.

Most kernels of LiteRT set the type of their output from the inputs, so that a wrong declaration
does not matter (`OVERWRITTEN`). Some keep the declared type and write other values under it
(`RELABELLED`): the bytes of a float32 sum that is declared int32 are read as int32. Where both
types have the same width, that is a BITCAST here. Otherwise LiteRT overruns its tensor or leaves a
part of it unwritten; the declaration stays, and the operation table refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from penstock.ir.operand import Operand, Origin
from penstock.ir.types import DType
from penstock.ir.validate import callees_first
from penstock.loaders.tflite.operators import (
    ARGUMENT_MEMORY,
    BRANCHES,
    OPERATOR_MEMORY,
    RawOperator,
    RawSubgraph,
)
from penstock.loaders.tflite.tensors import OPERAND_MEMORY, File

Rule: TypeAlias = "Callable[[RawOperator, Sequence[DType | None]], DType | None]"
"""The type of an operator's outputs by those of its inputs (None: omitted); None for unknown."""


def _input(position: int) -> Rule:
    def rule(_: RawOperator, types: Sequence[DType | None]) -> DType | None:
        return types[position] if position < len(types) else None

    return rule


def _always(dtype: DType) -> Rule:
    return lambda _, __: dtype


def _attribute(name: str) -> Rule:
    def rule(operator: RawOperator, _: Sequence[DType | None]) -> DType | None:
        value = operator.attributes.get(name)
        return DType[value] if isinstance(value, str) and value in DType.__members__ else None

    return rule


def _float(_: RawOperator, types: Sequence[DType | None]) -> DType | None:
    """The first input's type if that is a float: kernels for integers use the output's type."""
    return types[0] if types and types[0] is not None and types[0].is_float else None


def _float_or_int16(operator: RawOperator, types: Sequence[DType | None]) -> DType | None:
    """As `_float`, and int16: kernels for 8-bit integers use the output's type."""
    return types[0] if types and types[0] is DType.INT16 else _float(operator, types)


def _rows(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


OVERWRITTEN: Final[dict[str, Rule]] = {
    **_rows(
        "ADD_N BITWISE_XOR CEIL DYNAMIC_UPDATE_SLICE EXP EXPAND_DIMS FAKE_QUANT FLOOR FLOOR_DIV "
        "FLOOR_MOD "
        "GATHER GATHER_ND MATRIX_DIAG MATRIX_SET_DIAG MAXIMUM MINIMUM NEG POW PRELU RANGE "
        "RESIZE_BILINEAR "
        "RESIZE_NEAREST_NEIGHBOR RIGHT_SHIFT ROUND SPLIT_V STABLEHLO_SHIFT_LEFT ZEROS_LIKE",
        _input(0),
    ),
    **_rows("ADD SUB DIV SQUARED_DIFFERENCE FILL SCATTER_ND SELECT SELECT_V2 SPLIT", _input(1)),
    **_rows("ONE_HOT SPARSE_TO_DENSE", _input(2)),
    **_rows(
        "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR",
        _always(DType.BOOL),
    ),
    **_rows("BUCKETIZE RANK NON_MAX_SUPPRESSION_V4", _always(DType.INT32)),
    "WHERE": _always(DType.INT64),
    "RFFT2D": _always(DType.COMPLEX64),
    **_rows(
        "DEQUANTIZE CUSTOM:NumericVerify CUSTOM:TFLite_Detection_PostProcess",
        _always(DType.FLOAT32),
    ),
    **_rows("ARG_MAX ARG_MIN", _attribute("output_type")),
    "SHAPE": _attribute("out_type"),
}
"""Operators whose kernels set the type of every output."""

RELABELLED: Final[dict[str, Rule]] = {
    **_rows(
        "CUMSUM MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RESHAPE SEGMENT_SUM "
        "SQUEEZE SUM "
        "STABLEHLO_ADD STABLEHLO_AND STABLEHLO_GATHER STABLEHLO_MAXIMUM STABLEHLO_MINIMUM "
        "STABLEHLO_MULTIPLY "
        "STABLEHLO_SCATTER UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD "
        "UNSORTED_SEGMENT_SUM CUSTOM:aeq.hadamard_rotation BATCH_MATMUL SVDF",
        _input(0),
    ),
    **_rows(
        "RNN UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN LSTM "
        "UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM",
        _float,
    ),
    "SOFTMAX": _float_or_int16,
    "LSH_PROJECTION": _always(DType.INT32),
}
"""Operators whose kernels write values of this type, whatever type their output has."""

SUPPRESSION_V5: Final = (DType.INT32, DType.FLOAT32, DType.INT32)
"""Types of the outputs of NON_MAX_SUPPRESSION_V5: which boxes, their scores, how many."""


ENTERING: Final = frozenset({"IF", "WHILE", "STABLEHLO_COMPOSITE", "STABLEHLO_CASE"})
"""Operators that set the types of the inputs of subgraphs that they enter. The first one does so
for a subgraph that several enter. Their outputs have the types of the outputs of the last subgraph;
STABLEHLO_CASE keeps the declared types.
"""

BITCAST_MEMORY: Final = OPERAND_MEMORY + OPERATOR_MEMORY + 2 * ARGUMENT_MEMORY


def infer_types(file: File, subgraphs: Sequence[RawSubgraph]) -> None:
    """Sets the types of computed tensors, and of the inputs of subgraphs that are entered.

    *file* is charged for what is added. Raises `CyclicModel` where a subgraph enters itself.
    """
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
            # The types of the main subgraph's inputs are the caller's.
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
    rule = RELABELLED.get(kind) or OVERWRITTEN.get(kind)
    if rule is None:
        return (), False
    given = [operands[i].dtype if i >= 0 else None for i in operator.inputs]
    return [rule(operator, given)] * count, kind in RELABELLED


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
