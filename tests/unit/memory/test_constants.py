"""Constants that lie in pools: where they are, they stay; operations on what a device does not map
are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import GeneralFailure, InvalidOperand, PlacementError
from penstock.export import tflite
from penstock.hal import SUPPORTED, Capabilities, PrepareConfig, refuse_unmapped
from penstock.ir import ConstantPool, DType, Lifetime, Model, ModelBuilder
from penstock.memory import HardwareBuffer, MemoryPool, pool_of
from penstock.testing.doubles import InterceptingDevice
from penstock.testing.loopback import isolated_device
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
def test_constant_outside_the_pool_is_refused(offset: int, shape: tuple[int, ...]) -> None:
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
    """The reference device, which maps fewer *kinds* or speaks an older *level*, and says yes all
    the same.
    """

    def __init__(self, kinds: tuple[str, ...], level: int = 8) -> None:
        super().__init__(ReferenceDevice(), "without")
        self._claims, self._level = Capabilities(memory_kinds=kinds), level

    @property
    def capabilities(self) -> Capabilities:
        return self._claims

    @property
    def feature_level(self) -> int:
        return self._level


ALONE = penstock.Policy(allow_fallback=False)


@KINDS
def test_no_operation_is_planned_for_a_device_that_does_not_map_its_constants(
    make: Callable[[Path], MemoryPool], tmp_path: Path
) -> None:
    with make(tmp_path) as pool:
        model, kind = in_pool(pool), pool.memory.name
        others = tuple({"ashmem", "mmap_fd", "hardware_buffer_blob"} - {kind})
        with pytest.raises(PlacementError, match=f"constant 'w' lies in {kind} memory"):
            penstock.compile(model, devices=[Without(others)], cache=None, policy=ALONE)
        with penstock.compile(model, devices=[Without((kind,))], cache=None) as compiled:
            assert compiled.plan.operations[0].device == "without"


def test_below_level_3_no_constant_lies_in_a_hardware_buffer() -> None:
    device = Without(("ashmem", "mmap_fd", "hardware_buffer_blob"), 2)
    with (
        MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(256)) as pool,
        pytest.raises(PlacementError, match="lies in hardware_buffer_blob memory"),
    ):
        penstock.compile(in_pool(pool), devices=[device], cache=None, policy=ALONE)


def test_operations_beside_one_whose_constant_is_out_of_reach_run_on_the_device() -> None:
    with MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(256)) as pool:
        pool.view(np.float32, (8, 8))[:] = WEIGHTS
        b = ModelBuilder()
        (x,) = b.operation("RELU", [b.input(F32, (8, 8), "x")], [(F32, (8, 8))])
        w = b.located(pool.constants(), 0, F32, (8, 8), "w")
        (y,) = b.operation("ADD", [x, w], [(F32, (8, 8))])
        model = b.build(b.operation("MUL", [y, y], [(F32, (8, 8))]))
        device = Without(("ashmem", "mmap_fd"))
        require = {"RELU": ["without"], "MUL": ["without"]}
        with penstock.compile(
            model,
            devices=[device, "reference"],
            cache=None,
            policy=penstock.Policy(require=require),
        ) as compiled:
            assert [o.device for o in compiled.plan.operations] == [
                "without",
                "reference",
                "without",
            ]
            reason = compiled.plan.operations[1].reasons["without"]
            assert reason == (
                "constant 'w' lies in hardware_buffer_blob memory, which this device does not map"
            )
            outputs = compiled(-WEIGHTS)
            assert np.array_equal(outputs[0], WEIGHTS**2)
            assert not any(step.failures for step in compiled.receipt.steps)


def in_unknown_memory(kind: str) -> Model:
    b = ModelBuilder()
    x = b.input(F32, (8, 8), "x")
    there = ConstantPool(memoryview(WEIGHTS.tobytes()), None, kind)
    w = b.located(there, 0, F32, (8, 8), "w")
    return b.build(b.operation("ADD", [x, w], [(F32, (8, 8))]))


@pytest.mark.parametrize("kind", ["hardware_buffer", "bogus"])
def test_drivers_refuse_operations_on_constants_in_images_and_in_unknown_memory(kind: str) -> None:
    model = in_unknown_memory(kind)
    (answer,) = ReferenceDevice().supported_operations(model)
    assert not answer.supported
    assert f"'w' lies in {kind} memory" in answer.reason
    with pytest.raises(GeneralFailure, match=rf"operation 0 \(ADD\): constant 'w' lies in {kind}"):
        ReferenceDevice().prepare_model(model, PrepareConfig())


def test_a_constant_that_is_an_output_alone_refuses_no_operation() -> None:
    b = ModelBuilder()
    x = b.input(F32, (8, 8), "x")
    there = ConstantPool(memoryview(WEIGHTS.tobytes()), None, "bogus")
    w = b.located(there, 0, F32, (8, 8), "w")
    model = b.build([*b.operation("RELU", [x], [(F32, (8, 8))]), w])
    (answer,) = ReferenceDevice().supported_operations(model)
    assert answer.supported
    with pytest.raises(GeneralFailure, match="constant 'w' lies in bogus memory"):
        ReferenceDevice().prepare_model(model, PrepareConfig())
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        assert np.array_equal(compiled(WEIGHTS)[1], WEIGHTS)


def test_an_operation_is_refused_for_a_constant_deep_in_its_subgraphs() -> None:
    b = ModelBuilder()
    there = ConstantPool(memoryview(WEIGHTS.tobytes()), None, "bogus")
    leaf = b.subgraph("leaf")
    x = leaf.input(F32, (8, 8), "x")
    w = leaf.located(there, 0, F32, (8, 8), "w")
    target = b.add_subgraph(leaf.finish(leaf.operation("ADD", [x, w], [(F32, (8, 8))])))
    for _ in range(10):
        outer = b.subgraph("outer")
        chosen, x = outer.input(DType.BOOL, (), "chosen"), outer.input(F32, (8, 8), "x")
        both = {"then_subgraph_index": target, "else_subgraph_index": target}
        given = [chosen, chosen, x] if target > 1 else [chosen, x]
        target = b.add_subgraph(outer.finish(outer.operation("IF", given, [(F32, (8, 8))], both)))
    chosen, x = b.input(DType.BOOL, (), "chosen"), b.input(F32, (8, 8), "x")
    (near,) = b.operation("RELU", [x], [(F32, (8, 8))])
    both = {"then_subgraph_index": target, "else_subgraph_index": target}
    model = b.build(b.operation("IF", [chosen, chosen, near], [(F32, (8, 8))], both))
    answers = refuse_unmapped(model, [SUPPORTED, SUPPORTED], ("ashmem",))
    assert [a.supported for a in answers] == [True, False]
    assert "'w' lies in bogus memory" in answers[1].reason


@pytest.mark.parametrize("kind", ["hardware_buffer", "bogus"])
def test_an_isolated_device_refuses_them_when_it_is_asked(kind: str) -> None:
    with isolated_device("reference", "penstock.drivers.reference:create") as device:
        (answer,) = device.supported_operations(in_unknown_memory(kind))
    assert f"'w' lies in {kind} memory" in answer.reason


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
