"""Rules under partial knowledge: what is not known makes results less known, never other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import ShapeMismatch
from penstock.ir import DType, Shape
from penstock.ir.operations.rules import broadcast, normalize_axis, positions, window
from penstock.ir.types import dtype_of
from tests.unit.ir.operations.cases.case import Case
from tests.unit.ir.operations.cases.every import EVERY_CASE
from tests.unit.ir.operations.single import (
    FLOAT,
    Constant,
    Given,
    Input,
    inferred,
    ints,
    scalar,
    shape,
    single,
    x,
)

AGREED: Final = {name: c for name, c in EVERY_CASE.items() if c.expected is not None}


def weaker(inputs: list[Given]) -> Iterator[list[Given]]:
    """*inputs* with one dimension, one rank or one constant value unknown."""

    def put(at: int, given: Given) -> list[Given]:
        return [*inputs[:at], given, *inputs[at + 1 :]]

    for at, item in enumerate(inputs):
        if isinstance(item, Input) and item.shape is not None:
            for axis in range(len(item.shape)):
                unknown = (*item.shape[:axis], None, *item.shape[axis + 1 :])
                yield put(at, replace(item, shape=unknown))
            yield put(at, replace(item, shape=None))
        elif isinstance(item, np.ndarray | Constant):
            value = item.value if isinstance(item, Constant) else item
            quantization = item.quantization if isinstance(item, Constant) else None
            dtype = dtype_of(value.dtype)
            assert dtype is not None
            yield put(at, Input(value.shape, dtype, quantization))
            yield put(at, Input(None, dtype, None))


def compatible(found: Shape, full: Shape) -> bool:
    if found is None or full is None:
        return True
    return len(found) == len(full) and all(
        a is None or b is None or a == b for a, b in zip(found, full, strict=True)
    )


@pytest.mark.parametrize("case", AGREED.values(), ids=AGREED)
def test_less_knowledge_gives_a_compatible_result(case: Case) -> None:
    for inputs in weaker(list(case.inputs)):
        found = inferred(single(case.kind, inputs, case.outputs, case.attributes))
        for a, b in zip(found, case.expected or (), strict=True):
            assert compatible(a, b), f"{a} is no weaker form of {b}"


known = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@given(known, known)
def test_broadcast_agrees_with_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeMismatch):
            broadcast(a, b)
    else:
        assert broadcast(a, b) == expected


@given(st.data(), known, known)
def test_broadcast_of_partly_unknown_shapes(
    data: Any, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        return
    hidden = tuple(data.draw(st.sampled_from([None, d])) for d in a)
    assert compatible(broadcast(hidden, b), expected)


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 5), st.integers(1, 4))
def test_window_positions_are_the_ones_that_fit(
    size: int, extent: int, stride: int, hole: int
) -> None:
    reach = (extent - 1) * hole
    expected = len(range(0, max(size - reach, 0), stride))
    assert positions(size, extent, stride, hole) == expected
    assert window(size, extent, stride, hole, "SAME") == len(range(0, size, stride))


@given(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0), st.data())
def test_axes_count_from_either_end(given_shape: tuple[int, ...], data: Any) -> None:
    rank = len(given_shape)
    axis = data.draw(st.integers(-rank - 2, rank + 1))
    if -rank <= axis < rank:
        assert given_shape[normalize_axis(axis, rank)] == given_shape[axis]
    else:
        with pytest.raises(ShapeMismatch):
            normalize_axis(axis, rank)


def test_zero_is_a_dimension_and_unknown_is_none() -> None:
    assert shape("ADD", x(0, None), x(1, 1)) == (0, None)
    assert shape("RESHAPE", x(None, 4), ints(-1, 2)) == (None, 2)
    assert shape("RESHAPE", x(0, None), ints(-1, 2)) == (0, 2)
    assert shape("CONCATENATION", x(0, 3), x(None, 3)) == (None, 3)
    assert shape("TILE", x(None, 3), ints(0, 2)) == (0, 6)


def test_a_known_part_survives() -> None:
    assert shape(
        "CONV_2D", Input(None), np.zeros((4, 3, 3, 2), np.float32), stride_w=1, stride_h=1
    ) == (None, None, None, 4)
    assert shape("RESHAPE", Input(None), x(3, dtype=DType.INT32)) == (None, None, None)
    assert shape("STRIDED_SLICE", x(4, 5), *[x(2, dtype=DType.INT32)] * 3, shrink_axis_mask=1) == (
        None,
    )
    assert shape("MEAN", x(4, 5), x(1, dtype=DType.INT32), keep_dims=True) == (None, None)
    assert shape("MEAN", x(4, 5), x(1, dtype=DType.INT32)) is None
    assert shape("PACK", x(None, 3), x(2, None), values_count=2) == (2, 2, 3)
    assert shape("TRANSPOSE", Input(None), ints(1, 0, 2)) == (None, None, None)
    assert shape("FILL", x(2, dtype=DType.INT32), scalar(1, np.float32), dtype=FLOAT) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "expected"),
    [
        ("WHERE", [x(2, 3, dtype=DType.BOOL)], [DType.INT64], [(None, 2)]),
        ("WHERE", [Input(None, DType.BOOL)], [DType.INT64], [(None, None)]),
        ("UNIQUE", [x(5)], [FLOAT, DType.INT32], [(None,), (5,)]),
        ("SEGMENT_SUM", [x(4, 3), x(4, dtype=DType.INT32)], [FLOAT], [(None, 3)]),
        ("RANGE", [x(dtype=DType.INT32)] * 3, [DType.INT32], [(None,)]),
        ("SKIP_GRAM", [x(1, dtype=DType.STRING)], [DType.STRING], [(None,)]),
    ],
)
def test_results_that_depend_on_values(
    kind: str, inputs: list[Given], outputs: list[DType], expected: list[Shape]
) -> None:
    assert inferred(single(kind, inputs, outputs)) == expected
