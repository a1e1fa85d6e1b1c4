"""State in two arrays a variable, which runs write in turns."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.errors import GeneralFailure, ResourceExhaustedTransient
from penstock.execution.arena import buffered_variables, side_by_side
from penstock.execution.state import State
from penstock.hal import ExecutionConfig, HostMemory, ProvenRequest, Request
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand
from tests.unit.execution.fakes import NumpyDevice, accumulator, f32

ONE = f32([1, 2])


class Watching(NumpyDevice):
    """Notes the kind of each request and where it reads and writes the state; fails while it is
    told to.
    """

    def __init__(self) -> None:
        super().__init__(before=self._look)
        self.kinds: list[type[Request]] = []
        self.places: list[tuple[int, int]] = []
        self.fails = False

    def _look(self, request: Request, config: ExecutionConfig) -> None:
        read, written = request.inputs[1], request.outputs[1]
        assert isinstance(read, HostMemory)
        assert isinstance(written, HostMemory)
        assert not read.array.flags.writeable
        self.kinds.append(type(request))
        self.places.append((read.array.ctypes.data, written.array.ctypes.data))
        if self.fails:
            written.array[...] = -1
            raise GeneralFailure("told to fail")


def alone(device: NumpyDevice, model: Model | None = None) -> penstock.CompiledModel:
    policy = penstock.Policy(allow_fallback=False)
    return penstock.compile(model or accumulator(), devices=[device], policy=policy)


def test_two_arrays_take_turns() -> None:
    device = Watching()
    with alone(device) as compiled:
        results = [compiled(ONE)[0].tolist() for _ in range(4)]
    assert results == [[11, 22], [12, 24], [13, 26], [14, 28]]
    first, second = device.places[0]
    assert device.places == [(first, second), (second, first)] * 2


def test_a_failed_run_has_not_had_its_turn() -> None:
    device = Watching()
    with alone(device) as compiled:
        state = compiled.new_state()
        for _ in range(3):
            compiled.run([ONE], state=state)
            device.fails = True
            with pytest.raises(GeneralFailure):
                compiled.run([ONE], state=state)
            device.fails = False
        np.testing.assert_array_equal(state.as_dict()["total"], [13, 26])
        np.testing.assert_array_equal(compiled.run([ONE], state=state)[0], [14, 28])


def test_requests_are_proven_by_the_first_that_was_accepted() -> None:
    device = Watching()
    device.fails = True
    with alone(device) as compiled:
        with pytest.raises(GeneralFailure):
            compiled(ONE)
        device.fails = False
        for _ in range(3):
            compiled(ONE)
    assert device.kinds == [Request, Request, ProvenRequest, ProvenRequest]


def test_a_value_that_was_handed_out_is_never_written_over() -> None:
    device = Watching()
    with alone(device) as compiled:
        state = compiled.new_state()
        compiled.run([ONE], state=state)
        seen = state.get(0)
        for _ in range(3):
            compiled.run([ONE], state=state)
        assert seen.tolist() == [11, 22]
        assert compiled.run([ONE], state=state)[0].tolist() == [15, 30]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_reading_state_during_a_run_keeps_the_run(timeout: float | None) -> None:
    seen: list[NDArray] = []
    device = NumpyDevice(before=lambda *_: seen.append(state.get(0)))
    with alone(device) as compiled:
        state = compiled.new_state()
        for _ in range(4):
            compiled.run([ONE], state=state, timeout=timeout)
        assert state.as_dict()["total"].tolist() == [14, 28]
    assert [value.tolist() for value in seen] == [[10 + k, 20 + 2 * k] for k in range(4)]


def test_a_value_that_was_put_in_is_looked_at_again_and_kept() -> None:
    device = Watching()
    with alone(device) as compiled:
        state, mine = compiled.new_state(), f32([100, 200])
        compiled.run([ONE], state=state)
        compiled.run([ONE], state=state)
        state.replace({0: mine})
        for _ in range(2):
            compiled.run([ONE], state=state)
        assert mine.tolist() == [100, 200]
        assert state.as_dict()["total"].tolist() == [102, 204]
    assert device.kinds[-2:] == [Request, Request]


def test_a_state_goes_on_after_reset_and_copies_are_apart() -> None:
    with alone(Watching()) as compiled:
        state = compiled.new_state()
        for _ in range(3):
            compiled.run([ONE], state=state)
        other = copy.deepcopy(state)
        state.reset()
        assert compiled.run([ONE], state=state)[0].tolist() == [11, 22]
        assert compiled.run([ONE], state=other)[0].tolist() == [14, 28]
        assert state.as_dict()["total"].tolist() == [11, 22]


def test_two_compiled_models_share_a_state() -> None:
    with alone(Watching()) as one, alone(Watching()) as two:
        state = one.new_state()
        results = [net.run([ONE], state=state)[0].tolist() for net in (one, one, two, one, two)]
    assert results == [[11 + k, 22 + 2 * k] for k in range(5)]


def test_new_values_that_a_caller_gets_too_are_not_turned() -> None:
    model = accumulator()
    entry = model.entry
    both = replace(entry, outputs=(entry.states[0].output or 0, *entry.outputs))
    assert buffered_variables(model)
    assert buffered_variables(replace(model, subgraphs=(both,))) == ()


def test_a_value_that_goes_round_as_it_is_stays() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    kept = builder.operand(Operand(DType.FLOAT32, (2,), Lifetime.SUBGRAPH_INPUT, "kept"))
    total = builder.operation("ADD", [kept, x], [(DType.FLOAT32, (2,))])
    builder.state(builder.variable("kept", DType.FLOAT32, (2,)), kept, kept)
    model = builder.build(total)
    assert buffered_variables(model) == ()
    with alone(NumpyDevice(), model) as compiled:
        state = compiled.new_state()
        state.replace({0: f32([5, 6])})
        for given in (state, state.copied(), copy.deepcopy(state)):
            results = [compiled.run([ONE], state=given)[0].tolist() for _ in range(3)]
            assert results == [[6, 8]] * 3


def test_values_of_another_shape_get_arrays_of_their_own() -> None:
    model = accumulator()
    state = State(model)
    state.replace({0: np.zeros(3, np.float32)})
    assert copy.deepcopy(state).turn(buffered_variables(model), []) is None


def test_arrays_that_find_no_room_are_one_named_error() -> None:
    with pytest.raises(ResourceExhaustedTransient, match="no memory"):
        side_by_side([((1 << 60,), np.dtype(np.uint8))])
    with pytest.raises(ResourceExhaustedTransient, match="no memory"):
        side_by_side([((2,), np.dtype(np.uint8)), ((1 << 61,), np.dtype(np.float32))])


@pytest.mark.parametrize("length", [1, 16, 100, 1000, 50_000])
def test_small_arrays_begin_at_multiples_of_64(length: int) -> None:
    kinds: list[tuple[tuple[int, ...], np.dtype[np.generic]]] = [
        ((length,), np.dtype(np.uint8)),
        ((3,), np.dtype(np.float32)),
    ]
    # Kept, so that each set finds other memory.
    sets = [side_by_side(kinds) for _ in range(8)]
    assert {array.ctypes.data % 64 for arrays in sets for array in arrays} == {0}
    assert {arrays[1].ctypes.data - arrays[0].ctypes.data for arrays in sets} == {
        length + -length % 64
    }
    assert not any(array.any() for arrays in sets for array in arrays)
