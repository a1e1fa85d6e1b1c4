"""StableHLO's loops, branches, sorts and composites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.stablehlo.reduction import exchanges, sorted_lines
from penstock.errors import PenstockError
from penstock.ir import DType, ModelBuilder, NDArray, SubgraphBuilder
from tests.unit.drivers.reference import single_models

INT: Final = DType.INT32
TRUTH: Final = [(DType.BOOL, ())]


def branch(number: int) -> single_models.Body:
    """Its argument times itself or doubled, *number* times."""

    def body(region: SubgraphBuilder) -> Sequence[int]:
        x = y = region.input(INT, (3,))
        for _ in range(number + 1):
            kind = "STABLEHLO_MULTIPLY" if number % 2 else "STABLEHLO_ADD"
            (y,) = region.operation(kind, [y, x], [(INT, (3,))])
        return [y]

    return body


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3, 99])
def test_stablehlo_case_agrees_with_litert(index: int) -> None:
    inputs = [np.array(index, np.int32), np.array([1, -2, 3], np.int32)]
    branches = [branch(number) for number in range(3)]
    model = single_models.single(
        "STABLEHLO_CASE", inputs, [(INT, (3,))], branch_subgraph_indices=branches
    )
    single_models.check(model, inputs, reference=False)


def test_stablehlo_while_agrees_with_litert() -> None:
    def below_ten(region: SubgraphBuilder) -> Sequence[int]:
        x, _ = region.input(INT, ()), region.input(INT, ())
        ten = region.constant(np.array(10, np.int32))
        direction = {"comparison_direction": "STABLEHLO_COMPARISON_DIRECTION_LT"}
        return region.operation("STABLEHLO_COMPARE", [x, ten], TRUTH, direction)

    def body(region: SubgraphBuilder) -> Sequence[int]:
        x, total = region.input(INT, ()), region.input(INT, ())
        one = region.constant(np.array(1, np.int32))
        (following,) = region.operation("STABLEHLO_ADD", [x, one], [(INT, ())])
        return [following, *region.operation("STABLEHLO_ADD", [total, x], [(INT, ())])]

    inputs = [np.array(3, np.int32), np.array(0, np.int32)]
    model = single_models.single(
        "STABLEHLO_WHILE",
        inputs,
        [(INT, ())] * 2,
        cond_subgraph_index=below_ten,
        body_subgraph_index=body,
    )
    last, total = single_models.computed(model, inputs)
    assert (int(last), int(total)) == (10, sum(range(3, 10)))


def test_nested_composites_agree_with_litert() -> None:
    builder = ModelBuilder()
    x = builder.input(INT, (3,), "x")
    inner = builder.subgraph("inner")
    y = inner.input(INT, (3,))
    inner_index = builder.add_subgraph(
        inner.finish(inner.operation("STABLEHLO_ADD", [y, y], [(INT, (3,))]))
    )
    outer = builder.subgraph("outer")
    y = outer.input(INT, (3,))
    (twice,) = outer.operation(
        "STABLEHLO_COMPOSITE",
        [y],
        [(INT, (3,))],
        {"name": "test.twice", "decomposition_subgraph_index": inner_index},
    )
    outer_index = builder.add_subgraph(
        outer.finish(outer.operation("STABLEHLO_MULTIPLY", [twice, y], [(INT, (3,))]))
    )
    result = builder.operation(
        "STABLEHLO_COMPOSITE",
        [x],
        [(INT, (3,))],
        {"name": "test.square", "decomposition_subgraph_index": outer_index},
    )
    model, feed = builder.build(result), np.array([1, -2, 3], np.int32)
    single_models.check(model, [feed])
    np.testing.assert_array_equal(single_models.computed(model, [feed])[0], 2 * feed * feed)


def test_a_call_runs_its_subgraph() -> None:
    x = np.array([1, -2, 3], np.int32)
    model = single_models.single("CALL", [x], [(INT, (3,))], subgraph=branch(1))
    np.testing.assert_array_equal(single_models.computed(model, [x])[0], x * x * x)


def comparing(kind: str, dtype: DType) -> single_models.Body:
    return _comparison(kind, [dtype])


def _comparison(direction: str, dtypes: Sequence[DType]) -> single_models.Body:
    def body(region: SubgraphBuilder) -> Sequence[int]:
        pairs = [(region.input(d, ()), region.input(d, ())) for d in dtypes]
        attributes = {"comparison_direction": f"STABLEHLO_COMPARISON_DIRECTION_{direction}"}
        return region.operation("STABLEHLO_COMPARE", pairs[0], TRUTH, attributes)

    return body


def sorting(inputs: Sequence[NDArray], axis: int, body: single_models.Body) -> Any:
    outputs = [(single_models.kind_of(x), x.shape) for x in inputs]
    return single_models.single(
        "STABLEHLO_SORT",
        inputs,
        outputs,
        {"dimension": axis, "is_stable": True},
        comparator_subgraph_index=body,
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stablehlo_sort_of_several_operands_is_stable(axis: int) -> None:
    keys = np.random.default_rng(3).integers(0, 5, (17, 9)).astype(np.int32)
    carried = np.arange(keys.size, dtype=np.float32).reshape(keys.shape)
    model = sorting([keys, carried], axis, _comparison("GT", [INT, DType.FLOAT32]))
    order = np.argsort(-keys, axis=axis, kind="stable")
    for got, x in zip(single_models.computed(model, [keys, carried]), (keys, carried), strict=True):
        np.testing.assert_array_equal(got, np.take_along_axis(x, order, axis))


def test_stablehlo_sort_supports_a_comparator_of_scalars() -> None:
    def body(region: SubgraphBuilder) -> Sequence[int]:
        a, b = region.input(INT, ()), region.input(INT, ())
        (wide,) = region.operation("STABLEHLO_RESHAPE", [a], [(INT, (1,))])
        (back,) = region.operation("STABLEHLO_RESHAPE", [wide], [(INT, ())])
        return region.operation(
            "STABLEHLO_COMPARE",
            [back, b],
            TRUTH,
            {"comparison_direction": "STABLEHLO_COMPARISON_DIRECTION_LT"},
        )

    x = np.array([5, 3, 9, 1, 1], np.int32)
    np.testing.assert_array_equal(single_models.computed(sorting([x], 0, body), [x])[0], np.sort(x))


def test_stablehlo_sort_refuses_invalid_arguments() -> None:
    x = np.arange(4, dtype=np.int32)
    for axis, body in (
        (1, comparing("LT", INT)),
        (0, single_models.combining("STABLEHLO_ADD", INT)),
        (0, _comparison("LT", [INT, INT])),
    ):
        with pytest.raises(PenstockError):
            single_models.computed(sorting([x], axis, body), [x])


@given(st.lists(st.integers(0, 6), max_size=70))
def test_sorting_network_is_stable_for_any_list(keys: list[int]) -> None:
    lines = [np.array(keys, np.int64), np.arange(len(keys))]
    sorted_keys, places = sorted_lines(lines, lambda a, b, *_: [a < b])
    order = np.argsort(lines[0], kind="stable")
    np.testing.assert_array_equal(sorted_keys, lines[0][order])
    np.testing.assert_array_equal(places, order)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 100])
def test_sorting_network_steps_compare_disjoint_pairs(count: int) -> None:
    steps = list(exchanges(count))
    assert (not steps) == (count < 2)
    for first, second in steps:
        touched = np.concatenate([first, second])
        assert len(set(touched.tolist())) == touched.size
        assert touched.max() < count


def test_sorting_with_an_inconsistent_comparator_keeps_all_elements() -> None:
    x = np.arange(20)
    for answer in (True, False):
        (got,) = sorted_lines([x], lambda a, _, answer=answer: [np.full(a.shape, answer)])
        np.testing.assert_array_equal(got, x)
