"""Operations whose work only the values of a run say."""

from __future__ import annotations

import numpy as np

from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning.work import unbounded_operations

F32 = DType.FLOAT32


def found(model: Model) -> list[str]:
    """The types of those that have no bound."""
    entry = model.entry
    marked = zip(entry.operations, unbounded_operations(entry), strict=True)
    return [operation.type for operation, has_none in marked if has_none]


def test_operation_sized_by_an_input_and_its_readers_have_no_bound() -> None:
    b = ModelBuilder()
    dims = b.input(DType.INT32, (2,), "dims")
    one = b.constant(np.array(1, np.float32), "one")
    (filled,) = b.operation("FILL", [dims, one], [(F32, (None, None))])
    (relu,) = b.operation("RELU", [filled], [(F32, (None, None))])
    (rank,) = b.operation("RANK", [relu], [(DType.INT32, ())])
    (last,) = b.operation("ABS", [rank], [(DType.INT32, ())])
    assert found(b.build([last])) == ["FILL", "RELU", "RANK"]


def test_a_size_that_the_file_says_is_a_bound() -> None:
    b = ModelBuilder()
    dims = b.constant(np.array([2, 3], np.int32), "dims")
    one = b.constant(np.array(1, np.float32), "one")
    x = b.input(F32, (2, 3), "x")
    (filled,) = b.operation("FILL", [dims, one], [(F32, (2, 3))])
    made = b.operation("ADD", [filled, x], [(F32, (2, 3))])
    assert found(b.build(made)) == []


def test_an_output_that_is_no_larger_than_its_inputs_is_bounded() -> None:
    b = ModelBuilder()
    x = b.input(F32, (4,), "x")
    made = b.operation("UNIQUE", [x], [(F32, (None,)), (DType.INT32, (4,))])
    (kept,) = b.operation("RELU", [made[0]], [(F32, (None,))])
    assert found(b.build([kept, made[1]])) == []
