"""StableHLO operations give what the reference device gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.compiler.legalise import judge, legalise
from penstock.compiler.legalise.stablehlo_elements import FUNCTIONS, NUMBERS, ORDERS
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Model, ModelBuilder, NDArray, infer_shapes
from penstock.ir.operation import AttributeValue
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer, values

F32, I32, BOOL = DType.FLOAT32, DType.INT32, DType.BOOL
TYPED = [
    (kind, dtype) for kind, (_, types) in FUNCTIONS.items() for dtype in sorted(types, key=str)
]
ONE_OPERAND = frozenset(
    "STABLEHLO_" + name
    for name in [
        "ABS",
        "NEGATE",
        "COSINE",
        "EXPONENTIAL",
        "FLOOR",
        "LOG",
        "LOGISTIC",
        "RSQRT",
        "TANH",
    ]
)


def operand(seed: int, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    rng = np.random.default_rng(seed)
    return rng.random(shape) > 0.5 if dtype is BOOL else values(rng, dtype, shape)


def checked(
    kind: str,
    arrays: list[NDArray],
    dtype: DType,
    attributes: dict[str, AttributeValue] | None = None,
) -> NDArray:
    given = [Given(a, fed=True) for a in arrays]
    (made,) = check(layer(kind, given, (dtype, None), attributes or {}), feeds(given))
    return made


@pytest.mark.parametrize(("kind", "dtype"), TYPED)
def test_function_gives_what_the_reference_gives(kind: str, dtype: DType) -> None:
    shape = () if dtype is I32 else (3, 5)
    count = 1 if kind in ONE_OPERAND else 2
    arrays = [operand(seed, dtype, shape) for seed in range(count)]
    if kind in {"STABLEHLO_DIVIDE", "STABLEHLO_REMAINDER"}:
        arrays[1] = np.where(arrays[1] == 0, 3, arrays[1]).astype(dtype.numpy)
    if kind == "STABLEHLO_SHIFT_LEFT":
        arrays[1] = (arrays[1] % 80 - 8).astype(dtype.numpy)
    checked(kind, arrays, dtype)


@pytest.mark.parametrize("kind", ["STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM"])
def test_the_first_of_two_is_chosen_where_one_is_nan(kind: str) -> None:
    a, b = (
        np.array([np.nan, 1, np.nan, 2], np.float32),
        np.array([1, np.nan, np.nan, 3], np.float32),
    )
    made = checked(kind, [a, b], F32)
    assert np.isnan(made[:3]).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["STABLEHLO_DIVIDE", "STABLEHLO_REMAINDER"])
@pytest.mark.parametrize("dtype", [I32, DType.INT8])
def test_quotients_are_truncated_and_the_one_that_does_not_fit_wraps(
    kind: str, dtype: DType
) -> None:
    least = np.iinfo(dtype.numpy).min
    a = np.array([least, least, 7, -7, 7, -7], dtype.numpy)
    b = np.array([-1, 1, 2, 2, -2, -2], dtype.numpy)
    made = checked(kind, [a, b], dtype)
    wanted = [least, least, 3, -3, -3, 3] if kind == "STABLEHLO_DIVIDE" else [0, 0, 1, -1, 1, -1]
    assert made.tolist() == wanted


def test_remainders_of_floats_have_the_sign_of_the_dividend() -> None:
    a = np.array([5.5, -5.5, 5.5, -5.5, 1, np.nan], np.float32)
    b = np.array([2, 2, -2, -2, np.inf, 2], np.float32)
    made = checked("STABLEHLO_REMAINDER", [a, b], F32)
    assert made[:5].tolist() == [1.5, -1.5, 1.5, -1.5, 1]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str))
def test_comparison_gives_what_the_reference_gives(order: str, dtype: DType) -> None:
    a, b = (operand(seed, dtype, (40,)) for seed in range(2))
    b[:8] = a[:8]
    checked("STABLEHLO_COMPARE", [a, b], BOOL, direction(order))


def direction(order: str, kind: str = "NOTYPE") -> dict[str, AttributeValue]:
    return {
        "comparison_direction": f"STABLEHLO_COMPARISON_DIRECTION_{order}",
        "compare_type": f"STABLEHLO_COMPARISON_TYPE_{kind}",
    }


@pytest.mark.parametrize("order", ORDERS)
def test_total_order_has_negative_zero_below_zero_and_nan_at_both_ends(order: str) -> None:
    line = np.array([np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    line[0] = np.copysign(line[0], -1)
    a, b = (np.ascontiguousarray(x) for x in np.meshgrid(line, line))
    made = checked("STABLEHLO_COMPARE", [a, b], BOOL, direction(order, "FLOAT_TOTAL_ORDER"))
    assert made.sum() == {"EQ": 8, "NE": 56, "LT": 28, "GT": 28, "LE": 36, "GE": 36}[order]


@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str))
@pytest.mark.parametrize("limits", [(), (4, 6)])
def test_clamp_gives_what_the_reference_gives(dtype: DType, limits: tuple[int, ...]) -> None:
    low, high = operand(1, dtype, limits), operand(2, dtype, limits)
    checked("STABLEHLO_CLAMP", [low, operand(3, dtype, (4, 6)), high], dtype)


def test_clamp_is_nan_where_any_operand_is() -> None:
    low, x, high = (
        np.array(v, np.float32) for v in ([np.nan, 0, 0, 0], [1, np.nan, 1, 1], [2, 2, np.nan, 2])
    )
    made = checked("STABLEHLO_CLAMP", [low, x, high], F32)
    assert np.isnan(made).tolist() == [True, True, True, False]


@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_select_takes_a_condition_of_one_or_of_each_element(shape: tuple[int, ...]) -> None:
    condition = operand(1, BOOL, shape)
    checked("STABLEHLO_SELECT", [condition, operand(2, F32, (3, 4)), operand(3, F32, (3, 4))], F32)


@pytest.mark.parametrize(
    ("given", "made"), [(F32, I32), (I32, F32), (BOOL, F32), (DType.INT8, I32)]
)
def test_convert_gives_what_the_reference_gives(given: DType, made: DType) -> None:
    checked("STABLEHLO_CONVERT", [operand(1, given, (2, 9))], made)


MOVES: list[tuple[str, list[tuple[int, ...]], dict[str, Any], tuple[int, ...]]] = [
    ("STABLEHLO_TRANSPOSE", [(2, 3, 4)], {"permutation": (2, 0, 1)}, (4, 2, 3)),
    ("STABLEHLO_CONCATENATE", [(2, 3), (2, 1), (2, 4)], {"dimension": 1}, (2, 8)),
    (
        "STABLEHLO_SLICE",
        [(5, 7)],
        {"start_indices": (1, 0), "limit_indices": (5, 7), "strides": (2, 3)},
        (2, 3),
    ),
]


@pytest.mark.parametrize("dtype", [F32, DType.INT8, BOOL])
@pytest.mark.parametrize(("kind", "shapes", "attributes", "made"), MOVES)
def test_moved_elements_are_those_of_the_reference(
    kind: str,
    shapes: list[tuple[int, ...]],
    attributes: dict[str, Any],
    made: tuple[int, ...],
    dtype: DType,
) -> None:
    arrays = [operand(seed, dtype, shape) for seed, shape in enumerate(shapes)]
    assert checked(kind, arrays, dtype, attributes).shape == made


def declared(
    kind: str,
    arrays: list[NDArray],
    dtype: DType,
    shape: tuple[int, ...],
    attributes: dict[str, AttributeValue],
) -> NDArray:
    """As `checked`, of an operation whose result has the shape that it declares."""
    builder = ModelBuilder()
    numbers = [
        builder.input(DType(a.dtype.name), a.shape, f"x{position}")
        for position, a in enumerate(arrays)
    ]
    (made,) = check(
        builder.build(builder.operation(kind, numbers, [(dtype, shape)], attributes)), arrays
    )
    return made


def test_reshape_keeps_the_order_of_elements() -> None:
    x = operand(1, F32, (3, 4))
    assert declared("STABLEHLO_RESHAPE", [x], F32, (2, 6), {}).tolist() == x.reshape(2, 6).tolist()


@pytest.mark.parametrize(
    ("shape", "places", "made"),
    [((), (), (2, 3)), ((3,), (1,), (2, 3)), ((2, 1), (0, 2), (2, 4, 3)), ((3, 2), (1, 0), (2, 3))],
)
def test_broadcast_places_each_dimension_of_the_operand(
    shape: tuple[int, ...], places: tuple[int, ...], made: tuple[int, ...]
) -> None:
    attributes: dict[str, AttributeValue] = {"broadcast_dimensions": places}
    declared("STABLEHLO_BROADCAST_IN_DIM", [operand(1, F32, shape)], F32, made, attributes)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [F32, DType.INT8, I32])
def test_iota_counts_along_its_dimension(axis: int, dtype: DType) -> None:
    made = declared("STABLEHLO_IOTA", [], dtype, (3, 4), {"iota_dimension": axis})
    assert np.moveaxis(made, axis, 0)[:, 0].tolist() == list(range((3, 4)[axis]))


def padding(low: tuple[int, ...], high: tuple[int, ...], interior: int = 0) -> dict[str, Any]:
    holes = (interior,) * len(low)
    return {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": holes}


@pytest.mark.parametrize(("low", "high"), [((1, 2), (0, 3)), ((-1, 0), (2, -1)), ((0, 0), (0, 0))])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("holes", [0, 2])
@pytest.mark.parametrize("dtype", [F32, DType.INT8, BOOL])
def test_pad_surrounds_separates_or_crops(
    low: tuple[int, ...], high: tuple[int, ...], holes: int, dtype: DType, fed: bool
) -> None:
    value = np.ones((), dtype.numpy)
    given = [Given(operand(1, dtype, (4, 5)), fed=True), Given(value, fed=fed)]
    model = layer("STABLEHLO_PAD", given, (dtype, None), padding(low, high, holes))
    (made,) = check(model, feeds(given))
    assert made.shape == (4 + 3 * holes + low[0] + high[0], 5 + 4 * holes + low[1] + high[1])


@pytest.mark.parametrize("dtype", [F32, I32, DType.INT64])
@pytest.mark.parametrize(
    ("left", "right", "batching", "inner"),
    [
        ((2, 3, 4, 5), (5, 6, 3, 2), ((1, 0), (2, 3)), ((3,), (0,))),
        ((4, 7), (7, 3), ((), ()), ((1,), (0,))),
        ((4, 2, 3), (5, 3, 2), ((), ()), ((1, 2), (2, 1))),
        ((6,), (6, 2), ((), ()), ((0,), (0,))),
    ],
)
def test_dot_general_multiplies_over_any_dimensions(
    left: tuple[int, ...],
    right: tuple[int, ...],
    batching: tuple[tuple[int, ...], ...],
    inner: tuple[tuple[int, ...], ...],
    dtype: DType,
) -> None:
    arrays = [operand(seed, dtype, shape) for seed, shape in enumerate((left, right))]
    attributes: dict[str, AttributeValue] = {
        "lhs_batching_dimensions": batching[0],
        "rhs_batching_dimensions": batching[1],
        "lhs_contracting_dimensions": inner[0],
        "rhs_contracting_dimensions": inner[1],
    }
    checked("STABLEHLO_DOT_GENERAL", arrays, dtype, attributes)


def refused(kind: str, given: list[Given], dtype: DType, attributes: dict[str, Any]) -> str:
    (site,) = make_sites(layer(kind, given, (dtype, None), attributes))
    with pytest.raises(Refused) as caught:
        judge(site)
    return str(caught.value)


def test_types_without_kernels_are_refused_by_name() -> None:
    double = Given(np.ones(3), fed=True)
    assert "float64" in refused("STABLEHLO_ADD", [double, double], DType.FLOAT64, {})


def test_a_divisor_of_zero_fails_the_run_alone() -> None:
    given = [Given(operand(seed, I32, (3,)), fed=True) for seed in range(2)]
    program = legalise(layer("STABLEHLO_DIVIDE", given, (I32, None), {}))
    assert [message.rpartition(": ")[2] for message in program.failures] == ["division by zero"]


BLOCKS = [((5,), (2,), (1,)), ((4, 3, 6), (2, 3, 2), (1, 0, 3)), ((2, 7), (2, 3), (-1, 99))]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("dtype", [F32, DType.INT8, DType.INT64])
@pytest.mark.parametrize(("whole", "block", "start"), BLOCKS)
def test_a_block_is_taken_or_replaced_where_it_fits(
    whole: tuple[int, ...], block: tuple[int, ...], start: tuple[int, ...], dtype: DType, fed: bool
) -> None:
    starts = [Given(np.array(s, np.int32), fed=fed) for s in start]
    x, update = (Given(operand(seed, dtype, s), fed=True) for seed, s in enumerate((whole, block)))
    model = layer("STABLEHLO_DYNAMIC_SLICE", [x, *starts], (dtype, None), {"slice_sizes": block})
    (made,) = check(model, feeds([x, *starts]))
    first = [min(max(s, 0), w - b) for s, w, b in zip(start, whole, block, strict=True)]
    cut = tuple(slice(f, f + b) for f, b in zip(first, block, strict=True))
    assert made.tobytes() == x.array[cut].tobytes()
    model = layer("STABLEHLO_DYNAMIC_UPDATE_SLICE", [x, update, *starts], (dtype, None), {})
    (made,) = check(model, feeds([x, update, *starts]))
    assert made[cut].tobytes() == update.array.tobytes()


def reduction(kind: str, dtype: DType, shape: tuple[int, ...], axes: tuple[int, ...]) -> Model:
    builder = ModelBuilder()
    region = builder.subgraph("region")
    pair = [region.input(dtype, ()), region.input(dtype, ())]
    body = builder.add_subgraph(region.finish(region.operation(kind, pair, [(dtype, ())])))
    numbers = [builder.input(dtype, shape, "x"), builder.input(dtype, (), "initial")]
    attributes: dict[str, AttributeValue] = {"dimensions": axes, "body_subgraph_index": body}
    made = builder.operation("STABLEHLO_REDUCE", numbers, [(dtype, None)], attributes)
    return infer_shapes(builder.build(made))


@pytest.mark.parametrize("axes", [(), (1,), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("kind", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
@pytest.mark.parametrize("dtype", [F32, I32, DType.INT8, DType.INT64, BOOL])
def test_reduction_begins_with_its_initial_value(
    dtype: DType, kind: str, axes: tuple[int, ...]
) -> None:
    if dtype is F32 and kind in {"MAXIMUM", "MINIMUM"}:
        (site,) = make_sites(reduction(f"STABLEHLO_{kind}", dtype, (2, 3, 4), axes))
        with pytest.raises(Refused):
            judge(site)
        return
    model = reduction(f"STABLEHLO_{kind}", dtype, (2, 3, 4), axes)
    check(model, [operand(1, dtype, (2, 3, 4)), operand(2, dtype, ())])
