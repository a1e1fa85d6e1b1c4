from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import InputError, ResourceExhaustedTransient
from penstock.memory import PROT_READ, PROT_WRITE, MemoryPool, map_memory
from penstock.testing.resources import Resources
from tests.checked import does_not_raise

CONTENT = bytes(range(251)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.write_bytes(CONTENT)
    return made


def test_pool_of_a_path_shares_the_file(path: Path) -> None:
    with MemoryPool.from_file(path) as pool:
        assert pool.memory.name == "mmap_fd"
        assert pool.nbytes == len(CONTENT)
        assert pool.view(np.uint8, len(CONTENT)).tobytes() == CONTENT
        pool.view("<u4", 1, 4)[0] = 0xDEADBEEF
        pool.flush()
    assert path.read_bytes()[4:8] == bytes.fromhex("efbeadde")


@given(offset=st.integers(0, len(CONTENT) - 1), data=st.data())
def test_a_pool_starts_at_any_offset(
    tmp_path_factory: pytest.TempPathFactory, offset: int, data: st.DataObject
) -> None:
    nbytes = data.draw(st.integers(1, len(CONTENT) - offset))
    file = tmp_path_factory.getbasetemp() / "any-offset"
    file.write_bytes(CONTENT)
    with MemoryPool.from_file(file, offset, nbytes, PROT_READ) as pool:
        assert bytes(pool.view("u1", nbytes)) == CONTENT[offset : offset + nbytes]
        with map_memory(pool.memory) as mapping:
            assert bytes(mapping.array) == CONTENT[offset : offset + nbytes]


def test_without_a_size_a_pool_goes_to_the_end(path: Path) -> None:
    with MemoryPool.from_file(str(path), 100) as pool:
        assert pool.nbytes == len(CONTENT) - 100


@pytest.mark.parametrize("offset", [len(CONTENT), 1 << 40])
def test_an_offset_beyond_the_end_is_named(path: Path, offset: int) -> None:
    message = f"byte {offset} is not in a file of {len(CONTENT)} bytes"
    with pytest.raises(InputError, match=message):
        MemoryPool.from_file(path, offset)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    with pytest.raises(InputError, match="the file is empty"):
        MemoryPool.from_file(tmp_path / "none")


@pytest.mark.parametrize("wrong", [b"path", None, 1.5, True])
def test_pool_of_neither_path_nor_descriptor_is_refused(wrong: Any) -> None:
    words = f"made of a path (str or PathLike) or a descriptor (int), not of {wrong!r}"
    with pytest.raises(InputError, match=re.escape(words)):
        MemoryPool.from_file(wrong)


def test_a_descriptor_is_duplicated(path: Path) -> None:
    with path.open("r+b") as file, MemoryPool.from_file(file.fileno(), 3, 5) as pool:
        file.close()
        assert bytes(pool.view("u1", 5)) == CONTENT[3:8]


def test_a_read_only_pool_has_read_only_views(path: Path) -> None:
    path.chmod(0o400)
    with MemoryPool.from_file(path, prot=PROT_READ) as pool:
        assert pool.readonly
        assert not pool.view("u1", 8).flags.writeable
        assert pool.buffer.readonly


def test_a_pool_that_cannot_be_read_has_no_views(path: Path) -> None:
    for prot in (0, PROT_WRITE):
        with MemoryPool.from_file(path, prot=prot) as pool:
            with pytest.raises(InputError, match="PROT_READ"):
                pool.view("u1", 1)
            assert pool.memory.handle.protection == prot


def test_a_pool_of_a_read_only_descriptor_cannot_be_writable(path: Path) -> None:
    with (
        path.open("rb") as file,
        MemoryPool.from_file(file.fileno()) as pool,
        pytest.raises(InputError, match="protected"),
    ):
        pool.view("u1", 1)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 0), (-1, 4), (0, -1), (0, len(CONTENT) + 1), (len(CONTENT), None)]
)
def test_pool_outside_the_file_is_refused(path: Path, offset: int, nbytes: int | None) -> None:
    with Resources.unchanged("a refused pool"), pytest.raises(InputError, match="not in a file"):
        MemoryPool.from_file(path, offset, nbytes)


@pytest.mark.parametrize("offset", ["a", 1.5, None, True])
def test_an_offset_that_is_no_whole_number_is_named(path: Path, offset: Any) -> None:
    with pytest.raises(InputError, match="begins at a whole number of bytes, not"):
        MemoryPool.from_file(path, offset)


@pytest.mark.parametrize("prot", [-1, 4, 7, "rw", None, 1.5])
def test_other_protections_are_refused(path: Path, prot: Any) -> None:
    with pytest.raises(InputError, match="prot is"):
        MemoryPool.from_file(path, prot=prot)


@pytest.mark.parametrize("file", [-1, 2**40, 3.5, None, b"bytes", True, object()])
def test_pool_of_a_bad_descriptor_is_refused(file: Any) -> None:
    with pytest.raises(InputError):
        MemoryPool.from_file(file)


def test_a_path_that_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MemoryPool.from_file(tmp_path / "absent")
    with pytest.raises(OSError, match="directory"):
        MemoryPool.from_file(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes of this kind")
def test_pipes_and_sockets_are_refused() -> None:
    reading, writing = os.pipe()
    one, other = socket.socketpair()
    try:
        for fd in (reading, writing, one.fileno()):
            with Resources.unchanged("a refused descriptor"), pytest.raises(InputError):
                MemoryPool.from_file(fd)
    finally:
        os.close(reading)
        os.close(writing)
        one.close()
        other.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_system_without_descriptors_is_resource_exhausted(path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with path.open("rb") as file:
        resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + 1, hard))
        try:
            with pytest.raises(ResourceExhaustedTransient, match="no duplicate"):
                [MemoryPool.from_file(file.fileno(), prot=1) for _ in range(64)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_closed_pool_leaves_nothing_open(path: Path) -> None:
    with does_not_raise(), Resources.unchanged("pools of files"):
        for _ in range(3):
            pool = MemoryPool.from_file(path, 5, 50)
            view = pool.view("u1", 50)
            pool.close()
            del pool, view
        MemoryPool.from_file(path)
