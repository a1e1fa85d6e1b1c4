"""Weights whose scales are given block by block."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import IndexOutOfRange, InvalidQuantization, ModelError, NotExportable
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder
from tests.unit.loaders.files import FileBuilder, block_scaled


def load(file: FileBuilder) -> Model:
    return loaders.load(file.encode())


@pytest.mark.parametrize("shape", [(4, 2), (8,), (1, 4, 2)])
def test_scales_become_an_input(shape: tuple[int, ...]) -> None:
    model = load(block_scaled(np.arange(8, dtype=np.float16).reshape(shape)))
    (lookup,) = model.operations
    params, scales = (model.operands[i] for i in lookup.inputs[1:])
    assert params.quantization is None
    assert (scales.shape, scales.dtype) == ((4, 2), DType.FLOAT16)
    assert model.constant(scales).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_two_operators_share_scales() -> None:
    file = block_scaled()
    again = file.tensor("again", [2, 8])
    file.operator("EMBEDDING_LOOKUP", [0, 3], [again])
    model = load(file)
    assert model.operations[0].inputs[2] == model.operations[1].inputs[2]


def test_written_model_loads_equal() -> None:
    model = load(block_scaled())
    assert loaders.load(write(model)) == model


def test_weights_in_blocks_are_bare_integers_for_other_operators() -> None:
    file = block_scaled()
    gathered = file.tensor("gathered", [2, 8], "INT4")
    file.operator("GATHER", [3, 0], [gathered])
    assert len(load(file).operations[1].inputs) == 2


def at(place: int) -> FileBuilder:
    file = block_scaled()
    file.graph["tensors"][3]["quantization"]["details"]["scales"] = place
    return file


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        (block_scaled(np.ones((4, 2), np.float32)), InvalidQuantization, "float16"),
        (block_scaled(constant=False), InvalidQuantization, "float16 constant"),
        (block_scaled(np.ones((4, 3), np.float16)), InvalidQuantization, "scales of shape"),
        (block_scaled(block_size=3), InvalidQuantization, "blocks of 3"),
        (block_scaled(block_size=0), InvalidQuantization, "blocks of 0"),
        (block_scaled(block_size=-4), InvalidQuantization, "blocks of -4"),
        (block_scaled(shape=(2, 2, 8)), InvalidQuantization, r"\(2, 2, 8\)"),
        (at(99), IndexOutOfRange, "tensor 99 of 4"),
        (at(-1), IndexOutOfRange, "tensor -1 of 4"),
    ],
)
def test_broken_blocks_are_named(file: FileBuilder, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words):
        load(file)


def test_a_kind_without_its_details_is_named() -> None:
    file = block_scaled()
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
