"""Runs whose inputs and outputs are no arrays of the host: given to the device as they are, or
copied, and it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import GeneralFailure, InputError
from penstock.hal import Memory, RequestArgument, TokenArgument
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.memory import MemoryPool
from penstock.memory.bound import BoundMemory, BoundPool, Kind, StepUse
from penstock.testing.doubles import FaultyDevice

F32 = DType.FLOAT32


class Remembered(BoundMemory):
    """A value that no device takes: it is copied."""

    def __init__(self, owner: Foreign) -> None:
        super().__init__(owner, "foreign", None if owner.value is None else owner.value.shape)
        self.foreign = owner

    def read(self) -> NDArray:
        return self.foreign.array.copy()

    def write(self, value: NDArray) -> None:
        self.foreign.value = value.copy()


class Foreign:
    """Memory of the caller in a place of its own."""

    def __init__(self, value: NDArray | None = None) -> None:
        self.value = value

    @property
    def array(self) -> NDArray:
        assert self.value is not None
        return self.value

    def bind_argument(self, user: object, kind: Kind, index: int, operand: Operand) -> BoundMemory:
        return Remembered(self)


class Pool:
    """A pool that is given by its kind, unmapped."""

    def __init__(self, shape: tuple[int, ...], value: NDArray | None = None) -> None:
        self.pool, self.shape = MemoryPool.anonymous(int(np.prod(shape)) * 4), shape
        if value is not None:
            self.array[...] = value

    @property
    def array(self) -> NDArray:
        return self.pool.view(np.float32, self.shape)

    def bind_argument(self, user: object, kind: Kind, index: int, operand: Operand) -> BoundMemory:
        return BoundPool(self, self.pool.memory, F32, self.shape)


def model() -> Model:
    """y = x + x, z = relu(y), and x itself."""
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (y,) = b.operation("ADD", [x, x], [(F32, (2, 3))])
    (z,) = b.operation("RELU", [y], [(F32, (2, 3))])
    return b.build([y, z, x])


VALUE = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@pytest.fixture
def compiled() -> Iterator[penstock.CompiledModel]:
    with penstock.compile(model(), devices=["reference"], cache=None) as made:
        yield made


def names(run: Any) -> list[tuple[str, str]]:
    return [(c.source, c.destination) for c in run.receipt.copies]


def test_memory_that_the_device_maps_is_not_copied(compiled: penstock.CompiledModel) -> None:
    given, y, z = Pool((2, 3), VALUE), Pool((2, 3)), Pool((2, 3))
    outputs = compiled.run([given], out=[y, z, None])
    assert [*outputs][:2] == [y, z]
    assert np.array_equal(y.array, VALUE * 2)
    assert np.array_equal(z.array, np.maximum(VALUE * 2, 0))
    # The input is an output, too, which no step computes.
    assert np.array_equal(outputs[2], VALUE)
    assert names(outputs) == [("ashmem pool", "host")]


def test_memory_that_no_device_maps_is_copied_both_ways(compiled: penstock.CompiledModel) -> None:
    given, y, x = Foreign(VALUE), Foreign(), Foreign()
    outputs = compiled.run([given], out=[y, None, x])
    assert list(outputs)[0::2] == [y, x]
    assert np.array_equal(y.array, VALUE * 2)
    assert np.array_equal(outputs[1], np.maximum(VALUE * 2, 0))
    assert np.array_equal(x.array, VALUE)
    assert names(outputs) == [("foreign", "host"), ("host", "foreign"), ("host", "foreign")]
    assert all(c.nbytes == VALUE.nbytes for c in outputs.receipt.copies)


def test_a_device_that_takes_pools_only_gets_them_as_they_are() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    with penstock.compile(
        b.build(b.operation("RELU", [x], [(F32, (2, 3))])), devices=["sample"], cache=None
    ) as compiled:
        given, y = Pool((2, 3), VALUE), Pool((2, 3))
        outputs = compiled.run([given], out=[y])
        assert not outputs.receipt.copies
        assert np.array_equal(y.array, np.maximum(VALUE, 0))
        plain = compiled.run([given])
        assert names(plain) == [("sample", "host")]


def test_a_step_that_falls_back_copies_both_ways() -> None:
    class Tokens(Foreign):
        def bind_argument(
            self, user: object, kind: Kind, index: int, operand: Operand
        ) -> BoundMemory:
            return Held(self)

    class Held(Remembered):
        losses = 0

        def argument(self, use: StepUse, pools: list[Any]) -> RequestArgument | None:
            return TokenArgument(1) if use.device.name == "first" else None

        def lost(self) -> None:
            Held.losses += 1

    first = FaultyDevice(ReferenceDevice(), {"execute": "always"}, name="first")
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    with penstock.compile(
        b.build(b.operation("RELU", [x], [(F32, (2, 3))])), devices=[first], cache=None
    ) as compiled:
        given, y = Tokens(VALUE), Tokens()
        outputs = compiled.run([given], out=[y])
    assert Held.losses == 1
    assert outputs.receipt.steps[0].fallback_from == "first"
    assert np.array_equal(y.array, np.maximum(VALUE, 0))
    assert names(outputs) == [("foreign", "host"), ("host", "foreign")]


def test_output_memory_is_used_once(compiled: penstock.CompiledModel) -> None:
    foreign = Foreign(VALUE)
    with pytest.raises(InputError, match="two outputs"):
        compiled.run([VALUE], out=[foreign, foreign, None])
    with pytest.raises(InputError, match="an input and as an output"):
        compiled.run([foreign], out=[foreign, None, None])
    assert np.array_equal(foreign.array, VALUE)


def test_a_pool_of_a_kind_that_no_device_maps_fails_the_run(
    compiled: penstock.CompiledModel,
) -> None:
    class Strange(Pool):
        def bind_argument(
            self, user: object, kind: Kind, index: int, operand: Operand
        ) -> BoundMemory:
            return BoundPool(self, Memory("hardware_buffer", None, 24), F32, (2, 3))

    with pytest.raises(GeneralFailure, match="maps no hardware_buffer"):
        compiled.run([Strange((2, 3))])
