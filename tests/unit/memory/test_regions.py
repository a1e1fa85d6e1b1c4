from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.memory import HardwareBuffer, MemoryPool, pool_of


def test_an_array_outside_every_pool_has_no_place() -> None:
    assert pool_of(np.zeros(4, np.float32)) is None
    with MemoryPool.anonymous(64) as pool:
        pool.view(np.uint8, 64)
        assert pool_of(np.zeros(4, np.float32)) is None


def test_a_view_has_its_place_in_its_pool() -> None:
    with MemoryPool.anonymous(64) as one, MemoryPool.anonymous(64) as other:
        view = other.view(np.float32, (2, 3), offset=8)
        one.view(np.uint8, 64)
        place = pool_of(view)
        assert place is not None
        assert place.memory is other.memory
        assert place.offset == 8
        row = pool_of(view[1])
        assert row is not None
        assert row.offset == 8 + 12


def test_strided_or_empty_view_has_no_place_in_a_pool() -> None:
    with MemoryPool.anonymous(64) as pool:
        view = pool.view(np.uint8, (8, 8))
        assert pool_of(view[:, :4]) is None
        assert pool_of(view[:, ::-1]) is None
        assert pool_of(view[:0]) is None
        assert pool_of(view.T) is None


def test_bytes_beyond_the_end_are_in_no_pool() -> None:
    with MemoryPool.anonymous(8) as pool:
        view = pool.view(np.uint8, 8)
        beyond = np.lib.stride_tricks.as_strided(view, (9,), (1,))
        assert pool_of(beyond) is None


def test_a_read_only_view_and_a_view_of_another_dtype_have_their_places() -> None:
    with MemoryPool.anonymous(64) as pool:
        view = pool.view(np.float32, 16)[4:].view()
        view.flags.writeable = False
        assert pool_of(view.view(np.int8)) == (pool.memory, 16)


def test_the_place_in_a_file_counts_from_the_pools_offset(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(200)) * 100)
    with MemoryPool.from_file(path, 4099, 100) as pool:
        view = pool.view(np.uint8, 10, 7)
        assert view[0] == (4099 + 7) % 200
        assert pool_of(view) == (pool.memory, 7)


def test_a_blobs_bytes_have_their_place_in_the_hardware_buffer() -> None:
    with HardwareBuffer.allocate(100) as buffer, MemoryPool.from_hardware_buffer(buffer) as pool:
        place = pool_of(pool.view(np.uint8, 50, 50))
        assert place is not None
        assert place.memory is buffer.memory
        assert place.offset == 50


def test_a_view_keeps_its_place_and_descriptor_when_the_pool_closes() -> None:
    pool = MemoryPool.anonymous(8)
    view = pool.view(np.int32, 2)
    pool.close()
    place = pool_of(view)
    assert place is not None
    assert os.fstat(place.memory.handle).st_size == 8


def test_new_arrays_are_not_taken_for_those_of_a_pool_that_has_gone() -> None:
    gc.collect()
    for _ in range(8):
        with MemoryPool.anonymous(1 << 20) as pool:
            pool.view(np.uint8, 1)
        del pool
        assert all(pool_of(np.zeros(1 << 20, np.uint8)) is None for _ in range(4))


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=12), st.data())
def test_every_view_is_found_in_its_own_pool(sizes: list[int], data: st.DataObject) -> None:
    pools = [MemoryPool.anonymous(size) for size in sizes]
    views = [pool.view(np.uint8, pool.nbytes) for pool in pools]
    gone = data.draw(st.sets(st.sampled_from(range(len(pools)))))
    for index, (pool, view) in enumerate(zip(pools, views, strict=True)):
        start = data.draw(st.integers(0, pool.nbytes - 1))
        if index in gone:
            continue
        assert pool_of(view[start:]) == (pool.memory, start)
    for pool in pools:
        pool.close()


def test_threads_make_forget_and_look_up_pools_at_once() -> None:
    wrong: list[object] = []

    def work() -> None:
        for size in range(1, 60):
            with MemoryPool.anonymous(size) as pool:
                found = pool_of(pool.view(np.uint8, size))
                if found is None or found.memory is not pool.memory:
                    wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", ["f8", "c16", "S4", "V3"])
def test_arrays_of_any_dtype_are_looked_up(kind: str) -> None:
    with MemoryPool.anonymous(96) as pool:
        assert pool_of(pool.view(kind, 2)) == (pool.memory, 0)
