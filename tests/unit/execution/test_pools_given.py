"""Pools and hardware buffers where arrays are: inputs and `out=`, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import ClosedError, GeneralFailure, InputError, InvalidArgument
from penstock.hal import Capabilities
from penstock.ir import DType, Model, ModelBuilder
from penstock.memory import PROT_READ, HardwareBuffer, HardwareBufferFormat, MemoryPool
from penstock.memory.hardware import map_image
from penstock.testing import assert_no_copies
from penstock.testing.doubles import InterceptingDevice

F32 = DType.FLOAT32
ALONE = penstock.Policy(allow_fallback=False)
VALUE = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
Make = Callable[[Path, int], Any]


def anonymous(place: Path, nbytes: int) -> MemoryPool:
    return MemoryPool.anonymous(nbytes)


def in_file(place: Path, nbytes: int) -> MemoryPool:
    place.write_bytes(bytes(nbytes + 100))
    return MemoryPool.from_file(place, 100, nbytes)


def blob(place: Path, nbytes: int) -> HardwareBuffer:
    return HardwareBuffer.allocate(nbytes)


def pool_of_blob(place: Path, nbytes: int) -> MemoryPool:
    return MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(nbytes))


KINDS = pytest.mark.parametrize("make", [anonymous, in_file, blob, pool_of_blob])


class Changed(InterceptingDevice):
    """The reference device with other claims."""

    def __init__(self, level: int = 8, **claims: Any) -> None:
        super().__init__(ReferenceDevice(), "changed")
        self._level, self._claims = level, Capabilities(**claims)

    @property
    def feature_level(self) -> int:
        return self._level

    @property
    def capabilities(self) -> Capabilities:
        return self._claims


def content(memory: Any) -> np.ndarray[Any, Any]:
    """The first six floats of a pool or a blob."""
    if isinstance(memory, HardwareBuffer):
        with MemoryPool.from_hardware_buffer(memory) as pool:
            return pool.view(np.float32, (2, 3))
    return memory.view(np.float32, (2, 3))  # type: ignore[no-any-return]


def model(shape: tuple[int | None, ...] = (2, 3)) -> Model:
    """relu(x + x)."""
    b = ModelBuilder()
    x = b.input(F32, shape, "x")
    (y,) = b.operation("ADD", [x, x], [(F32, shape)])
    return b.build(b.operation("RELU", [y], [(F32, shape)]))


@pytest.fixture(params=["reference", "sample"])
def compiled(request: pytest.FixtureRequest) -> Iterator[penstock.CompiledModel]:
    with penstock.compile(model(), devices=[request.param], cache=None) as made:
        yield made


@KINDS
def test_pools_are_not_copied(compiled: penstock.CompiledModel, make: Make, tmp_path: Path) -> None:
    with make(tmp_path / "x", 24) as x, make(tmp_path / "y", 24) as y:
        content(x)[:] = VALUE
        with assert_no_copies():
            outputs = compiled.run([x], out=[y])
        assert np.array_equal(content(y), np.maximum(VALUE * 2, 0))
        assert isinstance(outputs[0], np.ndarray)
        assert np.shares_memory(outputs[0], content(y))
        assert np.array_equal(outputs[0], content(y))


@KINDS
def test_a_pool_may_be_longer_than_the_value(
    compiled: penstock.CompiledModel, make: Make, tmp_path: Path
) -> None:
    with make(tmp_path / "x", 100) as x, make(tmp_path / "y", 64) as y:
        content(x)[:] = VALUE
        compiled.run({"x": x}, out=[y])
        assert np.array_equal(content(y), np.maximum(VALUE * 2, 0))


@KINDS
def test_views_of_pools_are_not_copied(
    compiled: penstock.CompiledModel, make: Make, tmp_path: Path
) -> None:
    with make(tmp_path / "x", 24) as x, make(tmp_path / "y", 24) as y:
        content(x)[:] = VALUE
        with assert_no_copies():
            compiled.run([content(x)], out=[content(y)])
        assert np.array_equal(content(y), np.maximum(VALUE * 2, 0))


@KINDS
def test_a_driver_in_another_process_reads_memory_where_it_lies(make: Make, tmp_path: Path) -> None:
    with (
        penstock.compile(
            model(), devices=["reference"], cache=None, isolate=True, policy=ALONE
        ) as compiled,
        make(tmp_path / "x", 24) as x,
        make(tmp_path / "y", 24) as y,
    ):
        content(x)[:] = VALUE
        # What somebody could shorten is not mapped there.
        told = [("host", 24), ("reference", 24)] if make is in_file else []
        for _ in range(2):
            copies = compiled.run([x], out=[y]).receipt.copies
            assert [(c.source, c.nbytes) for c in copies] == told
        assert np.array_equal(content(y), np.maximum(VALUE * 2, 0))


def test_a_pool_that_is_too_small_is_refused(compiled: penstock.CompiledModel) -> None:
    with MemoryPool.anonymous(20) as small, MemoryPool.anonymous(24) as enough:
        with pytest.raises(InputError, match="input 'x' takes 24 bytes"):
            compiled.run([small])
        with pytest.raises(InputError, match="takes 24 bytes"):
            compiled.run([enough], out=[small])


def test_a_read_only_pool_is_an_input_only(
    compiled: penstock.CompiledModel, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(VALUE.tobytes())
    with MemoryPool.from_file(tmp_path / "x", prot=PROT_READ) as pool:
        with MemoryPool.anonymous(24) as y, assert_no_copies():
            compiled.run([pool], out=[y])
            outputs = compiled.run([pool.view(np.float32, (2, 3))], out=[y])
        assert np.array_equal(outputs[0], np.maximum(VALUE * 2, 0))
        with pytest.raises(InputError, match="read-only"):
            compiled.run([VALUE], out=[pool])


def test_one_pool_is_not_read_and_written(compiled: penstock.CompiledModel) -> None:
    with MemoryPool.anonymous(24) as pool, HardwareBuffer.allocate(24) as buffer:
        with pytest.raises(InputError, match="as an input and as an output"):
            compiled.run([pool], out=[pool])
        with pytest.raises(InputError, match="shares memory with an input"):
            compiled.run([pool], out=[pool.view(np.float32, (2, 3))])
        with pytest.raises(InputError, match="shares memory with an input"):
            compiled.run([pool.view(np.float32, (2, 3))], out=[pool])
        with pytest.raises(InputError, match="shares memory with an input"):
            compiled.run([buffer], out=[MemoryPool.from_hardware_buffer(buffer)])


def test_a_closed_pool_is_refused(compiled: penstock.CompiledModel) -> None:
    pool, buffer = MemoryPool.anonymous(24), HardwareBuffer.allocate(24)
    pool.close()
    buffer.close()
    for memory in (pool, buffer):
        with pytest.raises(ClosedError):
            compiled.run([memory])


def test_an_unknown_shape_needs_a_view() -> None:
    with (
        penstock.compile(model((None, 3)), devices=["reference"], cache=None) as compiled,
        MemoryPool.anonymous(24) as pool,
    ):
        with pytest.raises(InputError, match=r"pool\.view\(dtype, shape\)"):
            compiled.run([pool])
        outputs = compiled.run([pool.view(np.float32, (2, 3))], out=[MemoryPool.anonymous(24)])
        assert outputs[0].shape == (2, 3)


def test_an_output_of_unknown_shape_is_given_with_its_shape() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (zero,) = b.operation(
        "WHERE",
        [
            b.operation(
                "GREATER", [x, b.constant(np.zeros(1, np.float32))], [(DType.BOOL, (2, 3))]
            )[0]
        ],
        [(DType.INT64, (None, 2))],
    )
    with (
        penstock.compile(b.build([zero]), devices=["reference"], cache=None) as compiled,
        MemoryPool.anonymous(256) as pool,
    ):
        outputs = compiled.run([VALUE], out=[pool])
        assert np.array_equal(outputs[0], np.argwhere(VALUE > 0))
        assert np.shares_memory(outputs[0], pool.view("u1", 256))


@KINDS
def test_a_kind_that_the_device_does_not_map_fails_the_run(make: Make, tmp_path: Path) -> None:
    with (
        penstock.compile(
            model(), devices=[Changed(memory_kinds=())], cache=None, policy=ALONE
        ) as compiled,
        make(tmp_path / "x", 24) as x,
    ):
        content(x)[:] = VALUE
        with pytest.raises(GeneralFailure, match=r"maps no (ashmem|mmap_fd|hardware_buffer_blob)"):
            compiled.run([x])
        with pytest.raises(GeneralFailure, match="maps no"):
            compiled.run([VALUE], out=[x])
        # A view is an array like any other.
        assert np.array_equal(compiled(content(x))[0], np.maximum(VALUE * 2, 0))


def test_below_level_3_no_hardware_buffer_is_passed() -> None:
    kinds = ("ashmem", "mmap_fd", "hardware_buffer_blob")
    with HardwareBuffer.allocate(24) as buffer:
        for level, taken in ((2, False), (3, True)):
            device = Changed(level, memory_kinds=kinds)
            with penstock.compile(model(), devices=[device], cache=None, policy=ALONE) as compiled:
                if taken:
                    compiled.run([buffer])
                    continue
                with pytest.raises(GeneralFailure, match="maps no hardware_buffer_blob"):
                    compiled.run([buffer])


def test_a_device_that_takes_images_gets_them_as_they_are() -> None:
    kind = HardwareBufferFormat.D32_FLOAT
    with (
        penstock.compile(model(), devices=["lab"], cache=None, policy=ALONE) as compiled,
        HardwareBuffer.allocate(3, 2, format=kind) as x,
        HardwareBuffer.allocate(3, 2, format=kind) as y,
        HardwareBuffer.allocate(3, 3, format=kind) as other,
        HardwareBuffer.allocate(3, 2, format=HardwareBufferFormat.R8_UNORM) as bytes_,
    ):
        with map_image(x.memory) as mapping:
            mapping.array[...] = VALUE.reshape(mapping.array.shape)
        with assert_no_copies():
            outputs = compiled.run([x], out=[y])
        assert id(outputs[0]) == id(y)
        with map_image(y.memory) as mapping:
            assert np.array_equal(mapping.array.reshape(2, 3), np.maximum(VALUE * 2, 0))
        for wrong in (other, bytes_):
            with pytest.raises(InvalidArgument, match="an image of"):
                compiled.run([wrong])


def test_an_image_is_given_as_it_is_or_fails(compiled: penstock.CompiledModel) -> None:
    with HardwareBuffer.allocate(2, 3, format=HardwareBufferFormat.R8_UNORM) as image:
        with pytest.raises(GeneralFailure, match="maps no hardware_buffer memory"):
            compiled.run([image])
        with pytest.raises(GeneralFailure, match="maps no hardware_buffer memory"):
            compiled.run([VALUE], out=[image])
