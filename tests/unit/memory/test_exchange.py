"""Pools as arrays of other libraries: NumPy's, DLPack's and Python's buffers; nothing is copied,
nothing kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ClosedError
from penstock.memory import PROT_READ, MemoryPool, pool_of
from penstock.testing.resources import Resources
from tests.checked import does_not_raise


@pytest.fixture
def read_only(tmp_path: Path) -> MemoryPool:
    (tmp_path / "data").write_bytes(bytes(range(64)))
    return MemoryPool.from_file(tmp_path / "data", prot=PROT_READ)


def test_numpy_views_a_pool() -> None:
    with MemoryPool.anonymous(8) as pool:
        array = np.asarray(pool)
        assert array.dtype == np.uint8
        assert array.shape == (8,)
        array[3] = 7
        assert pool.view("u1", 8)[3] == 7
        copied = np.array(pool)
        copied[3] = 1
        assert array[3] == 7
        assert np.asarray(pool, np.float32).dtype == np.float32
        with pytest.raises(ValueError, match="copy"):
            np.asarray(pool, np.float32, copy=False)


def test_dlpack_consumers_view_a_pool() -> None:
    with MemoryPool.anonymous(8) as pool:
        assert pool.__dlpack_device__() == (1, 0)
        array = np.from_dlpack(pool)
        array[0] = 9
        assert pool.view("u1", 1)[0] == 9
        assert pool_of(array) == (pool.memory, 0)


def test_dlpack_says_that_a_pool_is_read_only(read_only: MemoryPool) -> None:
    with read_only as pool:
        assert not np.from_dlpack(pool).flags.writeable
        with pytest.raises(BufferError, match=r"[Rr]ead"):
            pool.__dlpack__()
        copied: Any = np.from_dlpack(pool, copy=True)
        assert copied.flags.writeable


def test_typed_views_are_dlpack_exporters_themselves(read_only: MemoryPool) -> None:
    with read_only as pool:
        view = pool.view("<f4", (4, 4))
        received = np.from_dlpack(view)
        assert received.shape == (4, 4)
        assert not received.flags.writeable
        assert np.shares_memory(received, view)


def test_the_buffer_protocol_views_a_pool(read_only: MemoryPool) -> None:
    with MemoryPool.anonymous(8) as pool:
        view = pool.buffer
        view[2] = 5
        assert pool.view("u1", 8)[2] == 5
        assert (view.format, view.nbytes, view.readonly) == ("B", 8, False)
    with read_only as pool:
        assert pool.buffer.readonly
        assert bytes(pool.buffer) == bytes(range(64))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 688 is Python 3.12's")
def test_a_pool_is_a_buffer_itself() -> None:
    with MemoryPool.anonymous(8) as pool:
        view = memoryview(pool)
        view[2] = 5
        assert pool.view("u1", 8)[2] == 5


@pytest.mark.parametrize(
    "export",
    [np.asarray, np.from_dlpack, lambda pool: pool.buffer, lambda pool: pool.view("f4", 2)],
)
def test_the_pool_is_unmapped_when_the_last_consumer_lets_go(export: Any) -> None:
    with Resources.unchanged("an export"):
        pool = MemoryPool.anonymous(8)
        consumer = export(pool)
        pool.close()
        held = Resources.now()
        memoryview(consumer).cast("B")[0] = 1
        del consumer
        freed = Resources.now()
        assert freed.mappings == held.mappings - 1


def test_a_capsule_that_nobody_takes_keeps_nothing() -> None:
    with does_not_raise(), Resources.unchanged("a capsule"), MemoryPool.anonymous(8) as pool:
        capsule = pool.__dlpack__(max_version=(1, 0))
        del capsule


def test_a_closed_pool_exports_nothing() -> None:
    pool = MemoryPool.anonymous(8)
    pool.close()
    for use in (np.asarray, np.from_dlpack, lambda p: p.buffer):
        with pytest.raises(ClosedError):
            use(pool)
