"""Models encoded and restored: equal in everything, whatever their quantisation and attributes."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict

from penstock.ir import Attributes, ConstantPool, DType, Model, ModelBuilder, Operand, Quantization
from penstock.ir.encoding import (
    Parts,
    RestoredParts,
    attributes_of,
    encode_hook,
    model_of,
    row_of,
)

WEIGHTS = np.arange(64, dtype=np.int8).reshape(4, 16)


def quantized(scales: tuple[float, ...], points: tuple[int, ...]) -> Model:
    """A layer whose weights have these scales and zero points."""
    builder = ModelBuilder()
    one = Quantization((0.5,), (0,))
    x = builder.input(DType.INT8, (1, 16), "x", one)
    axis = 0 if len(scales) > 1 else None
    w = builder.constant(WEIGHTS, "w", Quantization(scales, points, axis))
    made = Operand(DType.INT8, (1, 4), name="y", quantization=one)
    return builder.build(builder.operation("FULLY_CONNECTED", [x, w, None], [made]))


def restored(model: Model) -> Model:
    """*model* through bytes, with pools of the same content."""
    pools: list[ConstantPool] = []

    def number(pool: ConstantPool) -> int:
        if pool not in pools:
            pools.append(pool)
        return pools.index(pool)

    parts = Parts()
    row = row_of(model, number, parts)
    content = msgspec.msgpack.encode((row, parts.operands, parts.operations))
    known = [ConstantPool(memoryview(bytes(pool.view))) for pool in pools]
    row, *rows = msgspec.msgpack.decode(content)
    return model_of(row, known, RestoredParts(*rows))


@pytest.mark.parametrize(
    ("scales", "points"),
    [
        ((0.25,), (0,)),
        ((0.25, 0.5, 1.0, 2.0), (0, 0, 0, 0)),
        ((0.25, 0.5, 1.0, 2.0), (0, 0, -128, 127)),
        ((0.1, 0.2, 1e-40, 1e300), (0, 0, 0, 0)),
        ((math.pi, math.e, 5e-324, 0.0), (-1, 1, 0, 0)),
    ],
)
def test_a_restored_model_has_the_same_quantisation(
    scales: tuple[float, ...], points: tuple[int, ...]
) -> None:
    model = quantized(scales, points)
    again = restored(model)
    (weights,) = [o for o in again.operands if o.name == "w"]
    assert weights.quantization is not None
    assert (weights.quantization.scales, weights.quantization.zero_points) == (scales, points)
    for before, after in zip(model.operands, again.operands, strict=True):
        assert asdict(before) == asdict(after)
    assert again.digest == model.digest
    assert again.known_digests == (model.digest.structure, model.digest.constants)
    assert np.array_equal(again.constant(weights), WEIGHTS)
    # The model that was encoded is as before.
    assert quantized(scales, points).digest == model.digest


def test_a_restored_model_keeps_known_digests_without_hashing() -> None:
    model = quantized((0.25,), (0,))
    assert model.known_digests == (b"", b"")
    assert restored(model).known_digests == (b"", b"")
    structure = model.structure
    assert restored(model).known_digests == (structure, b"")
    assert model.digest.structure == structure


@pytest.mark.parametrize(
    "value", [True, 7, -1.5, math.inf, "text", b"bytes", (1, 2), (1.0, -0.0), (), None]
)
def test_attributes_are_restored_with_their_types(value: object) -> None:
    attributes = Attributes({"name": value})  # type: ignore[dict-item]  # one of them
    content = msgspec.msgpack.encode(attributes, enc_hook=encode_hook)
    found = attributes_of(msgspec.msgpack.decode(content))
    assert found == attributes
    assert repr(found) == repr(attributes)


@pytest.mark.parametrize("value", [[1], {"name": {}}, {"name": ["text"]}, {1: 2}, "text"])
def test_malformed_attributes_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        attributes_of(value)
