"""Long short-term memories whose hybrid weights a file holds sparsely: they are those of the dense
file.
"""

from __future__ import annotations

import flatbuffers
import numpy as np
import pytest

from penstock.ir import DType, NDArray
from tests.support_litert import schema
from tests.unit.drivers.reference.support_lstm import Form, real_case
from tests.unit.drivers.reference.support_recurrent import (
    Case,
    Constant,
    Item,
    pairs,
    run_litert,
    run_reference,
)

BLOCK = 16
"""Columns of a block, as the kernel of LSTM has them."""

INPUT, RECURRENT, PROJECTION = [1, 2, 3, 4], [5, 6, 7, 8], [16]


def thin_case(*, asymmetric: bool = False) -> Case:
    """A hybrid LSTM half of whose blocks of weights are zero."""
    rng = np.random.default_rng(1)
    case = real_case(
        Form(kind="LSTM", size=32, cells=32, outputs=16),
        rng,
        DType.INT8,
        asymmetric_quantize_inputs=asymmetric,
    )
    return Case(case.kind, [thin(i, rng) for i in case.inputs], case.outputs, case.attributes)


def thin(item: Item, rng: np.random.Generator) -> Item:
    if not isinstance(item, Constant) or item.value.dtype != np.int8 or item.value.ndim != 2:
        return item
    rows, columns = item.value.shape
    blocks = item.value.reshape(rows, columns // BLOCK, BLOCK).copy()
    blocks[rng.random(blocks.shape[:2]) < 0.5] = 0
    return Constant(blocks.reshape(rows, columns), item.quantization)


def dense(size: int) -> object:
    made = schema.DimensionMetadataT()
    made.format, made.denseSize = schema.DimensionType.DENSE, size
    return made


def vector(values: list[int]) -> object:
    made = schema.Int32VectorT()
    made.values = values
    return made


def sparse(file: bytes, positions: list[int]) -> bytes:
    """The same file with the weights at *positions* in blocks."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(file, 0))
    graph = model.subgraphs[0]
    for position in positions:
        tensor = graph.tensors[graph.operators[0].inputs[position]]
        rows, columns = tensor.shape
        stored = np.array(model.buffers[tensor.buffer].data, np.uint8)
        blocks = stored.reshape(rows, columns // BLOCK, BLOCK)
        kept = blocks.any(axis=2)
        middle = schema.DimensionMetadataT()
        middle.format = schema.DimensionType.SPARSE_CSR
        middle.arraySegments = vector([0, *(int(n) for n in kept.sum(axis=1).cumsum())])
        middle.arrayIndices = vector([int(i) for i in np.nonzero(kept)[1]])
        kind = schema.SparseIndexVector.Int32Vector
        middle.arraySegmentsType = middle.arrayIndicesType = kind
        tensor.sparsity = schema.SparsityParametersT()
        tensor.sparsity.traversalOrder, tensor.sparsity.blockMap = [0, 1, 2], [1]
        tensor.sparsity.dimMetadata = [dense(rows), middle, dense(BLOCK)]
        buffer = schema.BufferT()
        buffer.data = blocks[kept].reshape(-1)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def worst(a: list[list[NDArray]], b: list[list[NDArray]]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in pairs(a, b))


def test_lstm_with_sparse_weights_agrees_with_litert() -> None:
    case = thin_case()
    file = sparse(case.model(), INPUT + PROJECTION)
    feeds = case.feeds(np.random.default_rng(2), 3, reach=2.0)
    assert worst(run_reference(file, feeds), run_litert(file, feeds)) < 1e-6


@pytest.mark.parametrize(
    ("positions", "asymmetric"),
    [(INPUT + RECURRENT + PROJECTION, False), (INPUT + PROJECTION, True)],
    ids=["recurrent weights", "asymmetric inputs"],
)
def test_litert_computes_sparse_lstm_weights_differently(
    positions: list[int], asymmetric: bool
) -> None:
    """LiteRT scales the previous output as it does the input, and leaves offsets out
    (docs/differences.md).
    """
    case = thin_case(asymmetric=asymmetric)
    file = sparse(case.model(), positions)
    feeds = case.feeds(np.random.default_rng(2), 3, reach=2.0)
    ours = run_reference(file, feeds)
    assert worst(ours, run_reference(case.model(), feeds)) == 0
    assert worst(ours, run_litert(case.model(), feeds)) < 1e-6
    assert worst(ours, run_litert(file, feeds)) > 1e-2
