"""Bursts on devices in other processes: what lies in shared memory is not copied between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import penstock
from penstock.memory import MemoryPool, pool_of
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32

X = f32([[1, -2, 3], [4, 5, -6]])
Y = f32([[1, 1, 1], [-9, 1, 1]])


class Elsewhere(NumpyDevice):
    """Says that its driver lives in another process."""

    isolated = True


@pytest.fixture(scope="module")
def isolated() -> Iterator[penstock.CompiledModel]:
    with penstock.compile(add_relu(), devices=["sample"], cache=False, isolate=True) as compiled:
        yield compiled


def test_burst_outputs_lie_in_memory_shared_with_the_host(isolated: penstock.CompiledModel) -> None:
    with isolated.burst() as burst:
        for k in range(3):
            outputs = burst.run(X * k, Y)
            np.testing.assert_array_equal(outputs["sum"], X * k + Y)
            np.testing.assert_array_equal(outputs["relu"], np.maximum(X * k + Y, 0))
            # The inputs were copied there; nothing was copied back.
            assert [c.nbytes for c in outputs.receipt.copies] == [X.nbytes, Y.nbytes]


def test_burst_copies_no_input_in_a_pool(isolated: penstock.CompiledModel) -> None:
    with MemoryPool.anonymous(4096) as pool, isolated.burst() as burst:
        x = pool.view(np.float32, (2, 3))
        y = pool.view(np.float32, (2, 3), 64)
        x[:], y[:] = X, Y
        for _ in range(3):
            x += 1
            outputs = burst.run(x, y)
            np.testing.assert_array_equal(outputs["sum"], x + y)
            assert outputs.receipt.copies == ()


def test_a_process_that_dies_between_runs_changes_no_answer(
    isolated: penstock.CompiledModel,
) -> None:
    device = isolated.executable.base.compilation.steps[0].device
    with isolated.burst() as burst:
        np.testing.assert_array_equal(burst.run(X, Y)["sum"], X + Y)
        pid = getattr(device, "pid", None)
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        for k in range(3):
            np.testing.assert_array_equal(burst.run(X * k, Y)["sum"], X * k + Y)


def test_burst_outputs_in_a_pool_are_ordinary_arrays() -> None:
    with (
        penstock.compile(add_relu(), devices=[Elsewhere()], cache=False) as compiled,
        compiled.burst() as burst,
    ):
        wanted = X
        outputs = burst.run(X, Y)
        assert pool_of(outputs["sum"]) is not None
        assert not outputs["sum"].flags.writeable
        for _ in range(4):
            wanted = wanted + Y
            np.testing.assert_array_equal(outputs["sum"], wanted)
            outputs = burst.run(outputs["sum"], Y)
            assert [c.nbytes for c in outputs.receipt.copies] == [X.nbytes]
        with MemoryPool.anonymous(4096) as pool:
            other = pool.view(np.float32, (2, 3))
            other[:] = X
            assert burst.run(other, Y).receipt.copies == ()
        kept = outputs["sum"]
    np.testing.assert_array_equal(kept, X + Y)


def test_burst_temporaries_lie_in_a_pool() -> None:
    seen: list[bool] = []

    def look(request: object, config: object) -> None:
        array = request.inputs[0].array  # type: ignore[attr-defined]
        seen.append(pool_of(array) is not None)

    builder = penstock.ir.ModelBuilder()
    shape = [(penstock.ir.DType.FLOAT32, (4,))]
    x = builder.input(penstock.ir.DType.FLOAT32, (4,), "x")
    (y,) = builder.operation("ADD", [x, x], shape)
    model = builder.build(builder.operation("RELU", [y], shape))
    devices = [Elsewhere("adder", ["ADD"]), Elsewhere("relu", ["RELU"], look)]
    with (
        penstock.compile(model, devices=devices, cache=False) as compiled,
        compiled.burst() as burst,
    ):
        value = f32([1, -1, 2, 0])
        for _ in range(2):
            np.testing.assert_array_equal(burst.run(value)[0], np.maximum(value + value, 0))
    assert seen == [True, True]
