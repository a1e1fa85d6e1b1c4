from __future__ import annotations

import gc
import importlib.util
import mmap
import os
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from ml_dtypes import bfloat16

from penstock.errors import ClosedError, InputError, ResourceExhaustedTransient
from penstock.memory import MemoryPool, live_mappings, map_memory
from penstock.memory.shared import MAX_POOL_BYTES
from penstock.testing.resources import Resources


def test_new_pool_is_zero_and_shared_by_its_views() -> None:
    with MemoryPool.anonymous(48) as pool:
        first = pool.view(np.float32, (3, 4))
        assert first.shape == (3, 4)
        assert not first.any()
        first[:] = 1.5
        assert pool.view("float32", 12).tolist() == [1.5] * 12
        assert pool.view(np.float32, (2,), offset=40).tolist() == [1.5, 1.5]
        assert pool.nbytes == 48


def test_the_memory_of_a_pool_is_its_message_form() -> None:
    with MemoryPool.anonymous(10) as pool:
        memory = pool.memory
        assert (memory.name, memory.size) == ("ashmem", 10)
        assert os.fstat(memory.handle).st_size == 10


@pytest.mark.parametrize(
    ("shape", "offset"),
    [((13,), 0), ((3, 5), 0), ((12,), 1), ((1,), -4), ((-1,), 0), ((2**62, 8), 0)],
)
def test_a_view_that_does_not_fit_is_refused(shape: tuple[int, ...], offset: int) -> None:
    with MemoryPool.anonymous(48) as pool, pytest.raises(InputError, match="does not fit"):
        pool.view(np.float32, shape, offset)


@pytest.mark.parametrize(
    ("shape", "offset"), [((None, 3), 0), ((2.0,), 0), ((2,), "0"), (None, 0), ("23", 0)]
)
def test_view_of_a_wrong_shape_is_refused(shape: Any, offset: Any) -> None:
    with MemoryPool.anonymous(48) as pool, pytest.raises(InputError, match="whole numbers"):
        pool.view(np.float32, shape, offset)


@pytest.mark.parametrize("dtype", ["nope", 3, [1]])
def test_view_of_a_wrong_dtype_is_refused(dtype: Any) -> None:
    with (
        MemoryPool.anonymous(48) as pool,
        pytest.raises(InputError, match="a dtype of NumPy's, not"),
    ):
        pool.view(dtype, 1)


def test_a_view_of_objects_is_refused() -> None:
    with MemoryPool.anonymous(48) as pool, pytest.raises(InputError, match="Python objects"):
        pool.view(object, 1)


@pytest.mark.parametrize("nbytes", [-1, MAX_POOL_BYTES + 1])
def test_sizes_out_of_range_are_refused(nbytes: int) -> None:
    with pytest.raises(InputError, match=str(nbytes)):
        MemoryPool.anonymous(nbytes)


@pytest.mark.parametrize("nbytes", ["a", 1.5, None, True])
def test_pool_of_a_wrong_size_is_refused(nbytes: Any) -> None:
    with pytest.raises(InputError, match="whole number of bytes"):
        MemoryPool.anonymous(nbytes)


def test_a_numpy_integer_is_a_size() -> None:
    with MemoryPool.anonymous(np.int64(12)) as pool:  # type: ignore[arg-type]
        assert type(pool.nbytes) is int


def test_close_is_idempotent_and_every_use_after_it_is_named() -> None:
    pool = MemoryPool.anonymous(8)
    pool.close()
    pool.close()
    for use in (lambda: pool.memory, lambda: pool.nbytes, lambda: pool.view(np.uint8, 1)):
        with pytest.raises(ClosedError, match="after close"):
            use()
    assert repr(pool) == "MemoryPool(closed)"


def test_views_outlive_the_pool_and_unmap_it_when_they_die() -> None:
    gc.collect()
    before = live_mappings()
    pool = MemoryPool.anonymous(8)
    view = pool.view(np.int32, 2)
    fd = pool.memory.handle
    pool.close()
    view[:] = 3
    assert view.tolist() == [3, 3]
    assert live_mappings() == before + 1
    assert os.fstat(fd).st_size == 8
    del view
    assert live_mappings() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_forgotten_pool_gives_its_descriptor_back() -> None:
    fd = MemoryPool.anonymous(8).memory.handle
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_pool_cannot_be_resized() -> None:
    with MemoryPool.anonymous(8) as pool:
        for size in (0, 4, 9):
            with pytest.raises(PermissionError):
                os.ftruncate(pool.memory.handle, size)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_system_without_descriptors_is_resource_exhausted() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, hard))
    try:
        with pytest.raises(ResourceExhaustedTransient, match="no pool"):
            [MemoryPool.anonymous(8) for _ in range(64)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pool_does_not_pickle() -> None:
    with MemoryPool.anonymous(8) as pool, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(pool)


def test_threads_map_a_pool_once() -> None:
    gc.collect()
    before = live_mappings()
    with MemoryPool.anonymous(1024) as pool:
        barrier = threading.Barrier(4)

        def use(index: int) -> None:
            barrier.wait()
            pool.view(np.uint8, 1024)[index] = index + 1

        threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.view(np.uint8, 4).tolist() == [1, 2, 3, 4]
        assert live_mappings() == before + 1


@given(st.integers(0, 5000), st.integers(0, 5100), st.sampled_from(["u1", "<f4", "<i8", "c16"]))
def test_a_view_fits_exactly_when_its_bytes_do(nbytes: int, offset: int, kind: str) -> None:
    with MemoryPool.anonymous(nbytes) as pool:
        count = max(0, (nbytes - offset) // np.dtype(kind).itemsize)
        if offset <= nbytes:
            assert pool.view(kind, count, offset).size == count
        with pytest.raises(InputError):
            pool.view(kind, count + 1, offset)


def test_a_system_without_memfds_has_files_that_nobody_else_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.find_spec("penstock.memory.shared")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        # What it defines depends on it.
        patch.setattr(sys, "platform", "darwin")
        spec.loader.exec_module(module)
    fd = module.anonymous_fd(100, "pool")
    try:
        status = os.fstat(fd)
        assert (status.st_size, status.st_nlink) == (100, 0)
        with mmap.mmap(fd, 100) as one, mmap.mmap(fd, 100) as other:
            one[50] = 7
            assert other[50] == 7
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "content",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        np.frombuffer(b"12345678", np.float32),
        np.frombuffer(b"12345678", np.float16).reshape(2, 2),
        np.frombuffer(b"12345678", bfloat16),
    ],
)
def test_sealed_pool_cannot_be_written(content: Any) -> None:
    with Resources.unchanged("a sealed pool"):
        pool = MemoryPool.sealed(content)
        assert bytes(pool.buffer) == b"12345678"
        assert pool.readonly
        assert pool.memory.name == "ashmem"
        assert not pool.view(np.uint8, 8).flags.writeable
        with map_memory(pool.memory) as mapping:
            assert not mapping.array.flags.writeable
            assert bytes(mapping.array) == b"12345678"
        with pytest.raises(PermissionError):
            os.write(pool.memory.handle, b"x")
        pool.close()
        del pool, mapping
        gc.collect()


def test_an_empty_sealed_pool_has_no_bytes() -> None:
    with MemoryPool.sealed(b"") as pool:
        assert pool.nbytes == 0
        assert pool.view(np.float32, 0).size == 0


@pytest.mark.parametrize(
    "content",
    [3, "text", None, [1, 2], np.zeros((4, 4))[:, ::2], np.array([None]), memoryview(b"1234")[::2]],
)
def test_a_sealed_pool_is_made_of_contiguous_bytes(content: Any) -> None:
    with pytest.raises(InputError, match="a sealed pool is made of"):
        MemoryPool.sealed(content)
