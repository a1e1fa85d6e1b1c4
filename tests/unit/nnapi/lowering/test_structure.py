"""NNAPI's rules for operands and for how they are connected (NNAPI sections 8.1 and 8.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.errors import (
    CyclicModel,
    DuplicateWriter,
    IndexOutOfRange,
    InvalidOperand,
    InvalidOperation,
    InvalidQuantization,
    ModelError,
    NotLowerable,
    OffsetOutOfBounds,
    UnwrittenOperand,
)
from penstock.ir import ConstantPool, DataLocation, DType, Lifetime
from penstock.nnapi.description import (
    ChannelQuantization,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.nnapi.lowering import lower
from tests.unit.nnapi.lowering.one import constant, i, lowered, model_of, t

INPUT, OUTPUT = NnapiLifetime.SUBGRAPH_INPUT, NnapiLifetime.SUBGRAPH_OUTPUT
TEMPORARY = NnapiLifetime.TEMPORARY_VARIABLE
X = replace(t("f32", 2), lifetime=INPUT, name="x")
Y = replace(t("f32", 2), lifetime=OUTPUT, name="y")


def model(
    *operands: NnapiOperand,
    operations: tuple[NnapiOperation, ...] = (NnapiOperation("ABS", (0,), (1,)),),
    inputs: tuple[int, ...] = (0,),
    outputs: tuple[int, ...] = (1,),
    pools: tuple[ConstantPool, ...] = (),
) -> NnapiModel:
    return NnapiModel(NnapiSubgraph(operands, operations, inputs, outputs), (), pools)


def refused(model: NnapiModel, kind: type[ModelError], match: str, level: int = 8) -> None:
    with pytest.raises(kind, match=match) as caught:
        lower(model, level)
    assert caught.value.where is not None
    assert str(caught.value.where).startswith("main")


def test_a_valid_model_keeps_its_interface() -> None:
    found = lower(model(X, Y))
    assert [(o.name, o.dtype, o.shape) for o in found.inputs] == [("x", DType.FLOAT32, (2,))]
    assert [(o.name, o.dtype, o.shape) for o in found.outputs] == [("y", DType.FLOAT32, (2,))]
    assert [o.type for o in found.operations] == ["ABS"]


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"operations": ()}, InvalidOperand, "needs operations"),
        ({"inputs": ()}, InvalidOperand, "needs inputs"),
        ({"outputs": ()}, InvalidOperand, "needs outputs"),
        ({"inputs": (7,)}, IndexOutOfRange, "input operand 7 of 2"),
        ({"outputs": (-1,)}, IndexOutOfRange, "output operand -1 of 2"),
        ({"inputs": (0, 0)}, DuplicateWriter, "listed as input twice"),
        (
            {"inputs": (0, 1)},
            InvalidOperand,
            "operand 1 has the lifetime output and is listed as input",
        ),
        ({"operations": (NnapiOperation("ABS", (2,), (1,)),)}, IndexOutOfRange, "operand 2 of 2"),
        (
            {"operations": (NnapiOperation("ABS", (1,), (1,)),)},
            CyclicModel,
            "reads operand 1, which is only written later",
        ),
        ({"operations": (NnapiOperation("ABS", (0,), (0,)),)}, DuplicateWriter, "writes operand 0"),
        (
            {"operations": (NnapiOperation("ABS", (0,), (1,)),) * 2},
            DuplicateWriter,
            "writes operand 1",
        ),
    ],
)
def test_connections(change: dict[str, Any], kind: type[ModelError], match: str) -> None:
    refused(model(X, Y, **change), kind, match)


def test_unwritten_operand_is_refused() -> None:
    unwritten = replace(t("f32", 2), name="loose")
    refused(model(X, Y, unwritten), UnwrittenOperand, r"operand 2 \(loose\) is never written")
    reading = (NnapiOperation("ADD", (0, 2, 3), (1,)),)
    refused(
        model(X, Y, unwritten, i(0), operations=reading),
        UnwrittenOperand,
        "reads operand 2, which nothing",
    )


def test_an_input_that_is_not_listed_is_refused() -> None:
    refused(model(X, Y, X), InvalidOperand, "operand 2 has the lifetime input and is not listed")


SCALE = {"scale": 0.5}


@pytest.mark.parametrize(
    ("operand", "kind", "match"),
    [
        (
            NnapiOperand(OperandType.TENSOR_FLOAT32, ()),
            InvalidOperand,
            "has dimensions, or an unknown rank",
        ),
        (NnapiOperand(OperandType.INT32, (1,)), InvalidOperand, "INT32 has no dimensions"),
        (NnapiOperand(OperandType.INT32, None), InvalidOperand, "INT32 has a rank, 0"),
        (t("f32", *[1] * 33), InvalidOperand, "33 dimensions; the limit is 32"),
        (t("f32", -1), InvalidOperand, "out of range"),
        (t("f32", 2**32), InvalidOperand, "out of range"),
        (t("f32", 2**31, 4), InvalidOperand, "more than 32 bits can count"),
        (replace(t("q8", 2), scale=0.0), InvalidQuantization, "needs a scale above 0"),
        (t("q8", 2, scale=-1.0), InvalidQuantization, "negative, infinite or not a number"),
        (t("q8", 2, scale=float("nan")), InvalidQuantization, "negative, infinite or not a number"),
        (t("f32", 2, scale=1.0), InvalidQuantization, "TENSOR_FLOAT32 has no scale, not 1"),
        (t("q8", 2, zero=256), InvalidQuantization, r"zero point 256 .* is not in \[0, 255\]"),
        (t("q8s", 2, zero=-129), InvalidQuantization, r"is not in \[-128, 127\]"),
        (t("q16a", 2, zero=65536), InvalidQuantization, r"is not in \[0, 65535\]"),
        (t("q16y", 2, zero=1), InvalidQuantization, r"is not in \[0, 0\]"),
        (t("i32", 2, zero=1), InvalidQuantization, r"is not in \[0, 0\]"),
        (replace(t("f32", 2), value=bytes(8)), InvalidOperand, "nothing else either"),
        (replace(t("f32", 2), lifetime=NnapiLifetime.CONSTANT_COPY), InvalidOperand, "has a value"),
        (
            replace(t("f32", 2), lifetime=NnapiLifetime.CONSTANT_COPY, value=bytes(7)),
            InvalidOperand,
            "7 bytes of value, where 8 are needed",
        ),
        (
            replace(t("f32", None), lifetime=NnapiLifetime.CONSTANT_COPY, value=bytes(8)),
            InvalidOperand,
            "dimensions must be known",
        ),
        (
            replace(
                t("f32", 2), lifetime=NnapiLifetime.CONSTANT_POOL, location=DataLocation(0, 4, 8)
            ),
            OffsetOutOfBounds,
            "bytes 4 to 12 of pool 0",
        ),
        (
            NnapiOperand(OperandType.SUBGRAPH, (), NnapiLifetime.CONSTANT_COPY),
            InvalidOperand,
            "SUBGRAPH cannot have the lifetime constant_copy",
        ),
        (
            NnapiOperand(OperandType.SUBGRAPH, (), NnapiLifetime.SUBGRAPH, subgraph=0),
            InvalidOperand,
            "refers to subgraph 0 of 0",
        ),
    ],
)
def test_operands_by_themselves(operand: NnapiOperand, kind: type[ModelError], match: str) -> None:
    pools = (ConstantPool(memoryview(bytes(8))),)
    refused(model(X, Y, operand, pools=pools), kind, match)


@pytest.mark.parametrize(
    ("dimensions", "channels", "match"),
    [
        ((4, 2), None, "has no scales for channels"),
        ((4, 2), ChannelQuantization(0, (1.0,) * 3), "3 scales for 4 channels"),
        ((4, 2), ChannelQuantization(2, (1.0,) * 4), "channels along dimension 2"),
        ((4, 2), ChannelQuantization(0, (1.0, 1.0, 0.0, 1.0)), "not a positive number"),
        ((4, 2), ChannelQuantization(0, ()), "not a positive number"),
        (None, ChannelQuantization(0, (1.0,)), "channels along dimension 0 of None"),
    ],
)
def test_scales_of_channels(dimensions: Any, channels: Any, match: str) -> None:
    kind = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    operand = NnapiOperand(kind, dimensions, channel_quantization=channels)
    refused(model(X, Y, operand), InvalidQuantization, match)


def test_other_types_have_no_scales_of_channels() -> None:
    wrong = replace(t("q8", 2), channel_quantization=ChannelQuantization(0, (1.0, 1.0)))
    refused(model(X, Y, wrong), InvalidQuantization, "has scales for channels")


@pytest.mark.parametrize(("kind", "level"), [("f16", 3), ("b8", 3), ("q16y", 3), ("q8s", 4)])
def test_types_need_their_level(kind: str, level: int) -> None:
    operand = replace(t(kind, 2), lifetime=INPUT)
    broken = model(X, Y, operand, inputs=(0, 2))
    refused(broken, InvalidOperand, f"needs feature level {level}", level - 1)


def test_unknown_ranks_need_level_3() -> None:
    unknown = replace(X, dimensions=None)
    adding = (NnapiOperation("ADD", (0, 0, 2), (1,)),)
    refused(model(unknown, Y, i(0), operations=adding), InvalidOperand, "unknown rank", 2)
    assert lower(model(unknown, Y, i(0), operations=adding), 3).outputs[0].shape == (2,)


def test_constants_stay_in_their_pools() -> None:
    content = np.arange(64, dtype=np.float32).tobytes()
    pool = ConstantPool(memoryview(content))
    place = NnapiOperand(
        OperandType.TENSOR_FLOAT32,
        (64,),
        NnapiLifetime.CONSTANT_POOL,
        location=DataLocation(0, 0, 256),
    )
    x, y = replace(t("f32", 64), lifetime=INPUT), replace(t("f32", 64), lifetime=OUTPUT)
    adding = (NnapiOperation("ADD", (0, 2, 3), (1,)),)
    found = lower(model(x, y, place, i(0), operations=adding, pools=(pool,)))
    kept = next(o for o in found.operands if o.is_constant)
    assert kept.location == DataLocation(0, 0, 256)
    assert found.pools == (pool,)


def test_large_copied_constants_move_to_a_pool() -> None:
    found = lowered(
        "ADD",
        [t("f32", 64), constant("f32", np.arange(64, dtype=np.float32)), i(0)],
        [t("f32", 64)],
    )
    kept = next(o for o in found.operands if o.is_constant)
    assert kept.lifetime is Lifetime.CONSTANT_POOL
    np.testing.assert_array_equal(found.constant(kept), np.arange(64, dtype=np.float32))


def test_scalars_that_a_run_brings_are_named() -> None:
    code = NnapiOperand(OperandType.INT32)
    with pytest.raises(NotLowerable, match="activation of ADD is known only when the model runs"):
        lowered("ADD", [t("f32", 2), t("f32", 2), code], [t("f32", 2)])


def test_omitted_inputs_leave_the_interface() -> None:
    source = model_of(
        "SVDF",
        [t("f32", 1, 3), t("f32", 4, 3), t("f32", 4, 5), t("f32", 4), t("f32", 1, 20), i(1), i(0)],
        [t("f32", 1, 20), t("f32", 1, 4)],
    )
    assert len(lower(source).inputs) == 5
    assert len(lower(source, omitted={3}).inputs) == 4
    with pytest.raises(InvalidOperation, match=r"input 0 \(input\) has no value"):
        lower(source, omitted={0})
    with pytest.raises(IndexOutOfRange, match="omitted input 9 of 5"):
        lower(source, omitted={9})


def test_declared_shapes_are_held_to() -> None:
    with pytest.raises(ModelError, match=r"declared as \[3\], its shape is \[2\]"):
        lowered("ABS", [t("f32", 2)], [t("f32", 3)])
    found = lowered("ABS", [t("f32", None)], [t("f32", 3)])
    assert found.outputs[0].shape == (3,)
