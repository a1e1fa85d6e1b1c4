"""Weights quantised block by block along their rows.

The file keeps one scale a block in a tensor of its own (`BlockwiseQuantization`). LiteRT's kernels
read it in two operators, which here take it as another, last input; everywhere else the weights are
bare integers. Their zero points, which LiteRT does not read, are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import IndexOutOfRange, InvalidQuantization, Place
from penstock.export.tflite.blocks import BLOCK_SCALED
from penstock.ir.operand import Operand
from penstock.ir.types import DType, element_count
from penstock.loaders.flatbuffer import Values
from penstock.loaders.tflite.file import tensor_place
from penstock.loaders.tflite.operators import RawOperator
from penstock.loaders.tflite.tensors import BLOCKWISE


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
