"""The lab device's memory: tiles that it computes on, conversions that it counts, and an end of its
room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import penstock
from penstock.errors import GeneralFailure, ResourceExhaustedTransient
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand
from penstock.memory import InputRole, allocate
from penstock.testing import assert_no_copies
from penstock.testing.lab import LabDevice
from penstock.testing.lab.machine import TILE, from_tiles, to_tiles

F32 = DType.FLOAT32
UNITS, DEPTH, ROWS = 20, 12, 3


def numbers(*shape: int, start: int = 0) -> NDArray:
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + start) % 11 - 5).astype(np.float32).reshape(shape) / 8


def named(name: str, shape: Any) -> Operand:
    return Operand(F32, shape, Lifetime.TEMPORARY_VARIABLE, name)


def recurrent() -> Model:
    """h' = tanh(x W + b + h U), y = logistic(h')."""
    b = ModelBuilder()
    x, h = b.input(F32, (ROWS, DEPTH), "x"), b.input(F32, (ROWS, UNITS), "h")
    w, u = b.constant(numbers(UNITS, DEPTH), "w"), b.constant(numbers(UNITS, UNITS, start=3), "u")
    bias = b.constant(numbers(UNITS, start=5), "bias")
    shape = (ROWS, UNITS)
    (p,) = b.operation("FULLY_CONNECTED", [x, w, bias], [(F32, shape)])
    (q,) = b.operation("FULLY_CONNECTED", [h, u, None], [(F32, shape)])
    (s,) = b.operation("ADD", [p, q], [(F32, shape)])
    (after,) = b.operation("TANH", [s], [named("after", shape)])
    (y,) = b.operation("LOGISTIC", [after], [named("y", shape)])
    return b.build([after, y])


def step(x: NDArray, h: NDArray) -> tuple[NDArray, NDArray]:
    w, u, bias = numbers(UNITS, DEPTH), numbers(UNITS, UNITS, start=3), numbers(UNITS, start=5)
    after = np.tanh(x @ w.T + bias + h @ u.T)
    return after, 1 / (1 + np.exp(-after))


@pytest.fixture(params=["now", "staged"])
def lab(request: pytest.FixtureRequest) -> LabDevice:
    return LabDevice(layout="tiles", mode=request.param, uses=2)


@given(st.lists(st.integers(0, 19), max_size=4), st.sampled_from([np.float32, np.int8, np.int64]))
def test_tiles_and_back(shape: list[int], dtype: Any) -> None:
    array = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    tiled = to_tiles(array)
    assert tiled.tiles.shape[-2:] == (TILE, TILE)
    back = from_tiles(tiled)
    assert back.dtype == dtype
    assert np.array_equal(back, array)


def test_bound_runs_convert_and_copy_nothing(lab: LabDevice) -> None:
    with (
        penstock.compile(recurrent(), devices=[lab], cache=None) as compiled,
        compiled.allocate(inputs=["x"]) as x,
        compiled.allocate(outputs=["y"]) as y,
    ):
        bound = compiled.bind_state({"after": "h"})
        assert {x.device, y.device, bound.device("h")} == {lab.name}
        x.copy_from(numbers(ROWS, DEPTH, start=2))
        bound.read("h")
        before = lab.conversions
        with assert_no_copies():
            for _ in range(6):
                outputs = compiled.run([x], out=[y])
                assert not outputs.receipt.copies
        assert lab.conversions == before
        # What is in the tiles is right.
        h, seen = np.zeros((ROWS, UNITS), np.float32), np.zeros(0)
        for _ in range(6):
            h, seen = step(numbers(ROWS, DEPTH, start=2), h)
        assert np.allclose(y.numpy(), seen, atol=1e-5)
        assert np.allclose(bound.read("h"), h, atol=1e-5)
        assert lab.conversions == before + 2


def test_host_input_is_converted_once_a_run() -> None:
    lab = LabDevice(layout="tiles")
    with penstock.compile(recurrent(), devices=[lab], cache=None) as compiled:
        compiled.bind_state({"after": "h"})
        compiled(numbers(ROWS, DEPTH))
        before = lab.conversions
        for _ in range(3):
            compiled(numbers(ROWS, DEPTH))
        # Its sum with the state is the first thing on tiles; the output goes home.
        assert lab.conversions == before + 3 * 2


def test_a_device_without_room_refuses_and_the_buffer_is_a_pool() -> None:
    lab = LabDevice(memory=ROWS * UNITS * 4)
    with penstock.compile(recurrent(), devices=[lab], cache=None) as compiled:
        first = compiled.allocate(inputs=["h"])
        second = compiled.allocate(inputs=["h"])
        assert first.device == "lab"
        assert "ResourceExhaustedTransient" in second.fallback_reason
        with pytest.raises(ResourceExhaustedTransient, match="exceed"):
            allocate([InputRole(compiled, "h")], fallback=False)
        first.close()
        with compiled.allocate(inputs=["h"]) as third:
            assert third.device == "lab"
        second.close()


@pytest.mark.parametrize("layout", ["rows", "tiles"])
def test_buffers_of_unknown_size_resize_and_are_counted(layout: Any) -> None:
    b = ModelBuilder()
    x = b.input(F32, (None, 3), "x")
    (y,) = b.operation("RELU", [x], [named("y", (None, 3))])
    lab = LabDevice(layout=layout, memory=4 * 3 * 9)
    with (
        penstock.compile(b.build([y]), devices=[lab], cache=None) as compiled,
        compiled.allocate(inputs=["x"], outputs=["y"]) as one,
    ):
        assert one.device == "lab"
        for rows in (4, 9, 2):
            compiled.run([numbers(rows, 3)], out=[one])
            assert one.shape == (rows, 3)
            assert np.array_equal(one.numpy(), np.maximum(numbers(rows, 3), 0))
            assert lab.domain is not None
            assert lab.domain.used == rows * 12
        policy = penstock.Policy(allow_fallback=False)
        with (
            penstock.compile(b.build([y]), devices=[lab], cache=None, policy=policy) as strict,
            strict.allocate(outputs=["y"]) as other,
            pytest.raises((ResourceExhaustedTransient, GeneralFailure), match="exceed"),
        ):
            strict.run([numbers(8, 3)], out=[other])
