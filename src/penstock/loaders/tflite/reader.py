"""A TFLite file to a `Model`: the whole of schema v3."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from penstock import knobs
from penstock.errors import Fault, FaultCode, IndexOutOfRange, InvalidSignature, ModelError, Place
from penstock.export.tflite.fields import TFLITE
from penstock.export.tflite.schema import FILE_IDENTIFIER
from penstock.interrupts import polled
from penstock.ir.model import Model
from penstock.ir.operand import DataLocation, Lifetime, Operand
from penstock.ir.operation import AttributeValue
from penstock.ir.subgraph import NO_METADATA, ConstantPool, Metadata, Signature
from penstock.ir.types import NDArray, element_count
from penstock.loaders.flatbuffer import Values, check_header
from penstock.loaders.tflite.bodies import Body, Lowered
from penstock.loaders.tflite.operators import (
    OperatorCode,
    RawOperator,
    RawSubgraph,
    read_codes,
    read_operator,
)
from penstock.loaders.tflite.output_types import infer_types
from penstock.loaders.tflite.tensors import (
    ARCHIVE_END,
    BLOCKWISE,
    END_OF_ARCHIVE,
    File,
    integers,
    read_operand,
    tensor_place,
)
from penstock.logs import Log

MIB = 1 << 20
SUBGRAPH_MEMORY = 3072

log = Log("penstock.loaders")

INTERMEDIATE_OPERATORS = frozenset({"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"})

STATEFUL_OPERATORS = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}
    | {"HASHTABLE", "HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE"}
    | {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"}
    | {"SVDF", "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN"}
    | {"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"}
)
"""Operators that keep state, or read or change it, whatever their operands are."""


def recognizes(content: memoryview) -> bool:
    """Whether *content* carries TFLite's file identifier."""
    return bytes(content[4:8]) == FILE_IDENTIFIER


def may_begin(head: memoryview, size: int | None) -> bool:
    """Whether a file of *size* bytes (None: unknown) that begins with *head* is a TFLite file.
    Raises as `load` for one whose root lies outside.
    """
    if not recognizes(head):
        return False
    check_header(head, size, TFLITE)
    return True


def load(pool: ConstantPool) -> Model:
    """The model in *pool*, whose bytes become the model's first constant pool.

    Raises the `ModelError` subclass of the first defect, with its place in the file.
    """
    file = File(pool)
    tables = file.tables("subgraphs")
    if not tables:
        raise IndexOutOfRange(Fault(FaultCode.NO_SUBGRAPH))
    codes = read_codes(file)
    dense = _Dense(knobs.densify_limit_mib() * MIB)
    raw = [_subgraph(file, codes, i, t, len(tables), dense) for i, t in enumerate(polled(tables))]
    infer_types(file, raw)
    lowered = lower(raw, file.data, dense.left)
    pools = (pool, *dense.pools())
    signatures = _signatures(file, lowered, raw)
    metadata = _once_each(_metadata(file), raw[0].inputs)
    return Model(tuple(lowered.subgraphs), pools, tuple(lowered.variables), signatures, metadata)


def _metadata(file: File) -> Metadata:
    if not file.tables("metadata") and END_OF_ARCHIVE not in file.tail(ARCHIVE_END):
        return NO_METADATA
    from penstock.loaders.tflite.metadata import read_metadata

    return read_metadata(file)


def _once_each(metadata: Metadata, inputs: tuple[int, ...]) -> Metadata:
    """*metadata* with one description an input, where the file lists a tensor more than once."""
    if len(set(inputs)) == len(inputs) or len(metadata.inputs) != len(inputs):
        return metadata
    first = dict(zip(reversed(inputs), reversed(metadata.inputs), strict=True))
    return replace(metadata, inputs=tuple(first[i] for i in dict.fromkeys(inputs)))


class _Dense:
    """Dense forms of sparse constants; all together may take *left* bytes."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.arrays: list[NDArray] = []

    def add(self, file: File, operand: Operand, tensor: Values, where: Place | str) -> Operand:
        """The constant operand for a sparse tensor."""
        from penstock.loaders.tflite.sparsity import dense_size, densify

        place = file.buffer(tensor["buffer"], where)
        shape = integers(tensor["shape"])
        try:
            size = dense_size(operand.dtype, shape, self.left)
            array = np.zeros(element_count(shape), operand.dtype.numpy).reshape(shape)
            stored = memoryview(b"") if place is None else file.bytes_at(place)
            densify(file, tensor["sparsity"], stored, array)
        except ModelError as error:
            raise error.at(where) from None
        self.left -= size
        array.flags.writeable = False
        self.arrays.append(array)
        location = DataLocation(len(self.arrays), 0, size)
        lifetime = Lifetime.CONSTANT_POOL
        return replace(operand, shape=shape, lifetime=lifetime, location=location)

    def pools(self) -> list[ConstantPool]:
        return [ConstantPool(a.reshape(-1).view(np.uint8).data, a) for a in self.arrays]


def _subgraph(
    file: File, codes: list[OperatorCode], index: int, table: Values, subgraphs: int, dense: _Dense
) -> RawSubgraph:
    file.charge(SUBGRAPH_MEMORY, Place(index))
    tensors: list[Values] = table["tensors"] or []
    operands = [read_operand(file, index, i, t) for i, t in enumerate(polled(tensors))]
    for i, tensor in enumerate(tensors):
        if tensor["sparsity"] is not None:
            operands[i] = dense.add(file, operands[i], tensor, tensor_place(index, i, tensor))
    inputs, outputs = integers(table["inputs"]), integers(table["outputs"])
    for kind, indexes in (("input", inputs), ("output", outputs)):
        for i in indexes:
            if not 0 <= i < len(tensors):
                raise IndexOutOfRange(
                    f"{kind} refers to tensor {i} of {len(tensors)}", where=Place(index)
                )
    operators = [
        read_operator(file, codes, index, i, o, len(tensors), subgraphs)
        for i, o in enumerate(polled(table["operators"] or ()))
    ]
    if any(t["quantization"] and t["quantization"]["details_type"] == BLOCKWISE for t in tensors):
        from penstock.loaders.tflite.sparsity import give_scales, read_blocks

        give_scales(index, operators, operands, tensors, read_blocks(tensors))
    for operator in operators:
        if operator.type in INTERMEDIATE_OPERATORS:
            operator.attributes.update(_intermediates(operator, operands))
    variables = frozenset(i for i, t in enumerate(tensors) if t["is_variable"]).difference(inputs)
    for i in variables:
        # Its memory is allocated before the first run and never resized: its whole shape is known.
        operands[i] = replace(operands[i], shape=integers(tensors[i]["shape"]))
    # The tables are released: their memory is needed for the operands made from them.
    table["tensors"] = table["operators"] = None
    return RawSubgraph(index, table["name"] or "", operands, operators, inputs, outputs, variables)


def _intermediates(operator: RawOperator, operands: list[Operand]) -> Mapping[str, AttributeValue]:
    """Scales and zero points of the intermediates of an integer LSTM; scale 0 where there is none."""
    found = [None if i < 0 else operands[i].quantization for i in operator.intermediates]
    if not any(found):
        return {"intermediate_scales": (), "intermediate_zero_points": ()}
    return {
        "intermediate_scales": tuple(0.0 if q is None else q.scale for q in found),
        "intermediate_zero_points": tuple(0 if q is None else q.zero_point for q in found),
    }


def _signatures(file: File, lowered: Lowered, raw: list[RawSubgraph]) -> dict[str, Signature]:
    signatures: dict[str, Signature] = {}
    for name, where, table in file.signatures(len(raw)):
        subgraph = table["subgraph_index"]
        ends = [
            _ends(table[kind] or [], raw[subgraph], lowered.renamed[subgraph], where)
            for kind in ("inputs", "outputs")
        ]
        target = lowered.subgraphs[subgraph]
        real = frozenset(target.ordinary_inputs), frozenset(target.ordinary_outputs)
        stray = [
            n for named, known in zip(ends, real, strict=True) for n, i in named if i not in known
        ]
        if stray:
            # Tools that change a graph's ends leave such signatures behind. The graph is valid.
            log.warning(
                "%s is left out: %s is no input or output of subgraph %d", where, stray[0], subgraph
            )
            continue
        signatures[name] = Signature(subgraph, *ends)
    return signatures


def _ends(
    maps: list[Values], raw: RawSubgraph, renamed: Mapping[int, int], where: Place | str
) -> tuple[tuple[str, int], ...]:
    named: dict[str, int] = {}
    for entry in maps:
        tensor, name = entry["tensor_index"], entry["name"] or ""
        if tensor >= len(raw.operands):
            raise IndexOutOfRange(
                f"{name!r} refers to tensor {tensor} of {len(raw.operands)}", where=where
            )
        if name in named:
            raise InvalidSignature(f"two inputs or outputs are named {name!r}", where=where)
        if tensor not in raw.handles:
            named[name] = renamed.get(tensor, tensor)
    return tuple(named.items())


def lower(raw: list[RawSubgraph], data: memoryview, zero_limit: int) -> Lowered:
    """Lowers all subgraphs of a file with content *data*.

    *zero_limit* bounds the bytes of the initial values that the file does not hold.
    """
    if any(map(_needs_more, raw)):
        from penstock.loaders.tflite.states import lower_states

        return lower_states(raw, data, zero_limit)
    bodies = [Body(subgraph) for subgraph in raw]
    return Lowered([body.lower() for body in bodies], [], [body.renamed for body in bodies])


def _needs_more(subgraph: RawSubgraph) -> bool:
    """Whether *subgraph* may have state or enters another."""
    return bool(subgraph.variables) or any(
        operator.type in STATEFUL_OPERATORS or operator.targets or operator.mutated
        for operator in subgraph.operators
    )
