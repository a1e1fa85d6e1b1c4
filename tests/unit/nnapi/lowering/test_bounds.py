"""Numbers that no image has, and outputs of other types than their operations give: both are
refused.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock import errors
from penstock.nnapi.description import (
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.nnapi.lowering import lower
from tests.unit.nnapi.lowering.one import b, constant, f, i, lowered, t


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan, 0.0, -1.0])
def test_scales_that_are_no_numbers(scale: float) -> None:
    given = [t("f32", 1, 4, 4, 1), f(scale), f(1.0)]
    with pytest.raises(errors.InvalidAttribute, match="a scale of RESIZE_BILINEAR is not above 0"):
        lowered("RESIZE_BILINEAR", given, [t("f32", 1, None, None, 1)])


@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_sizes_beyond_32_bits(name: str) -> None:
    given = [t("f32", 1, 4, 4, 1), f(1e30), f(1.0), b(False)]
    with pytest.raises(errors.ShapeOverflow, match=f"{name} needs sizes beyond 32 bits"):
        lowered(name, given, [t("f32", 1, None, None, 1)])


def test_hash_functions_are_counted() -> None:
    many = [t("f32", 1 << 21, 2), t("i32", 3), t("f32", 3), i(1)]
    with pytest.raises(errors.LimitExceeded, match="2097152 hash functions"):
        lowered("LSH_PROJECTION", many, [t("i32", 1 << 21)])


def test_lowering_fills_large_constants_in_the_run() -> None:
    large = t("f32", 1, 60_000, 2_000, 1)
    sides = [i(1), i(0), i(1), i(0)]
    model = lowered("AVERAGE_POOL_2D", [large, *sides, i(1), i(1), i(2), i(2), i(0)], [large])
    assert "FILL" in [o.type for o in model.operations]
    assert sum(map(len, model.pools)) == 0


def test_vectors_have_one_dimension() -> None:
    axes = constant("i32", np.zeros((1, 1), np.int32))
    with pytest.raises(errors.ShapeMismatch, match="axes of REDUCE_SUM has rank 2"):
        lowered("REDUCE_SUM", [t("f32", 2, 3), axes, b(True)], [t("f32", 1, 3)])
    given = [t("f32", 1, 2, 2, 1), t("f32", 1, 3, 3, 1), t("f32", 1)]
    size = constant("i32", np.array([[1, 4, 4, 1]], np.int32))
    rest = [i(1), i(2), i(2), i(0), b(False)]
    with pytest.raises(errors.ShapeMismatch, match="output_shape of TRANSPOSE_CONV_2D has rank 2"):
        lowered("TRANSPOSE_CONV_2D", [*given, size, *rest], [t("f32", 1, 4, 4, 1)])


def test_an_output_of_a_loop_has_the_type_that_its_body_gives() -> None:
    x = NnapiOperand(OperandType.TENSOR_FLOAT32, (1,))
    small = constant("f32", [1.0])
    scalar = i(0)
    body = subgraph([x], NnapiOperation("ADD", (0, 1, 2), (3,)), [small, scalar, x], 1)
    test = NnapiOperand(OperandType.TENSOR_BOOL8, (1,))
    condition = subgraph([x], NnapiOperation("LESS", (0, 1), (2,)), [small, test], 1)
    for kind, good in (
        (OperandType.TENSOR_FLOAT32, True),
        (OperandType.TENSOR_INT32, False),
        (OperandType.TENSOR_FLOAT16, False),
    ):
        calls = [
            NnapiOperand(OperandType.SUBGRAPH, (), NnapiLifetime.SUBGRAPH, subgraph=at)
            for at in (0, 1)
        ]
        loop = NnapiOperation("WHILE", (1, 2, 0), (3,))
        main = subgraph([x], loop, [*calls, NnapiOperand(kind, (1,))], 1)
        model = NnapiModel(main, (condition, body))
        if good:
            assert lower(model, 4).operations
            continue
        with pytest.raises(errors.InvalidOperation, match="of another type"):
            lower(model, 4)


def subgraph(
    given: list[NnapiOperand], operation: NnapiOperation, rest: list[NnapiOperand], made: int
) -> NnapiSubgraph:
    """A subgraph of one operation, whose last *made* operands are its outputs."""
    count = len(given) + len(rest)
    inputs = [replace(o, lifetime=NnapiLifetime.SUBGRAPH_INPUT) for o in given]
    outputs = [replace(o, lifetime=NnapiLifetime.SUBGRAPH_OUTPUT) for o in rest[-made:]]
    operands = (*inputs, *rest[:-made], *outputs)
    return NnapiSubgraph(
        operands, (operation,), tuple(range(len(given))), tuple(range(count - made, count))
    )
