"""Constants that the file does not hold plainly: sparse tensors, and scales of blocks.

A sparse tensor (`SparsityParameters`) is made dense. Weights quantised block by block along their
rows have one scale a block in a tensor of its own (`BlockwiseQuantization`). LiteRT reads it in two
operators, which here take it as another, last input; elsewhere the weights are bare integers. Their
zero points, which LiteRT does not read, are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import (
    IndexOutOfRange,
    InvalidQuantization,
    InvalidSparsity,
    LimitExceeded,
    Place,
)
from penstock.export.tflite.options import BLOCK_SCALED
from penstock.ir.operand import Operand
from penstock.ir.types import PACKED, DType, NDArray, element_count
from penstock.loaders.flatbuffer import Blob, Values
from penstock.loaders.tflite.operators import RawOperator
from penstock.loaders.tflite.tensors import BLOCKWISE, File, integers, tensor_place

DENSE: Final = 0
SPARSE_CSR: Final = 1
MAX_LEVELS: Final = 32
INDEX_MEMORY: Final = 8


def dense_size(dtype: DType, shape: tuple[int, ...], limit: int) -> int:
    """Bytes the dense form takes. Raises `InvalidSparsity` or `LimitExceeded`, before anything is
    allocated.
    """
    bits = dtype.bits
    if bits is None or dtype in PACKED:
        raise InvalidSparsity(f"a {dtype.value} tensor cannot be sparse")
    size = element_count(shape) * bits // 8
    if size > limit:
        raise LimitExceeded(
            f"densified it would take {size} bytes; densify_limit_mib allows {limit}"
        )
    return size


def densify(file: File, sparsity: Values, stored: memoryview, dense: NDArray) -> None:
    """Fills *dense* (zeros, of the tensor's shape) with the values *stored* as *sparsity* says."""
    shape = dense.shape
    values = np.frombuffer(stored[: len(stored) // dense.itemsize * dense.itemsize], dense.dtype)
    order, blocks = _levels(sparsity, shape)
    levels = sparsity["dim_metadata"]
    coordinates: list[NDArray] = []
    nodes = 1
    room = file.memory_left // (INDEX_MEMORY * (len(levels) + 4))
    for metadata in levels:
        parents, index = _expand(file, metadata, nodes, len(file.data), room)
        nodes = len(index)
        coordinates = [c[parents] for c in coordinates]
        coordinates.append(index)
    if nodes > len(values):
        raise InvalidSparsity(f"the index has {nodes} elements, {len(values)} values are stored")
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
        raise InvalidSparsity(
            f"{len(levels)} levels, {len(order)} in traversal order, {len(blocks)} blocks, rank {rank}"
        )
    if sorted(order) != list(range(len(levels))):
        raise InvalidSparsity(f"traversal order {order} is not a permutation")
    if any(not 0 <= b < rank for b in blocks) or len(set(blocks)) != len(blocks):
        raise InvalidSparsity(f"block map {blocks} of a rank-{rank} tensor")
    return order, blocks


def _expand(
    file: File, metadata: Values, nodes: int, limit: int, room: int
) -> tuple[NDArray, NDArray]:
    """Parent and index of every node of the next level, of which there may be *room*
    (`LimitExceeded`).
    """
    if metadata["format"] == DENSE:
        size = metadata["dense_size"]
        if size <= 0 or nodes * size > limit:
            raise InvalidSparsity(
                f"a dense level of size {size} under {nodes} nodes needs more values than are stored"
            )
        _check_room(nodes * size, room)
        return np.repeat(np.arange(nodes), size), np.tile(np.arange(size), nodes)
    if metadata["format"] != SPARSE_CSR:
        raise InvalidSparsity(f"level format {metadata['format']} is not known")
    segments = _vector(file, metadata, "array_segments", room)
    indices = _vector(file, metadata, "array_indices", room)
    if len(segments) != nodes + 1 or segments[0] != 0 or segments[-1] != len(indices):
        raise InvalidSparsity(
            f"{len(segments)} segments for {nodes} nodes and {len(indices)} indexes"
        )
    counts = np.diff(segments)
    if np.any(counts < 0) or (len(indices) and indices.min() < 0):
        raise InvalidSparsity("segments or indexes of a compressed level are out of order")
    return np.repeat(np.arange(nodes), counts), indices


def _check_room(nodes: int, room: int) -> None:
    if nodes > room:
        raise LimitExceeded(f"an index of {nodes} elements on each level takes too much memory")


def _vector(file: File, metadata: Values, name: str, room: int) -> NDArray:
    table = metadata[name]
    values: Any = None if table is None else table["values"]
    if values is None:
        raise InvalidSparsity(f"a compressed level has no {name}")
    _check_room((values.length if isinstance(values, Blob) else len(values)) - 1, room)
    if isinstance(values, Blob):
        values = np.frombuffer(file.data, np.uint8, values.length, values.offset)
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
            raise InvalidSparsity("a block level must be dense")
        block_size[dimension] = metadata["dense_size"]
    flat = np.zeros(len(coordinates[-1]), np.int64)
    for dimension in range(rank):
        index = coordinates[level_of[dimension]] * block_size[dimension]
        for at, blocked in enumerate(blocks):
            if blocked == dimension:
                index = index + coordinates[level_of[rank + at]]
        if len(index) and int(index.max()) >= shape[dimension]:
            raise InvalidSparsity(
                f"index {int(index.max())} of dimension {dimension}, which has size {shape[dimension]}"
            )
        flat += index * math.prod(shape[dimension + 1 :])
    return flat


class Blocks(Struct, frozen=True):
    """Where the scales of a tensor stand, and how many elements share one."""

    scales: int
    size: int


def read_blocks(tensors: Sequence[Values]) -> dict[int, Blocks]:
    """The tensors that are quantised in blocks."""
    found: dict[int, Blocks] = {}
    for index, tensor in enumerate(tensors):
        table = tensor["quantization"]
        if table is not None and table["details_type"] == BLOCKWISE:
            details = table["details"]
            if details is None:
                raise InvalidQuantization(
                    f"tensor {index} has scales in blocks, and not their details"
                )
            found[index] = Blocks(details["scales"], details["block_size"])
    return found


def give_scales(
    subgraph: int,
    operators: Sequence[RawOperator],
    operands: list[Operand],
    tensors: Sequence[Values],
    blocks: dict[int, Blocks],
) -> None:
    """Appends the scales to the inputs of every operator that scales weights by blocks."""
    shaped: dict[int, int] = {}
    for operator in operators:
        position = BLOCK_SCALED.get(operator.type)
        weights = operator.inputs[1] if len(operator.inputs) > 1 else -1
        if position is None or weights not in blocks:
            continue
        if weights not in shaped:
            place = tensor_place(subgraph, weights, tensors[weights])
            scales = _scales(operands, weights, blocks[weights], place)
            shaped[weights] = len(operands)
            operands.append(scales)
        missing = position - len(operator.inputs)
        operator.inputs = (*operator.inputs, *[-1] * missing, shaped[weights])


def _scales(operands: list[Operand], weights: int, blocks: Blocks, where: Place) -> Operand:
    """The scales of *weights* as an operand [rows, blocks of a row]."""
    if not 0 <= blocks.scales < len(operands):
        raise IndexOutOfRange(
            f"scales refer to tensor {blocks.scales} of {len(operands)}", where=where
        )
    shape, scales = operands[weights].shape, operands[blocks.scales]
    rows, depth = shape if shape is not None and len(shape) == 2 else (None, None)
    if rows is None or depth is None or blocks.size < 1 or depth % blocks.size:
        raise InvalidQuantization(
            f"weights of shape {shape} in blocks of {blocks.size}", where=where
        )
    wanted = (rows, depth // blocks.size)
    count = rows * wanted[1]
    known = None if scales.shape is None else tuple(d or 0 for d in scales.shape)
    if not scales.is_constant or scales.dtype is not DType.FLOAT16:
        raise InvalidQuantization("scales of blocks are no float16 constant", where=where)
    if known is None or element_count(known) != count:
        raise InvalidQuantization(f"scales of shape {known} for blocks {wanted}", where=where)
    return replace(scales, shape=wanted, origin=None)
