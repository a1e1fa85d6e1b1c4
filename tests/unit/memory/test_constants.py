"""Constants that lie in pools: where they are, they stay; a kind that a device does not map it does not prepare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import GeneralFailure, InvalidOperand, PenstockError
from penstock.export import tflite
from penstock.hal import Capabilities, PrepareConfig
from penstock.ir import ConstantPool, DType, Lifetime, Model, ModelBuilder
from penstock.memory import HardwareBuffer, MemoryPool, pool_of
from penstock.testing.doubles import InterceptingDevice
from penstock.testing.resources import Resources

F32 = DType.FLOAT32
WEIGHTS = np.arange(64, dtype=np.float32).reshape(8, 8)


def in_pool(pool: MemoryPool, offset: int = 0) -> Model:
    """x + the 8 x 8 floats at *offset* of *pool*."""
    b = ModelBuilder()
    x = b.input(F32, (8, 8), "x")
    w = b.located(pool.constants(), offset, F32, (8, 8), "w")
    return b.build(b.operation("ADD", [x, w], [(F32, (8, 8))]))


def anonymous(place: Path) -> MemoryPool:
    return MemoryPool.anonymous(512)


def in_file(place: Path) -> MemoryPool:
    (place / "weights").write_bytes(bytes(600))
    return MemoryPool.from_file(place / "weights", 88)


def blob(place: Path) -> MemoryPool:
    return MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(512))


KINDS = pytest.mark.parametrize("make", [anonymous, in_file, blob])


@KINDS
def test_the_bytes_stay_in_the_pool(make: Callable[[Path], MemoryPool], tmp_path: Path) -> None:
    with make(tmp_path) as pool:
        pool.view(np.float32, (8, 8), 256)[:] = WEIGHTS
        model = in_pool(pool, 256)
        (w,) = [o for o in model.operands if o.is_constant]
        assert w.lifetime is Lifetime.CONSTANT_POOL
        assert pool_of(model.constant(w)) == (pool.memory, 256)
        assert model.pools[-1].kind == pool.memory.name
        assert not model.constant(w).flags.writeable
        with penstock.compile(model, devices=["reference"], cache=None) as compiled:
            x = np.ones((8, 8), np.float32)
            assert np.array_equal(compiled(x)[0], WEIGHTS + 1)


def test_up_to_128_bytes_are_copied_into_the_model() -> None:
    with MemoryPool.anonymous(512) as pool:
        pool.view(np.float32, 32)[:] = 3
        b = ModelBuilder()
        x = b.input(F32, (32,), "x")
        w = b.located(pool.constants(), 0, F32, (32,), "w")
        model = b.build(b.operation("ADD", [x, w], [(F32, (32,))]))
        pool.view(np.float32, 32)[:] = 4
        (operand,) = [o for o in model.operands if o.is_constant]
        assert operand.lifetime is Lifetime.CONSTANT_COPY
        assert model.constant(operand).tolist() == [3] * 32


def test_a_pool_is_added_once_and_beside_the_models_own() -> None:
    with MemoryPool.anonymous(512) as pool:
        b = ModelBuilder()
        x, there = b.input(F32, (8, 8), "x"), pool.constants()
        own = b.constant(WEIGHTS, "own")
        ends = [b.located(there, at, F32, (8, 8), f"w{at}") for at in (0, 256)]
        for other in (own, *ends):
            (x,) = b.operation("ADD", [x, other], [(F32, (8, 8))])
        model = b.build([x])
        assert len(model.pools) == 2
        pool.view(np.float32, 128)[:] = 2
        with penstock.compile(model, devices=["reference"], cache=None) as compiled:
            assert np.array_equal(compiled(WEIGHTS)[0], WEIGHTS * 2 + 4)


def test_a_model_in_a_pool_is_equal_to_one_that_holds_its_constants() -> None:
    with MemoryPool.anonymous(256) as pool:
        pool.view(np.float32, (8, 8))[:] = WEIGHTS
        b = ModelBuilder()
        x = b.input(F32, (8, 8), "x")
        same = b.build(b.operation("ADD", [x, b.constant(WEIGHTS, "w")], [(F32, (8, 8))]))
        assert in_pool(pool) == same
        assert tflite.write(in_pool(pool)) == tflite.write(same)


@pytest.mark.parametrize(
    ("offset", "shape"), [(-4, (8, 8)), (260, (8, 8)), (512, (1,)), (0, (2**61,))]
)
def test_what_is_not_in_the_pool_is_refused(offset: int, shape: tuple[int, ...]) -> None:
    with MemoryPool.anonymous(512) as pool, pytest.raises(InvalidOperand, match="not in a pool"):
        ModelBuilder().located(pool.constants(), offset, F32, shape)


def test_strings_do_not_lie_in_pools() -> None:
    with MemoryPool.anonymous(512) as pool, pytest.raises(InvalidOperand):
        ModelBuilder().located(pool.constants(), 0, DType.STRING, (1,))


def test_the_model_keeps_the_pools_memory() -> None:
    with Resources.unchanged("a model in a pool"):
        pool = MemoryPool.anonymous(256)
        pool.view(np.float32, (8, 8))[:] = WEIGHTS
        model = in_pool(pool)
        pool.close()
        (w,) = [o for o in model.operands if o.is_constant]
        assert np.array_equal(model.constant(w), WEIGHTS)
        del pool, model


class Without(InterceptingDevice):
    """The reference device, which maps fewer *kinds* or speaks an older *level*; it says so when it prepares."""

    def __init__(self, kinds: tuple[str, ...], level: int = 8) -> None:
        super().__init__(ReferenceDevice(), "without")
        self._claims, self._level = Capabilities(memory_kinds=kinds), level

    @property
    def capabilities(self) -> Capabilities:
        return self._claims

    @property
    def feature_level(self) -> int:
        return self._level


@KINDS
def test_a_kind_that_the_device_does_not_map_fails_the_preparation(
    make: Callable[[Path], MemoryPool], tmp_path: Path
) -> None:
    with make(tmp_path) as pool:
        model, kind = in_pool(pool), pool.memory.name
        others = tuple({"ashmem", "mmap_fd", "hardware_buffer_blob"} - {kind})
        alone = penstock.Policy(allow_fallback=False)
        with pytest.raises(PenstockError, match=f"lies in {kind} memory"):
            penstock.compile(model, devices=[Without(others)], cache=None, policy=alone)
        with penstock.compile(model, devices=[Without((kind,))], cache=None) as compiled:
            assert compiled.plan.operations[0].device == "without"


def test_below_level_3_no_constant_lies_in_a_hardware_buffer() -> None:
    device = Without(("ashmem", "mmap_fd", "hardware_buffer_blob"), 2)
    alone = penstock.Policy(allow_fallback=False)
    with (
        MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(256)) as pool,
        pytest.raises(PenstockError, match="lies in hardware_buffer_blob memory"),
    ):
        penstock.compile(in_pool(pool), devices=[device], cache=None, policy=alone)


def test_drivers_refuse_constants_in_images_and_in_unknown_memory() -> None:
    for kind in ("hardware_buffer", "bogus"):
        b = ModelBuilder()
        x = b.input(F32, (8, 8), "x")
        there = ConstantPool(memoryview(WEIGHTS.tobytes()), None, kind)
        w = b.located(there, 0, F32, (8, 8), "w")
        model = b.build(b.operation("ADD", [x, w], [(F32, (8, 8))]))
        with pytest.raises(GeneralFailure, match=f"'w' lies in {kind} memory"):
            ReferenceDevice().prepare_model(model, PrepareConfig())


@pytest.mark.parametrize("mapped", [False, True])
def test_a_loaded_models_constants_lie_in_its_file(mapped: bool, tmp_path: Path) -> None:
    with MemoryPool.anonymous(256) as pool:
        (tmp_path / "m.tflite").write_bytes(tflite.write(in_pool(pool)))
    model = penstock.load(tmp_path / "m.tflite", map=mapped)
    (found,) = model.pools
    assert found.kind == ("mmap_fd" if mapped else "ashmem")
    (w,) = [o for o in model.operands if o.is_constant]
    whole: Any = np.frombuffer(found.view, np.uint8)
    assert np.may_share_memory(model.constant(w), whole)
