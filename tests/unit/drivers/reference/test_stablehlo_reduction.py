"""Reductions over dimensions and windows: beside LiteRT where it has them, else beside NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.ir import DType, Model, NDArray, SubgraphBuilder
from tests.unit.drivers.reference.single_models import (
    Body,
    check,
    combining,
    computed,
    kind_of,
    single,
    values,
)

SCALAR: Final = [(DType.INT32, ())]
JUDGED: Final = [DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.UINT8, DType.INT16, DType.INT32]
KINDS: Final = ("ADD", "MUL", "MAXIMUM", "MINIMUM")
STABLE: Final = tuple(f"STABLEHLO_{k}" for k in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"))


def windows(x: NDArray, initial: NDArray, body: Body, **attributes: Any) -> Model:
    return single(
        "STABLEHLO_REDUCE_WINDOW",
        [x, initial],
        [(kind_of(x), None)],
        attributes,
        body_subgraph_index=body,
    )


SETTINGS: Final[list[tuple[tuple[int, ...], dict[str, Any]]]] = [
    ((4, 5), {"window_dimensions": (2, 3)}),
    ((5, 4), {"window_dimensions": (3, 2), "window_strides": (2, 1), "padding": (1, 2, 0, 3)}),
    (
        (2, 6, 5),
        {
            "window_dimensions": (1, 2, 3),
            "window_strides": (1, 2, 3),
            "base_dilations": (2, 1, 2),
            "window_dilations": (1, 3, 2),
            "padding": (1, 0, -1, 2, 3, -2),
        },
    ),
    ((7,), {"window_dimensions": (7,), "padding": (6, 0)}),
]


@pytest.mark.parametrize("dtype", JUDGED, ids=lambda d: d.value)
@pytest.mark.parametrize("kind", [*KINDS, *STABLE])
def test_stablehlo_reduce_window_agrees_with_litert(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(11)
    for shape, attributes in SETTINGS:
        x, initial = values(rng, dtype, shape), values(rng, dtype, ())
        check(windows(x, initial, combining(kind, dtype), **attributes), [x, initial])


@pytest.mark.parametrize("kind", ["LOGICAL_AND", "LOGICAL_OR"])
def test_stablehlo_reduce_window_of_booleans_agrees_with_litert(kind: str) -> None:
    rng = np.random.default_rng(12)
    for shape, attributes in SETTINGS:
        for initial in (np.array(False), np.array(True)):
            x = values(rng, DType.BOOL, shape)
            check(windows(x, initial, combining(kind, DType.BOOL), **attributes), [x, initial])


def vectors(*numbers: Sequence[int]) -> list[NDArray]:
    return [np.array(n, np.int64) for n in numbers]


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(f, d) for f in ("ADD", "MUL", "MINIMUM", "MAXIMUM") for d in [*JUDGED, DType.INT64]]
    + [("ALL", DType.BOOL), ("ANY", DType.BOOL)],
)
def test_reduce_window_agrees_with_litert(function: str, dtype: DType) -> None:
    rng = np.random.default_rng(13)
    for shape, *geometry in (
        ((5, 6), (2, 3), (1, 2), (1, 1)),
        ((7, 2, 5), (3, 1, 2), (2, 1, 1), (2, 3, 1)),
        ((3, 3), (1, 4), (1, 1), (1, 1)),
    ):
        x, initial = values(rng, dtype, shape), values(rng, dtype, ())
        inputs = [x, initial, *vectors(*geometry)]
        attributes = {"reduce_function": function}
        model = single("REDUCE_WINDOW", inputs, [(dtype, None)], attributes, constant=(2, 3, 4))
        check(model, [x, initial])


def test_reduce_window_supports_windows_known_at_run_time() -> None:
    x = np.arange(6, dtype=np.int32)
    inputs = [x, np.array(100, np.int32), *vectors((2,), (2,), (1,))]
    model = single("REDUCE_WINDOW", inputs, [(DType.INT32, None)], {"reduce_function": "ADD"})
    np.testing.assert_array_equal(computed(model, inputs)[0], [101, 105, 109])
    for wrong in (
        vectors((0,), (1,), (1,)),
        vectors((2, 2), (1,), (1,)),
        vectors((2,), (0,), (1,)),
    ):
        with pytest.raises(PenstockError):
            computed(model, [*inputs[:2], *wrong])


def reduction(inputs: Sequence[NDArray], body: Body, *axes: int) -> Model:
    outputs = [(kind_of(x), None) for x in inputs[: len(inputs) // 2]]
    return single(
        "STABLEHLO_REDUCE", inputs, outputs, {"dimensions": axes}, body_subgraph_index=body
    )


@pytest.mark.parametrize("axes", [(), (0,), (1,), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("STABLEHLO_ADD", np.sum),
        ("STABLEHLO_MULTIPLY", np.prod),
        ("MAXIMUM", np.max),
        ("MINIMUM", np.min),
    ],
)
def test_stablehlo_reduce_agrees_with_numpy(
    axes: tuple[int, ...], kind: str, function: Any
) -> None:
    x = np.random.default_rng(14).integers(-9, 9, (5, 3, 7)).astype(np.int32)
    initial = np.array(3, np.int32)
    (got,) = computed(reduction([x, initial], combining(kind, DType.INT32), *axes), [x, initial])
    wanted = function(x, axis=axes)
    first = np.full_like(wanted, 3)
    wanted = function(np.stack([first, np.asarray(wanted)]), axis=0)
    np.testing.assert_array_equal(got, wanted.astype(np.int32))


def test_stablehlo_reduce_of_nothing_is_the_initial_value() -> None:
    x, initial = np.zeros((0, 2), np.float32), np.array(5, np.float32)
    body = combining("STABLEHLO_ADD", DType.FLOAT32)
    np.testing.assert_array_equal(
        computed(reduction([x, initial], body, 0), [x, initial])[0], [5, 5]
    )


def greatest(region: SubgraphBuilder) -> Sequence[int]:
    """The greater value and its index, of two pairs."""
    a, at_a, b, at_b = (region.input(DType.INT32, ()) for _ in range(4))
    (first,) = region.operation(
        "STABLEHLO_COMPARE",
        [a, b],
        [(DType.BOOL, ())],
        {"comparison_direction": "STABLEHLO_COMPARISON_DIRECTION_GE"},
    )
    (value,) = region.operation("STABLEHLO_SELECT", [first, a, b], SCALAR)
    (index,) = region.operation("STABLEHLO_SELECT", [first, at_a, at_b], SCALAR)
    return [value, index]


def test_stablehlo_reduce_combines_several_operands() -> None:
    x = np.random.default_rng(15).integers(0, 4, (6, 5)).astype(np.int32)
    at = np.broadcast_to(np.arange(5, dtype=np.int32), x.shape).copy()
    inputs = [x, at, np.array(-1, np.int32), np.array(-1, np.int32)]
    value, index = computed(reduction(inputs, greatest, 1), inputs)
    np.testing.assert_array_equal(value, x.max(1))
    np.testing.assert_array_equal(index, x.argmax(1))


def test_stablehlo_reduce_window_combines_several_operands() -> None:
    x = np.array([1, 5, 5, 2], np.int32)
    inputs = [x, np.arange(4, dtype=np.int32), np.array(-1, np.int32), np.array(-1, np.int32)]
    model = single(
        "STABLEHLO_REDUCE_WINDOW",
        inputs,
        [(DType.INT32, None)] * 2,
        {"window_dimensions": (2,)},
        body_subgraph_index=greatest,
    )
    value, index = computed(model, inputs)
    np.testing.assert_array_equal(value, [5, 5, 5])
    np.testing.assert_array_equal(index, [1, 1, 2])


def one_by_one(region: SubgraphBuilder) -> Sequence[int]:
    """a - b, by way of a shape that is no scalar's."""
    a, b = region.input(DType.INT32, ()), region.input(DType.INT32, ())
    (wide,) = region.operation("STABLEHLO_RESHAPE", [a], [(DType.INT32, (1,))])
    (back,) = region.operation("STABLEHLO_RESHAPE", [wide], SCALAR)
    return region.operation("STABLEHLO_SUBTRACT", [back, b], SCALAR)


def test_stablehlo_reduce_supports_regions_of_scalars() -> None:
    x, initial = np.array([[1, 2], [30, 40]], np.int32), np.array(1000, np.int32)
    (got,) = computed(reduction([x, initial], one_by_one, 0), [x, initial])
    np.testing.assert_array_equal(got, [1000 - (1 - 30), 1000 - (2 - 40)])


def constant(region: SubgraphBuilder) -> Sequence[int]:
    """Their sum and one more, by a constant of the region."""
    a, b = region.input(DType.INT32, ()), region.input(DType.INT32, ())
    (total,) = region.operation("STABLEHLO_ADD", [a, b], SCALAR)
    one = region.constant(np.array(1, np.int32))
    return region.operation("STABLEHLO_ADD", [total, one], SCALAR)


def test_stablehlo_reduce_supports_regions_with_constants() -> None:
    x, initial = np.arange(10, dtype=np.int32).reshape(5, 2), np.array(0, np.int32)
    (got,) = computed(reduction([x, initial], constant, 0), [x, initial])
    np.testing.assert_array_equal(got, x.sum(0) + 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_dimensions": (0,)},
        {"window_dimensions": (-(2**40),)},
        {"window_dimensions": (2, 2)},
        {"window_strides": (0,)},
        {"window_strides": (1, 1)},
        {"base_dilations": (0,)},
        {"base_dilations": (2**31,)},
        {"window_dilations": (-1,)},
        {"padding": (1,)},
        {"padding": (2**40, 0)},
        {"padding": (-9, 0)},
        {"padding": (2**30, 2**30), "window_strides": (2**30,)},
    ],
    ids=str,
)
def test_stablehlo_reduce_window_refuses_invalid_windows(wrong: dict[str, Any]) -> None:
    x, initial = np.ones(4, np.int32), np.array(0, np.int32)
    attributes = {"window_dimensions": (2,), **wrong}
    with pytest.raises(PenstockError):
        computed(windows(x, initial, combining("ADD", DType.INT32), **attributes), [x, initial])
