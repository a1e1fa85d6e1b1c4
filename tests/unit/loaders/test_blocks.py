"""Weights whose scales are given block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import IndexOutOfRange, InvalidQuantization, ModelError, NotExportable
from penstock.export.tflite import write
from penstock.export.tflite.fields import TFLITE
from penstock.ir import DType, Model, ModelBuilder
from penstock.ir.builder import pack
from tests.unit.loaders.files import FileBuilder

KIND = TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization")


def table(
    scales: Any = None, *, shape: tuple[int, ...] = (4, 8), constant: bool = True, **details: int
) -> FileBuilder:
    """EMBEDDING_LOOKUP in a table of int4 rows in two blocks each."""
    file = FileBuilder()
    ids, rows = file.tensor("ids", [2], "INT32"), file.tensor("rows", [2, 8])
    array = np.ones((4, 2), np.float16) if scales is None else scales
    place = file.tensor(
        "scales", array.shape, array.dtype.name.upper(), array if constant else None
    )
    values = np.zeros(shape, DType.INT4.numpy)
    found = {"scales": place, "block_size": 4, "zero_points": 0, **details}
    params = file.tensor(
        "params",
        shape,
        "INT4",
        pack(values, DType.INT4)[0],
        quantization={"details_type": KIND, "details": found},
    )
    file.operator("EMBEDDING_LOOKUP", [ids, params], [rows])
    file.end([ids], [rows])
    return file


def load(file: FileBuilder) -> Model:
    return loaders.load(file.encode())


@pytest.mark.parametrize("shape", [(4, 2), (8,), (1, 4, 2)])
def test_scales_become_an_input(shape: tuple[int, ...]) -> None:
    model = load(table(np.arange(8, dtype=np.float16).reshape(shape)))
    (lookup,) = model.operations
    params, scales = (model.operands[i] for i in lookup.inputs[1:])
    assert params.quantization is None
    assert (scales.shape, scales.dtype) == ((4, 2), DType.FLOAT16)
    assert model.constant(scales).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_two_operators_share_scales() -> None:
    file = table()
    again = file.tensor("again", [2, 8])
    file.operator("EMBEDDING_LOOKUP", [0, 3], [again])
    model = load(file)
    assert model.operations[0].inputs[2] == model.operations[1].inputs[2]


def test_what_is_written_reads_back_equal() -> None:
    model = load(table())
    assert loaders.load(write(model)) == model


def test_elsewhere_the_weights_are_bare_integers() -> None:
    file = table()
    gathered = file.tensor("gathered", [2, 8], "INT4")
    file.operator("GATHER", [3, 0], [gathered])
    assert len(load(file).operations[1].inputs) == 2


def at(place: int) -> FileBuilder:
    file = table()
    file.graph["tensors"][3]["quantization"]["details"]["scales"] = place
    return file


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        (table(np.ones((4, 2), np.float32)), InvalidQuantization, "float16"),
        (table(constant=False), InvalidQuantization, "float16 constant"),
        (table(np.ones((4, 3), np.float16)), InvalidQuantization, "scales of shape"),
        (table(block_size=3), InvalidQuantization, "blocks of 3"),
        (table(block_size=0), InvalidQuantization, "blocks of 0"),
        (table(block_size=-4), InvalidQuantization, "blocks of -4"),
        (table(shape=(2, 2, 8)), InvalidQuantization, r"\(2, 2, 8\)"),
        (at(99), IndexOutOfRange, "tensor 99 of 4"),
        (at(-1), IndexOutOfRange, "tensor -1 of 4"),
    ],
)
def test_broken_blocks_are_named(file: FileBuilder, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words):
        load(file)


def test_a_kind_without_its_details_is_named() -> None:
    file = table()
    file.graph["tensors"][3]["quantization"]["details"] = None
    with pytest.raises(InvalidQuantization, match=r"tensor 3 .* details"):
        load(file)


def test_computed_scales_are_not_written() -> None:
    builder = ModelBuilder()
    ids = builder.input(DType.INT32, (2,), "ids")
    params = builder.constant(np.zeros((4, 8), DType.INT4.numpy), dtype=DType.INT4)
    scales = builder.input(DType.FLOAT16, (4, 2), "scales")
    (rows,) = builder.operation(
        "EMBEDDING_LOOKUP", [ids, params, scales], [(DType.FLOAT32, (2, 8))]
    )
    with pytest.raises(NotExportable, match="constants"):
        write(builder.build([rows]))
