from __future__ import annotations

import gc
import mmap
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ClosedError, GeneralFailure
from penstock.hal import Memory
from penstock.memory import PROT_READ, PROT_WRITE, MappedFd, MemoryPool, live_mappings, map_memory


def test_ashmem_mapping_shares_the_pool() -> None:
    with MemoryPool.anonymous(100) as pool, map_memory(pool.memory) as mapping:
        pool.view(np.uint8, 100)[:] = np.arange(100)
        assert mapping.array.tolist() == list(range(100))
        mapping.array[3] = 77
        assert pool.view(np.uint8, 100)[3] == 77


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5000])
def test_mmap_fd_starts_at_any_offset(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 40)
    with path.open("r+b") as file:
        memory = Memory("mmap_fd", MappedFd(file.fileno(), offset), 300)
        with map_memory(memory) as mapping:
            assert bytes(mapping.array) == path.read_bytes()[offset : offset + 300]
            mapping.array[0] = 200
    assert path.read_bytes()[offset] == 200


def test_mmap_fd_without_write_protection_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 64)
    with (tmp_path / "data").open("rb") as file:
        memory = Memory("mmap_fd", MappedFd(file.fileno(), 0, PROT_READ), 64)
        with map_memory(memory) as mapping:
            assert not mapping.array.flags.writeable
            assert bytes(mapping.array) == b"x" * 64


def test_a_plain_tuple_is_a_mapped_fd(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    with (
        (tmp_path / "data").open("r+b") as file,
        map_memory(Memory("mmap_fd", (file.fileno(), 1, 3), 2)) as mapping,
    ):
        assert bytes(mapping.array) == b"bc"


def test_ashmem_of_a_read_only_descriptor_is_mapped_read_only(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    with (
        (tmp_path / "data").open("rb") as file,
        map_memory(Memory("ashmem", file.fileno(), 3)) as mapping,
    ):
        assert not mapping.array.flags.writeable


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_ashmem_sealed_against_writing_is_mapped_read_only() -> None:
    if sys.platform == "linux":
        import fcntl

        fd = os.memfd_create("t", os.MFD_ALLOW_SEALING)
        os.write(fd, b"abc")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with map_memory(Memory("ashmem", fd, 3)) as mapping:
            assert not mapping.array.flags.writeable
            assert bytes(mapping.array) == b"abc"
        os.close(fd)


def test_descriptor_may_be_closed_once_mapped() -> None:
    pool = MemoryPool.anonymous(8)
    pool.view(np.uint8, 8)[:] = 5
    mapping = map_memory(pool.memory)
    pool.close()
    assert mapping.array.tolist() == [5] * 8


@pytest.mark.parametrize(
    ("name", "handle", "size", "complaint"),
    [
        ("bogus", 0, 1, "'bogus' is of no kind"),
        ("hardware_buffer", 0, 1, "never mapped"),
        ("", None, 1, "of no kind"),
        ("ashmem", "fd", 1, "cannot have the handle"),
        ("ashmem", None, 1, "cannot have the handle"),
        ("ashmem", (0, 0, 3), 1, "cannot have the handle"),
        ("mmap_fd", 0, 1, "cannot have the handle"),
        ("mmap_fd", (0, 0), 1, "cannot have the handle"),
        ("mmap_fd", ("a", 0, 3), 1, "cannot have the handle"),
        ("ashmem", -1, 1, "descriptor -1"),
        ("ashmem", 2**40, 1, "descriptor"),
        ("ashmem", 0, -1, "-1 bytes"),
    ],
)
def test_refuses_what_cannot_be_mapped(
    name: str, handle: object, size: int, complaint: str
) -> None:
    with pytest.raises(GeneralFailure, match=complaint):
        map_memory(Memory(name, handle, size))


@pytest.mark.parametrize(
    ("offset", "size", "protection", "complaint"),
    [
        (0, 65, 3, r"claims the bytes \[0, 65\) of a region that has 64"),
        (60, 5, 3, "of a region that has 64"),
        (-1, 5, 3, r"claims the bytes \[-1"),
        (2**62, 2**62, 3, "of a region that has 64"),
        (0, 64, 0, "protection 0"),
        (0, 64, PROT_WRITE, "protection 2"),
        (0, 64, 7, "protection 7"),
    ],
)
def test_refuses_a_handle_at_odds_with_its_size(
    offset: int, size: int, protection: int, complaint: str
) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(64)
        with pytest.raises(GeneralFailure, match=complaint):
            map_memory(Memory("mmap_fd", MappedFd(file.fileno(), offset, protection), size))


def test_refuses_to_write_through_a_read_only_descriptor(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    with (
        (tmp_path / "data").open("rb") as file,
        pytest.raises(GeneralFailure, match="Permission denied"),
    ):
        map_memory(Memory("mmap_fd", MappedFd(file.fileno()), 3))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes of this kind")
def test_refuses_a_descriptor_without_a_size() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(GeneralFailure, match="of a region that has 0"):
            map_memory(Memory("ashmem", reading, 1))
    finally:
        os.close(reading)
        os.close(writing)


def test_an_empty_memory_maps_to_an_empty_array() -> None:
    with MemoryPool.anonymous(0) as pool, map_memory(pool.memory) as mapping:
        assert mapping.array.shape == (0,)
        assert mapping.array.dtype == np.uint8


def test_close_is_idempotent_and_use_after_it_is_named() -> None:
    with MemoryPool.anonymous(4) as pool:
        mapping = map_memory(pool.memory)
        mapping.close()
        mapping.close()
        with pytest.raises(ClosedError):
            _ = mapping.array


def test_a_region_is_unmapped_when_its_last_view_dies() -> None:
    gc.collect()
    before = live_mappings()
    with MemoryPool.anonymous(mmap.PAGESIZE) as pool:
        mapping = map_memory(pool.memory)
        assert live_mappings() == before + 1
        view = mapping.array[10:20].view(np.uint16)
        mapping.close()
        assert live_mappings() == before + 1
        view[:] = 7
        del view
        assert live_mappings() == before
