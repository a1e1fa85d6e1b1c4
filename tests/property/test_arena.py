"""The arena: values that live together never overlap, and nothing is larger than it must be at
least.
"""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from penstock.errors import InputError, ShapeOverflow
from penstock.ir import DType, Operand, Shape
from penstock.memory.layout import ArenaLayout, ArenaRequest, array_nbytes, plan_arena

powers = st.sampled_from([1, 2, 16, 64, 128, 4096])


@st.composite
def requests(draw: st.DrawFn) -> list[ArenaRequest]:
    keys = draw(st.lists(st.integers(0, 99), unique=True, max_size=24))
    made = []
    for key in keys:
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 6))
        nbytes = draw(st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 10**6)))
        made.append(ArenaRequest(key, nbytes, first, last, draw(powers), draw(powers)))
    return made


def padded(request: ArenaRequest) -> int:
    return -(-request.nbytes // request.padding) * request.padding


@given(requests())
def test_live_values_never_overlap(wanted: list[ArenaRequest]) -> None:
    layout = plan_arena(wanted)
    placed = [(layout.offsets[r.key][0], padded(r), r) for r in wanted if r.nbytes]
    for position, (start, size, one) in enumerate(placed):
        for other_start, other_size, other in placed[:position]:
            if one.first <= other.last and other.first <= one.last:
                assert start + size <= other_start or other_start + other_size <= start


@given(requests())
def test_every_value_has_its_place(wanted: list[ArenaRequest]) -> None:
    layout = plan_arena(wanted)
    assert set(layout.offsets) == {r.key for r in wanted}
    for request in wanted:
        offset, nbytes = layout.offsets[request.key]
        assert nbytes == request.nbytes
        assert offset % request.alignment == 0
        assert offset % 64 == 0
        assert offset >= 0
        assert offset + padded(request) <= layout.nbytes
        assert layout.alignment % request.alignment == 0


@given(requests())
def test_the_block_is_at_least_the_largest_live_set_and_at_most_everything(
    wanted: list[ArenaRequest],
) -> None:
    layout = plan_arena(wanted)
    for step in range(20):
        assert layout.nbytes >= sum(padded(r) for r in wanted if r.first <= step <= r.last)
    assert layout.nbytes <= sum(padded(r) + max(64, layout.alignment) for r in wanted)


@given(requests().flatmap(lambda wanted: st.tuples(st.just(wanted), st.permutations(wanted))))
def test_the_order_of_requests_does_not_count(
    pair: tuple[list[ArenaRequest], list[ArenaRequest]],
) -> None:
    assert plan_arena(pair[0]) == plan_arena(pair[1])


def test_values_that_follow_each_other_share_their_place() -> None:
    layout = plan_arena([ArenaRequest(k, 100, k, k) for k in range(50)])
    assert layout.nbytes == 100
    assert {offset for offset, _ in layout.offsets.values()} == {0}


def test_a_step_s_inputs_and_outputs_are_apart() -> None:
    layout = plan_arena([ArenaRequest(0, 64, 0, 1), ArenaRequest(1, 64, 1, 2)])
    assert layout.nbytes == 128


def test_a_small_value_fits_into_a_gap() -> None:
    """0 lies low for long, 1 above it while 2 is dead; 2 takes 1's place."""
    layout = plan_arena(
        [ArenaRequest(0, 1000, 0, 9), ArenaRequest(1, 640, 0, 3), ArenaRequest(2, 64, 4, 9)]
    )
    assert dict(layout.offsets) == {0: (0, 1000), 1: (1024, 640), 2: (1024, 64)}


@pytest.mark.parametrize(
    "wrong",
    [
        ArenaRequest(0, -1, 0, 0),
        ArenaRequest(0, 1, 2, 1),
        ArenaRequest(0, 1, 0, 0, alignment=48),
        ArenaRequest(0, 1, 0, 0, padding=0),
    ],
)
def test_a_request_that_contradicts_itself(wrong: ArenaRequest) -> None:
    with pytest.raises(InputError, match="arena value 0"):
        plan_arena([wrong])


def test_a_value_requested_twice() -> None:
    with pytest.raises(InputError, match="arena value 3 is requested twice"):
        plan_arena([ArenaRequest(3, 1, 0, 0), ArenaRequest(3, 1, 1, 1)])


def test_a_block_beyond_64_bits() -> None:
    with pytest.raises(ShapeOverflow):
        plan_arena([ArenaRequest(k, 2**62, 0, 0) for k in range(2)])


def test_a_layout_is_a_value() -> None:
    layout = plan_arena([ArenaRequest(1, 10, 0, 0)], dynamic=[9, 4])
    assert layout == ArenaLayout({1: (0, 10)}, 10, 64, (4, 9))
    assert pickle.loads(pickle.dumps(layout)) == layout  # noqa: TID251  # plans are stored
    assert hash(layout) == hash(ArenaLayout({1: (0, 10)}, 10, 64, (4, 9)))
    with pytest.raises(TypeError):
        layout.offsets[2] = (0, 0)  # type: ignore[index]  # that is the point


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        (DType.FLOAT32, (2, 3), 24),
        (DType.INT4, (5,), 5),
        (DType.BFLOAT16, (), 2),
        (DType.INT8, (0, 7), 0),
        (DType.FLOAT32, (None, 3), None),
        (DType.FLOAT32, None, None),
        (DType.STRING, (2,), None),
        (DType.RESOURCE, (), None),
    ],
)
def test_bytes_of_an_array(dtype: DType, shape: Shape, nbytes: int | None) -> None:
    assert array_nbytes(Operand(dtype, shape)) == nbytes
