"""DENSIFY_LEVELS: every order and format of levels, and levels that contradict each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.kernel import Site, build
from penstock.errors import InputError, PenstockError, ShapeMismatch
from penstock.ir import Attributes, DType, NDArray, Operand, Operation, Quantization
from penstock.ir.types import dtype_of


def densified(values: NDArray, *lists: Any, quantization: Quantization | None = None) -> NDArray:
    """*lists*: traversal order, block map, formats, sizes, then segments and indices of each
    level.
    """
    arrays = [values, *(None if x is None else np.array(x, np.int32) for x in lists)]
    dtype = dtype_of(values.dtype)
    assert dtype is not None
    data = Operand(dtype, values.shape, quantization=quantization)
    others = [None if a is None else Operand(DType.INT32, a.shape) for a in arrays[1:]]
    operation = Operation("DENSIFY_LEVELS", tuple(range(len(arrays))), (0,), Attributes())
    target = Operand(dtype, None, quantization=quantization)
    (made,) = build(Site(operation, (data, *others), (target,), lambda _: None))(arrays)
    return made


def compressed(dense: NDArray, order: list[int], formats: list[int]) -> list[Any]:
    """A dense tensor's values and its levels' lists, from the definition of the format."""
    moved = dense.transpose(order)
    lists: list[Any] = []
    nodes: list[tuple[int, ...]] = [()]
    for level, form in enumerate(formats):
        children: list[tuple[int, ...]] = []
        if form == 0:
            children = [(*n, i) for n in nodes for i in range(moved.shape[level])]
            lists += [None, None]
        else:
            segments, indices = [0], []
            for node in nodes:
                kept = [i for i in range(moved.shape[level]) if np.any(moved[(*node, i)] != 0)]
                children += [(*node, i) for i in kept]
                indices += kept
                segments.append(len(indices))
            lists += [segments, indices]
        nodes = children
    values = np.array([moved[n] for n in nodes], dense.dtype)
    return [values, order, None, formats, list(moved.shape), *lists]


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_densify_levels_supports_any_order_and_format(
    seed: int, shape: list[int], random: Any
) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 9, shape).astype(np.int32) * (rng.random(shape) < 0.4)
    dense = dense.astype(np.int32)
    order = list(range(len(shape)))
    random.shuffle(order)
    formats = [random.randint(0, 1) for _ in shape]
    np.testing.assert_array_equal(densified(*compressed(dense, order, formats)), dense)


@pytest.mark.parametrize("formats", list(itertools.product([0, 1], repeat=4)))
def test_densify_levels_expands_blocks(formats: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    dense = (rng.integers(1, 9, (6, 8)) * (rng.random((6, 8)) < 0.5)).astype(np.float32)
    blocked = dense.reshape(3, 2, 2, 4)
    values, _, _, _, _, *lists = compressed(blocked, [0, 2, 1, 3], list(formats))
    got = densified(values, [0, 1, 2, 3], [0, 1], formats, [3, 2, 2, 4], *lists)
    np.testing.assert_array_equal(got, dense)


def test_densify_levels_expands_blocks_in_another_order() -> None:
    dense = np.arange(48, dtype=np.float32).reshape(6, 8)
    blocked = dense.reshape(3, 2, 2, 4).transpose(0, 2, 3, 1)
    got = densified(blocked.reshape(-1), [0, 1, 3, 2], [0, 1], [0] * 4, [3, 2, 4, 2], *[None] * 8)
    np.testing.assert_array_equal(got, dense)


def test_missing_elements_are_the_zero_point() -> None:
    quantization = Quantization((0.5,), (7,))
    got = densified(
        np.array([9], np.uint8), [0], None, [1], [3], [0, 1], [1], quantization=quantization
    )
    assert got.tolist() == [7, 9, 7]


def test_densify_levels_of_an_empty_tensor_is_empty() -> None:
    got = densified(
        np.empty(0, np.float32), [0, 1], None, [0, 1], [2, 3], None, None, [0, 0, 0], []
    )
    assert got.tolist() == [[0, 0, 0], [0, 0, 0]]


GOOD: list[Any] = [[0, 1], None, [0, 1], [2, 3], None, None, [0, 1, 2], [2, 0]]


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, [0, 0], "order"),
        (0, [0, 2], "order"),
        (0, [0], "order"),
        (1, [5], "order"),
        (2, [0, 2], "format 2"),
        (3, [2, -3], "size -3"),
        (3, [4, 3], "nodes of dense levels"),
        (3, [2, 2], r"outside 0\.\.1"),
        (6, [0, 1], "nodes of dense levels"),
        (6, [0, 2, 1], "decrease"),
        (6, [-1, 1, 2], "decrease"),
        (6, [0, 1, 3], "leave"),
        (6, [], "decrease"),
        (6, None, "no segments"),
        (7, [2], "leave"),
        (7, [2, -1], r"outside 0\.\.2"),
    ],
)
def test_densify_levels_refuses_contradictory_levels(place: int, bad: Any, message: str) -> None:
    lists = [bad if at == place else x for at, x in enumerate(GOOD)]
    with pytest.raises(InputError, match=message):
        densified(np.ones(2, np.float32), *lists)


def test_densify_levels_refuses_missing_levels() -> None:
    with pytest.raises(InputError, match="levels in the order"):
        densified(np.ones(1, np.float32), [], None, [], [])


def test_densify_levels_refuses_too_few_values() -> None:
    with pytest.raises(InputError, match="1 values"):
        densified(np.ones(1, np.float32), *GOOD)
    lists = [[0, 1], None, [1, 1], [2, 3], [0, 2], [0, 1], [0, 1], [2]]
    with pytest.raises(InputError, match="too few"):
        densified(np.ones(1, np.float32), *lists)


@pytest.mark.parametrize("size", [2**20, 2**31 - 1])
def test_densify_levels_of_large_sizes_without_values_allocates_nothing(size: int) -> None:
    with pytest.raises((InputError, ShapeMismatch)):
        densified(np.ones(1, np.float32), [0, 1], None, [0, 0], [size, size], *[None] * 4)
    with pytest.raises(InputError, match="nodes of dense levels"):
        densified(np.ones(1, np.float32), [0], None, [0], [2**20], None, None)


@given(
    st.lists(st.one_of(st.none(), st.lists(st.integers(-1, 3), max_size=4)), min_size=8, max_size=8)
)
def test_densify_levels_of_any_levels_returns_or_raises_a_named_error(lists: list[Any]) -> None:
    lists = [[] if x is None and at in {0, 2, 3} else x for at, x in enumerate(lists)]
    try:
        made = densified(np.ones(2, np.float32), *lists)
    except PenstockError:
        return
    assert made.size <= 3**4
