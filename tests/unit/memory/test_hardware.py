from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import ClosedError, GeneralFailure, InputError
from penstock.hal import Memory
from penstock.memory import (
    HardwareBuffer,
    HardwareBufferDescription as Description,
    HardwareBufferFormat as Format,
    HardwareBufferHandle,
    HardwareBufferUsage as Usage,
    MemoryPool,
    live_mappings,
    map_memory,
)
from penstock.memory.hardware import BITS_PER_PIXEL
from penstock.testing.resources import Resources


def test_a_blob_is_bytes() -> None:
    with HardwareBuffer.allocate(1000) as buffer:
        assert buffer.description == Description(
            Format.BLOB, 1000, 1, 1, 1000, Usage.CPU_READ_OFTEN | Usage.CPU_WRITE_OFTEN
        )
        assert (buffer.memory.name, buffer.nbytes) == ("hardware_buffer_blob", 1000)
        assert buffer.backing in {"dma_heap", "udmabuf", "memfd"}
        with MemoryPool.from_hardware_buffer(buffer) as pool, map_memory(buffer.memory) as mapping:
            pool.view("u1", 1000)[:] = np.arange(1000) % 256
            assert mapping.array.tolist() == [i % 256 for i in range(1000)]
            assert pool.memory is buffer.memory


def test_pool_outlives_its_hardware_buffer() -> None:
    with Resources.unchanged("a hardware buffer"):
        buffer = HardwareBuffer.allocate(64)
        pool = MemoryPool.from_hardware_buffer(buffer)
        buffer.close()
        view = pool.view(np.float32, 16)
        pool.close()
        view[:] = 2
        assert view.sum() == 32
        del pool, view, buffer


@pytest.mark.parametrize(
    ("kind", "width", "stride", "nbytes"),
    [
        (Format.R8G8B8A8_UNORM, 100, 112, 112 * 4 * 30),
        (Format.R8G8B8_UNORM, 100, 128, 128 * 3 * 30),
        (Format.R8_UNORM, 100, 128, 128 * 30),
        (Format.Y8CB8CR8_420, 128, 128, 128 * 30 * 3 // 2),
        (Format.R16G16B16A16_FLOAT, 7, 8, 8 * 8 * 30),
    ],
)
def test_an_image_has_rows_of_whole_cache_lines(
    kind: Format, width: int, stride: int, nbytes: int
) -> None:
    with HardwareBuffer.allocate(width, 30, format=kind) as buffer:
        assert buffer.description.stride == stride
        assert (buffer.memory.name, buffer.nbytes) == ("hardware_buffer", nbytes)


def test_an_image_is_no_pool_and_is_never_mapped() -> None:
    with HardwareBuffer.allocate(8, 8, format=Format.R8G8B8A8_UNORM, layers=2) as buffer:
        with pytest.raises(InputError, match="only a BLOB"):
            MemoryPool.from_hardware_buffer(buffer)
        with pytest.raises(GeneralFailure, match="never mapped"):
            map_memory(buffer.memory)


def test_lock_maps_an_image_for_its_block() -> None:
    before = live_mappings()
    with HardwareBuffer.allocate(8, 8, format=Format.R8G8B8A8_UNORM) as buffer:
        with buffer.lock(write=True) as pixels:
            assert pixels.nbytes == buffer.nbytes
            pixels[:] = 9
        del pixels
        with buffer.lock() as pixels:
            assert pixels.tolist() == [9] * buffer.nbytes
            assert not pixels.flags.writeable
        del pixels
    assert live_mappings() == before


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"width": 0}, "of 1 or more"),
        ({"width": -1}, "of 1 or more"),
        ({"width": 8, "height": 2}, "one row"),
        ({"width": 8, "layers": 2}, "one row"),
        ({"width": 8, "height": 0, "format": Format.R8_UNORM}, "of 1 or more"),
        ({"width": 8, "format": 0x7777}, "0x7777 is not known"),
        ({"width": 2**41}, "possible"),
        ({"width": 2**30, "height": 2**30, "format": Format.R8_UNORM}, "possible"),
        ({"width": 8, "usage": -1}, "of 1 or more"),
        ({"width": "8"}, "whole numbers, not '8'"),
        ({"width": 8, "format": "blob"}, "whole numbers, not 'blob'"),
        ({"width": 8, "height": 2.5, "format": Format.R8_UNORM}, "whole numbers, not 2.5"),
    ],
)
def test_hardware_buffer_of_wrong_options_is_refused(
    options: dict[str, Any], complaint: str
) -> None:
    with Resources.unchanged("a refused buffer"), pytest.raises(InputError, match=complaint):
        HardwareBuffer.allocate(**options)


def test_a_wrapped_descriptor_is_duplicated() -> None:
    with HardwareBuffer.allocate(64) as made:
        fd = os.dup(made.memory.handle.fd)
        with HardwareBuffer.wrap(fd, made.description) as wrapped:
            os.close(fd)
            with made.lock(write=True) as content:
                content[:] = 5
            with wrapped.lock() as seen:
                assert seen.tolist() == [5] * 64
            assert wrapped.backing == "wrapped"
            assert wrapped.memory.handle.fd != made.memory.handle.fd
            del content, seen


def test_a_vendors_format_has_the_size_of_its_buffer() -> None:
    with HardwareBuffer.allocate(5000) as made:
        fd = made.memory.handle.fd
        with HardwareBuffer.wrap(fd, Description(0x12345, 10, 10)) as wrapped:
            assert wrapped.memory.name == "hardware_buffer"
            assert wrapped.nbytes >= 5000


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        (Description(Format.BLOB, 10**6), "needs 1000000"),
        (Description(Format.R8G8B8A8_UNORM, 1000, 1000), "needs 4000000"),
        (Description(Format.R8G8B8A8_UNORM, 10, 10, stride=9), "stride below"),
        (Description(Format.BLOB, 0), "of 1 or more"),
        (Description(Format.BLOB, 4, 4), "one row"),
        (Description(Format.BLOB, None), "whole numbers, not None"),  # type: ignore[arg-type]
        ("blob", "HardwareBufferDescription is needed, not str"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(description: Any, complaint: str) -> None:
    with HardwareBuffer.allocate(64) as made:
        fd = made.memory.handle.fd
        with Resources.unchanged("a refused wrap"), pytest.raises(InputError, match=complaint):
            HardwareBuffer.wrap(fd, description)


@pytest.mark.parametrize("fd", [-1, 2**40, "3", None, True, 1.0])
def test_wrapping_a_bad_descriptor_is_refused(fd: Any) -> None:
    with pytest.raises(InputError):
        HardwareBuffer.wrap(fd, Description(Format.BLOB, 4))


def test_a_pipe_is_no_buffer() -> None:
    reading, writing = os.pipe()
    try:
        with Resources.unchanged("a refused pipe"), pytest.raises(InputError, match="has 0 bytes"):
            HardwareBuffer.wrap(reading, Description(Format.BLOB, 4))
    finally:
        os.close(reading)
        os.close(writing)


def test_use_after_close_is_named() -> None:
    buffer = HardwareBuffer.allocate(8)
    buffer.close()
    buffer.close()
    assert repr(buffer) == "HardwareBuffer(closed)"
    for use in (lambda: buffer.memory, lambda: buffer.description, lambda: buffer.nbytes):
        with pytest.raises(ClosedError, match="after close"):
            use()
    with pytest.raises(ClosedError), buffer.lock():
        pass


@pytest.mark.parametrize("write", ["no", None, 1])
def test_a_lock_that_is_neither_for_reading_nor_for_writing_is_named(write: Any) -> None:
    with (
        HardwareBuffer.allocate(8) as buffer,
        pytest.raises(InputError, match="write must be true or false, not"),
        buffer.lock(write=write),
    ):
        pass


@pytest.mark.parametrize("wrong", [None, 3, "buffer"])
def test_a_pool_of_what_is_no_buffer_is_named(wrong: Any) -> None:
    with pytest.raises(InputError, match="made of a HardwareBuffer, not of"):
        MemoryPool.from_hardware_buffer(wrong)


def test_a_buffer_does_not_pickle() -> None:
    with HardwareBuffer.allocate(8) as buffer, pytest.raises(TypeError, match="pickled"):
        pickle.dumps(buffer)


@pytest.mark.parametrize(
    ("handle", "size"),
    [
        (7, 4),
        (None, 4),
        ((3, "description"), 4),
        (HardwareBufferHandle(0, Description(Format.R8_UNORM, 4)), 4),
        (HardwareBufferHandle(0, Description(Format.BLOB, 3)), 4),
    ],
)
def test_a_blob_at_odds_with_its_description_is_not_mapped(handle: Any, size: int) -> None:
    with pytest.raises(GeneralFailure, match="cannot have"):
        map_memory(Memory("hardware_buffer_blob", handle, size))


def test_a_device_maps_only_its_own_kinds() -> None:
    with HardwareBuffer.allocate(8) as buffer:
        with pytest.raises(GeneralFailure, match="maps no hardware_buffer_blob"):
            map_memory(buffer.memory, ("ashmem", "mmap_fd"))
        with map_memory(buffer.memory, ("hardware_buffer_blob",)) as mapping:
            assert mapping.array.nbytes == 8


@given(
    st.sampled_from(sorted(BITS_PER_PIXEL)),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_an_allocated_buffer_holds_its_pixels_and_can_be_wrapped_again(
    kind: int, width: int, height: int, layers: int
) -> None:
    if kind == Format.BLOB:
        height = layers = 1
    with HardwareBuffer.allocate(width, height, format=kind, layers=layers) as buffer:
        d = buffer.description
        assert d.stride >= width
        assert buffer.nbytes * 8 >= width * height * layers * BITS_PER_PIXEL[kind]
        with HardwareBuffer.wrap(buffer.memory.handle.fd, d) as again:
            assert again.description == d
            assert again.nbytes >= buffer.nbytes
