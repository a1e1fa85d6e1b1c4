"""Copies of many small tensors as few: what they write, and what they leave alone."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, strategies as st

import penstock
from penstock import hal
from penstock.drivers.xnnpack.interpreter import scalar_places
from penstock.drivers.xnnpack.state_copies import ALIGNMENT, AdjacentTensors, merged
from penstock.execution.arena import side_by_side
from penstock.ir import Lifetime, Model, ModelBuilder, NDArray, Operand
from tests.support_xnnpack import F32, device, needs_litert


def aligned(nbytes: int) -> NDArray:
    """Bytes that begin at a multiple of the alignment, each 0xEE."""
    raw = np.full(nbytes + ALIGNMENT, 0xEE, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + nbytes]


def padded(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=8)


@given(sizes=SIZES, data=st.data())
def test_merged_copies_write_every_array_and_nothing_else(
    sizes: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 0, ALIGNMENT]), min_size=8, max_size=8))
    memory = aligned(sum(padded(n) for n in sizes) + 9 * ALIGNMENT)
    places, end = {}, 0
    for at in order:
        end += gaps[at]
        places[at] = memory[end : end + sizes[at]]
        end += padded(sizes[at])
    ours = [places[at] for at in range(len(sizes))]
    arrays = side_by_side([((n,), np.dtype(np.uint8)) for n in sizes])
    for at, array in enumerate(arrays):
        array[...] = at + 1
    if data.draw(st.booleans()):
        arrays[0] = arrays[0].copy()
    expected = memory.copy()
    for at, array in enumerate(arrays):
        begin = places[at].ctypes.data - memory.ctypes.data
        expected[begin : begin + sizes[at]] = array
    for place, part in merged(ours, arrays):
        place[...] = part
    begins = [place.ctypes.data - memory.ctypes.data for place in ours]
    padding = np.zeros(len(memory), bool)
    for begin, size in zip(begins, sizes, strict=True):
        padding[begin + size : begin + padded(size)] = True
    assert np.array_equal(memory[~padding], expected[~padding])
    back = side_by_side([((n,), np.dtype(np.uint8)) for n in sizes])
    for place, part in merged(ours, back):
        part[...] = place
    for at, array in enumerate(back):
        assert (array == at + 1).all()


def test_tensors_adjacent_on_both_sides_are_one_copy() -> None:
    sizes = [64, 40, 128]
    memory = aligned(320)
    places = [memory[0:64], memory[64:104], memory[128:256]]
    arrays = side_by_side([((n,), np.dtype(np.uint8)) for n in sizes])
    assert [part.nbytes for part, _ in merged(places, arrays)] == [256]
    apart = [np.zeros(n, np.uint8) for n in sizes]
    assert len(merged(places, apart)) == 3
    swapped = [places[1], places[0], places[2]]
    mixed = [arrays[1], arrays[0], arrays[2]]
    assert len(merged(swapped, mixed)) == 3
    foreign = (ctypes.c_uint8 * 256).from_buffer(bytearray(256))
    flat = np.ctypeslib.as_array(foreign)
    assert len(merged(places, [flat[0:64], flat[64:104], flat[128:256]])) == 3


def test_bytes_between_arrays_of_the_caller_are_unchanged() -> None:
    memory, mine = aligned(256), aligned(256)
    places = [memory[0:64], memory[64:104], memory[128:256]]
    arrays = [mine[0:64], mine[64:104], mine[128:256]]
    assert len(merged(places, arrays)) == 3
    shared = mine.view(hal.PaddedBytes)
    (whole,) = merged(places, [shared[0:64], shared[64:104], shared[128:256]])
    assert type(whole[1]) is np.ndarray
    assert whole[1].nbytes == 256


@given(dtypes=st.lists(st.sampled_from(["f4", "i8", "u1", "?"]), max_size=6))
def test_scalar_memory_is_aligned_and_padded(dtypes: list[str]) -> None:
    places = scalar_places({key: np.dtype(name) for key, name in enumerate(dtypes)})
    assert [(p.dtype.str.lstrip("<|"), p.shape) for p in places.values()] == [
        (np.dtype(name).str.lstrip("<|"), ()) for name in dtypes
    ]
    begins = [place.ctypes.data for place in places.values()]
    for place, begin in zip(places.values(), begins, strict=True):
        owner = place.base
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        assert isinstance(owner, np.ndarray)
        assert begin % ALIGNMENT == 0
        assert owner.ctypes.data <= begin
        assert begin + ALIGNMENT <= owner.ctypes.data + owner.nbytes
    assert len(set(begins)) == len(begins)


@needs_litert
def test_scalars_of_a_state_use_aligned_memory() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (), "x")
    for number in range(4):
        before = builder.operand(Operand(F32, (), Lifetime.SUBGRAPH_INPUT, f"before {number}"))
        (after,) = builder.operation("ADD", [before, x], [(F32, ())])
        builder.state(builder.variable(f"v{number}", F32, ()), before, after)
    model = builder.build(builder.operation("MUL", [x, x], [(F32, ())]))
    prepared = device().prepare_model(model, hal.PrepareConfig(num_threads=1))
    ((runner,),) = prepared._free
    assert all(place.ctypes.data % ALIGNMENT == 0 for place in (*runner.inputs, *runner.outputs))
    with penstock.compile(model, devices=["xnnpack"], cache=False) as compiled:
        state = compiled.new_state()
        for _ in range(3):
            compiled.run([np.float32(2).reshape(())], state=state)
        assert state.as_list() == [6, 6, 6, 6]


def test_merged_copies_of_read_only_arrays_are_read_only() -> None:
    memory = aligned(128)
    arrays = side_by_side([((64,), np.dtype(np.uint8)), ((64,), np.dtype(np.uint8))])
    views = [a.view() for a in arrays]
    for view in views:
        view.setflags(write=False)
    ((_, part),) = merged([memory[:64], memory[64:]], views)
    assert not part.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        part[...] = 0


def test_known_arguments_are_not_merged_again() -> None:
    memory = aligned(128)
    known = AdjacentTensors([memory[:64], memory[64:]])
    first, second = (
        tuple(hal.HostMemory(a) for a in side_by_side([((64,), np.dtype(np.uint8))] * 2))
        for _ in range(2)
    )
    pieces = known.pieces(first)
    assert known.pieces(second) is not pieces
    assert known.pieces(first) is pieces
    assert known.pieces((first[0], second[1])) is not pieces
    assert known.pieces((first[0], hal.NO_VALUE_ARGUMENT)) is None


def counters() -> Model:
    """Three variables of unlike sizes, one, ten and a hundred more after every run; the output is
    what their first elements make together.
    """
    builder = ModelBuilder()
    total = builder.input(F32, (1,), "x")
    for number, size in enumerate((3, 40, 5)):
        before = builder.operand(Operand(F32, (size,), Lifetime.SUBGRAPH_INPUT, f"before {number}"))
        step = builder.constant(np.full(size, 10.0**number, np.float32))
        (after,) = builder.operation("ADD", [before, step], [(F32, (size,))])
        builder.state(builder.variable(f"v{number}", F32, (size,)), before, after)
        begin, length = (builder.constant(np.array([n], np.int32)) for n in (0, 1))
        (head,) = builder.operation("SLICE", [after, begin, length], [(F32, (1,))])
        (total,) = builder.operation("ADD", [total, head], [(F32, (1,))])
    return builder.build([total])


@needs_litert
def test_states_of_several_variables_are_independent() -> None:
    with penstock.compile(counters(), devices=["xnnpack"], cache=False) as model:
        assert [s.device for s in model.plan.steps] == ["xnnpack"]
        x = np.zeros(1, np.float32)
        other = model.new_state()
        for run in range(1, 6):
            assert model(x)[0] == 111 * run
            if run % 2:
                assert model.run([x], state=other)[0] == 111 * (run // 2 + 1)
        other.reset()
        assert model.run([x], state=other)[0] == 111
        values = other.as_list()
        assert [v.shape for v in values] == [(3,), (40,), (5,)]
        assert [float(v.min()) for v in values] == [1, 10, 100]
        assert [float(v.max()) for v in values] == [1, 10, 100]


@needs_litert
def test_state_tensors_are_adjacent_in_any_order() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (16,), "x")
    names = range(4)
    before = [
        builder.operand(Operand(F32, (16,), Lifetime.SUBGRAPH_INPUT, f"before {n}")) for n in names
    ]
    made: dict[int, int] = {}
    for n in reversed(names):
        (between,) = builder.operation("MUL", [before[n], x], [(F32, (16,))])
        (made[n],) = builder.operation("ADD", [between, x], [(F32, (16,))])
    for n in names:
        builder.state(builder.variable(f"v{n}", F32, (16,)), before[n], made[n])
    model = builder.build(builder.operation("MUL", [made[0], x], [(F32, (16,))]))
    prepared = device().prepare_model(model, hal.PrepareConfig(num_threads=1))
    ((runner,),) = prepared._free
    for places in (runner.inputs[1:], runner.outputs[1:]):
        arrays = side_by_side([(p.shape, p.dtype) for p in places])
        assert len(merged(places, arrays)) == 1


@needs_litert
def test_run_does_not_write_between_its_outputs() -> None:
    model = counters()
    prepared = device().prepare_model(model, hal.PrepareConfig(num_threads=1))
    given = [hal.HostMemory(np.zeros(n, np.float32)) for n in (1, 3, 40, 5)]
    memory, outputs, end = aligned(1024), [], 0
    expected = memory.copy()
    for size, value in ((1, 111), (3, 1), (40, 10), (5, 100)):
        part = slice(end, end + 4 * size)
        outputs.append(hal.HostMemory(memory[part].view(np.float32)))
        expected[part].view(np.float32)[...] = value
        end += padded(4 * size)
    prepared.execute(hal.Request(tuple(given), tuple(outputs)), hal.ExecutionConfig())
    assert np.array_equal(memory, expected)


@needs_litert
def test_arrays_of_the_caller_are_released_after_the_call() -> None:
    prepared = device().prepare_model(counters(), hal.PrepareConfig(num_threads=1))
    sides = [[np.zeros(n, np.float32) for n in (1, 3, 40, 5)] for _ in range(2)]
    watched = [weakref.ref(array) for side in sides for array in side]
    given, wanted = (tuple(map(hal.HostMemory, side)) for side in sides)
    prepared.execute(hal.Request(given, wanted), hal.ExecutionConfig())
    del sides, given, wanted
    gc.collect()
    assert [each() for each in watched] == [None] * 8
