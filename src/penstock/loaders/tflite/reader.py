"""A TFLite file to a `Model`.

This module also computes constants that the file stores in another form. A sparse tensor
(`SparsityParameters`) is made dense. Weights quantised block by block along their rows have one
scale for each block, in a separate tensor (`BlockwiseQuantization`). LiteRT uses these scales in
two operators, which here get them as an additional last input. For other operators the weights are
plain integers. Their zero points, which LiteRT does not read, are 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock import errors, knobs
from penstock.export.tflite.fields import BLOCK_SCALED, RANDOM_INPUTS, STATE_INPUTS
from penstock.faults import Fault, FaultCode
from penstock.interrupts import polled
from penstock.ir.model import Model
from penstock.ir.operand import DataLocation, Lifetime, Operand, Origin
from penstock.ir.operation import AttributeValue
from penstock.ir.subgraph import NO_METADATA, ConstantPool, Metadata, Signature
from penstock.ir.types import PACKED, DType, NDArray, element_count
from penstock.loaders.flatbuffer import Values
from penstock.loaders.tflite.body import Body, Lowered
from penstock.loaders.tflite.operators import (
    RESOURCE_OPERATORS,
    OperatorCode,
    RawOperator,
    RawSubgraph,
    infer_types,
    read_codes,
    read_operator,
)
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

STATEFUL_OPERATORS = RESOURCE_OPERATORS | RANDOM_INPUTS.keys() | STATE_INPUTS.keys()
"""Operators that have state, or read or change it, whatever their operands are."""


def load(pool: ConstantPool) -> Model:
    """The model in *pool*, whose bytes become the model's first constant pool.

    Raises the `ModelError` subclass of the first defect, with its place in the file.
    """
    file = File(pool)
    tables = file.tables("subgraphs")
    if not tables:
        raise errors.IndexOutOfRange(Fault(FaultCode.NO_SUBGRAPH))
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
    """*metadata* with one description for each input of the model. The file may list a tensor
    several times.
    """
    if len(set(inputs)) == len(inputs) or len(metadata.inputs) != len(inputs):
        return metadata
    first = dict(zip(reversed(inputs), reversed(metadata.inputs), strict=True))
    return replace(metadata, inputs=tuple(first[i] for i in dict.fromkeys(inputs)))


class _Dense:
    """Dense forms of sparse constants. Their total size is limited to *left* bytes."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.arrays: list[NDArray] = []

    def add(self, file: File, operand: Operand, tensor: Values) -> Operand:
        """The constant operand for a sparse tensor."""
        shape, place = integers(tensor["shape"]), file.buffer(tensor["buffer"])
        size = dense_size(operand.dtype, shape, self.left)
        array = np.zeros(element_count(shape), operand.dtype.numpy).reshape(shape)
        stored = memoryview(b"") if place is None else file.bytes_at(place)
        densify(file, tensor["sparsity"], stored, array)
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
    file.charge(SUBGRAPH_MEMORY, errors.Place(index))
    tensors: list[Values] = table["tensors"] or []
    operands = [read_operand(file, index, i, t) for i, t in enumerate(polled(tensors))]
    for i, tensor in enumerate(tensors):
        if tensor["sparsity"] is not None:
            try:
                operands[i] = dense.add(file, operands[i], tensor)
            except errors.ModelError as error:
                raise error.at(tensor_place(index, i, tensor)) from None
    inputs, outputs = integers(table["inputs"]), integers(table["outputs"])
    for kind, indexes in (("input", inputs), ("output", outputs)):
        for i in indexes:
            if not 0 <= i < len(tensors):
                raise errors.IndexOutOfRange(
                    f"{kind} refers to tensor {i} of {len(tensors)}", where=errors.Place(index)
                )
    operators = [
        read_operator(file, codes, Origin(index, i), o, (len(tensors), subgraphs))
        for i, o in enumerate(polled(table["operators"] or ()))
    ]
    give_scales(index, operators, operands, tensors)
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
    """Scales and zero points of the intermediates of an integer LSTM. Scale 0 means none."""
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
        index = table["subgraph_index"]
        target = lowered.subgraphs[index]
        ends: list[tuple[tuple[str, int], ...]] = []
        stray: list[str] = []
        for kind, known in (
            ("inputs", frozenset(target.ordinary_inputs)),
            ("outputs", frozenset(target.ordinary_outputs)),
        ):
            try:
                named = _named(table[kind] or [], raw[index], lowered.renamed[index])
            except errors.ModelError as error:
                raise error.at(where) from None
            stray += [label for label, operand in named.items() if operand not in known]
            ends.append(tuple(named.items()))
        if stray:
            # Tools that change a graph's inputs or outputs leave such signatures. The graph is
            # valid.
            log.warning(
                "%s is left out: %s is no input or output of subgraph %d", where, stray[0], index
            )
            continue
        signatures[name] = Signature(index, *ends)
    return signatures


def _named(maps: list[Values], raw: RawSubgraph, renamed: Mapping[int, int]) -> dict[str, int]:
    """The operand of each name."""
    named: dict[str, int] = {}
    for entry in maps:
        tensor, name = entry["tensor_index"], entry["name"] or ""
        if tensor >= len(raw.operands):
            raise errors.IndexOutOfRange(
                f"{name!r} refers to tensor {tensor} of {len(raw.operands)}"
            )
        if name in named:
            raise errors.InvalidSignature(f"two inputs or outputs are named {name!r}")
        if tensor not in raw.handles:
            named[name] = renamed.get(tensor, tensor)
    return named


def lower(raw: list[RawSubgraph], data: memoryview, zero_limit: int) -> Lowered:
    """Lowers all subgraphs of a file with content *data*.

    *zero_limit* limits the bytes of initial values that are not in the file.
    """
    if any(map(_needs_more, raw)):
        from penstock.loaders.tflite.states import lower_states

        return lower_states(raw, data, zero_limit)
    bodies = [Body(subgraph) for subgraph in raw]
    return Lowered([body.lower() for body in bodies], [], [body.renamed for body in bodies])


def _needs_more(subgraph: RawSubgraph) -> bool:
    """Whether *subgraph* may have state or enters another subgraph."""
    return bool(subgraph.variables) or any(
        operator.type in STATEFUL_OPERATORS or operator.targets or operator.mutated
        for operator in subgraph.operators
    )


DENSE: Final = 0
SPARSE_CSR: Final = 1
MAX_LEVELS: Final = 32
INDEX_MEMORY: Final = 8


def dense_size(dtype: DType, shape: tuple[int, ...], limit: int) -> int:
    """Size, in bytes, of the dense form. Raises `InvalidSparsity` or `LimitExceeded` before memory
    is allocated.
    """
    bits = dtype.bits
    if bits is None or dtype in PACKED:
        raise errors.InvalidSparsity(f"a {dtype.value} tensor cannot be sparse")
    size = element_count(shape) * bits // 8
    if size > limit:
        raise errors.LimitExceeded(
            f"densified it would take {size} bytes; densify_limit_mib allows {limit}"
        )
    return size


def densify(file: File, sparsity: Values, stored: memoryview, dense: NDArray) -> None:
    """Fills *dense* (zeros, of the tensor's shape) with the values *stored*, at the positions of
    *sparsity*.
    """
    shape = dense.shape
    values = np.frombuffer(stored[: len(stored) // dense.itemsize * dense.itemsize], dense.dtype)
    order, blocks = _levels(sparsity, shape)
    levels = sparsity["dim_metadata"]
    coordinates: list[NDArray] = []
    nodes = 1
    room = file.memory_left // (INDEX_MEMORY * (len(levels) + 4))
    for metadata in levels:
        parents, index = _expand(file, metadata, nodes, room)
        nodes = len(index)
        coordinates = [c[parents] for c in coordinates]
        coordinates.append(index)
    if nodes > len(values):
        raise errors.InvalidSparsity(
            f"the index has {nodes} elements, {len(values)} values are stored"
        )
    place = _places(shape, order, blocks, coordinates, levels)
    dense.reshape(-1)[place] = values[:nodes]


def _levels(sparsity: Values, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    order, blocks = integers(sparsity["traversal_order"]), integers(sparsity["block_map"])
    levels = sparsity["dim_metadata"] or []
    rank = len(shape)
    if (
        not 0 < len(levels) <= MAX_LEVELS
        or len(levels) != rank + len(blocks)
        or len(order) != len(levels)
    ):
        raise errors.InvalidSparsity(
            f"{len(levels)} levels, {len(order)} in traversal order, {len(blocks)} blocks, rank "
            f"{rank}"
        )
    if sorted(order) != list(range(len(levels))):
        raise errors.InvalidSparsity(f"traversal order {order} is not a permutation")
    if any(not 0 <= b < rank for b in blocks) or len(set(blocks)) != len(blocks):
        raise errors.InvalidSparsity(f"block map {blocks} of a rank-{rank} tensor")
    return order, blocks


def _expand(file: File, metadata: Values, nodes: int, room: int) -> tuple[NDArray, NDArray]:
    """Parent and index of every node of the next level. Raises `LimitExceeded` if the level has
    more than *room* nodes.
    """
    if metadata["format"] == DENSE:
        size = metadata["dense_size"]
        if size <= 0 or nodes * size > len(file.data):
            raise errors.InvalidSparsity(
                f"a dense level of size {size} under {nodes} nodes needs more values than are "
                "stored"
            )
        _check_room(nodes * size, room)
        return np.repeat(np.arange(nodes), size), np.tile(np.arange(size), nodes)
    if metadata["format"] != SPARSE_CSR:
        raise errors.InvalidSparsity(f"level format {metadata['format']} is not known")
    segments = _vector(file, metadata, "array_segments", room)
    indices = _vector(file, metadata, "array_indices", room)
    if len(segments) != nodes + 1 or segments[0] != 0 or segments[-1] != len(indices):
        raise errors.InvalidSparsity(
            f"{len(segments)} segments for {nodes} nodes and {len(indices)} indexes"
        )
    counts = np.diff(segments)
    if np.any(counts < 0) or (len(indices) and indices.min() < 0):
        raise errors.InvalidSparsity("segments or indexes of a compressed level are out of order")
    return np.repeat(np.arange(nodes), counts), indices


def _check_room(nodes: int, room: int) -> None:
    if nodes > room:
        raise errors.LimitExceeded(
            f"an index of {nodes} elements on each level takes too much memory"
        )


def _vector(file: File, metadata: Values, name: str, room: int) -> NDArray:
    values = file.indexes(metadata[name])
    if values is None:
        raise errors.InvalidSparsity(f"a compressed level has no {name}")
    _check_room(len(values) - 1, room)
    return np.asarray(values, np.int64)


def _places(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    blocks: tuple[int, ...],
    coordinates: list[NDArray],
    levels: list[Values],
) -> NDArray:
    """The flat dense index of every leaf."""
    rank = len(shape)
    level_of = {dimension: level for level, dimension in enumerate(order)}
    block_size = [1] * rank
    for at, dimension in enumerate(blocks):
        metadata = levels[level_of[rank + at]]
        if metadata["format"] != DENSE or metadata["dense_size"] <= 0:
            raise errors.InvalidSparsity("a block level must be dense")
        block_size[dimension] = metadata["dense_size"]
    flat = np.zeros(len(coordinates[-1]), np.int64)
    for dimension in range(rank):
        index = coordinates[level_of[dimension]] * block_size[dimension]
        for at, blocked in enumerate(blocks):
            if blocked == dimension:
                index = index + coordinates[level_of[rank + at]]
        if len(index) and int(index.max()) >= shape[dimension]:
            raise errors.InvalidSparsity(
                f"index {int(index.max())} of dimension {dimension}, which has size "
                f"{shape[dimension]}"
            )
        flat += index * math.prod(shape[dimension + 1 :])
    return flat


def give_scales(
    subgraph: int,
    operators: Sequence[RawOperator],
    operands: list[Operand],
    tensors: Sequence[Values],
) -> None:
    """Appends the scales to the inputs of every operator that scales weights by blocks."""
    blocks: dict[int, Values] = {}
    for index, tensor in enumerate(tensors):
        table = tensor["quantization"]
        if table is not None and table["details_type"] == BLOCKWISE:
            if table["details"] is None:
                raise errors.InvalidQuantization(
                    f"tensor {index} has scales in blocks, and not their details"
                )
            blocks[index] = table["details"]
    shaped: dict[int, int] = {}
    for operator in operators if blocks else ():
        position = BLOCK_SCALED.get(operator.type)
        weights = operator.inputs[1] if len(operator.inputs) > 1 else -1
        if position is None or weights not in blocks:
            continue
        if weights not in shaped:
            try:
                scales = _scales(operands, weights, blocks[weights])
            except errors.ModelError as error:
                raise error.at(tensor_place(subgraph, weights, tensors[weights])) from None
            shaped[weights] = len(operands)
            operands.append(scales)
        missing = position - len(operator.inputs)
        operator.inputs = (*operator.inputs, *[-1] * missing, shaped[weights])


def _scales(operands: list[Operand], weights: int, blocks: Values) -> Operand:
    """The scales of *weights* as an operand [rows, blocks of a row]."""
    place, size = blocks["scales"], blocks["block_size"]
    if not 0 <= place < len(operands):
        raise errors.IndexOutOfRange(f"scales refer to tensor {place} of {len(operands)}")
    shape, scales = operands[weights].shape, operands[place]
    rows, depth = shape if shape is not None and len(shape) == 2 else (None, None)
    if rows is None or depth is None or size < 1 or depth % size:
        raise errors.InvalidQuantization(f"weights of shape {shape} in blocks of {size}")
    wanted = (rows, depth // size)
    known = None if scales.shape is None else tuple(d or 0 for d in scales.shape)
    if not scales.is_constant or scales.dtype is not DType.FLOAT16:
        raise errors.InvalidQuantization("scales of blocks are no float16 constant")
    if known is None or element_count(known) != rows * wanted[1]:
        raise errors.InvalidQuantization(f"scales of shape {known} for blocks {wanted}")
    return replace(scales, shape=wanted, origin=None)
