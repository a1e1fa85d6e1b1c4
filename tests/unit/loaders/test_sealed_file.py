from __future__ import annotations

import gc
import io
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.memory import sealed_file

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")
linux = pytest.mark.skipif(sys.platform != "linux", reason="sealed memfds are Linux's")

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def test_sealed_file_has_the_content_of_the_path(path: Path) -> None:
    assert bytes(sealed_file.read_path(path).view) == CONTENT
    assert bytes(sealed_file.read_path(str(path)).view) == CONTENT
    with path.open("rb") as file:
        file.seek(1000)
        assert bytes(sealed_file.read_file(file).view) == CONTENT[1000:]
    assert bytes(sealed_file.read_file(io.BytesIO(CONTENT)).view) == CONTENT
    assert len(sealed_file.read_path(path)) == len(CONTENT)


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert not len(sealed_file.read_path(tmp_path / "empty"))
    assert not len(sealed_file.map_path(tmp_path / "empty"))


def test_later_changes_of_the_file_do_not_show(path: Path) -> None:
    sealed = sealed_file.read_path(path)
    path.write_bytes(b"other")
    assert bytes(sealed.view) == CONTENT
    os.truncate(path, 0)
    assert bytes(sealed.view) == CONTENT


def test_views_cannot_be_written(path: Path) -> None:
    for sealed in (
        sealed_file.read_path(path),
        sealed_file.map_path(path),
        sealed_file.seal_bytes(bytearray(CONTENT)),
        sealed_file.seal_bytes(CONTENT),
    ):
        assert sealed.view.readonly


def test_bytes_are_used_as_they_are_and_bytearrays_copied() -> None:
    assert sealed_file.seal_bytes(CONTENT).view.obj is CONTENT
    buffer = bytearray(CONTENT)
    sealed = sealed_file.seal_bytes(buffer)
    buffer[:] = bytes(len(buffer))
    assert bytes(sealed.view) == CONTENT


@linux
def test_memory_of_a_sealed_file_cannot_be_written(path: Path) -> None:
    sealed = sealed_file.read_path(path)
    assert sealed.fd is not None
    with pytest.raises(PermissionError):
        os.write(sealed.fd, b"x")
    with pytest.raises(PermissionError):
        os.truncate(sealed.fd, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(sealed.fd, 10, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)


@linux
def test_descriptors_are_counted_and_closed(path: Path) -> None:
    gc.collect()
    before = sealed_file.open_descriptors()
    sealed = sealed_file.read_path(path)
    view = sealed.view[10:20]
    assert sealed_file.open_descriptors() == before + 1
    del sealed
    gc.collect()
    assert sealed_file.open_descriptors() == before
    assert bytes(view) == CONTENT[10:20]
    view.release()


@linux
def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, CONTENT[:1000])
    os.close(writer)
    with open(reader, "rb", buffering=0) as file:  # noqa: PTH123  # a descriptor has no path
        assert bytes(sealed_file.read_file(file).view) == CONTENT[:1000]


@linux
def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(OSError, match="device"):
        sealed_file.read_path("/dev/zero")


def test_sealed_file_without_memfd_is_a_private_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "HAS_MEMFD", False)
    sealed = sealed_file.read_path(path)
    assert sealed.fd is None
    path.write_bytes(b"")
    assert bytes(sealed.view) == CONTENT


def test_a_mapping_shows_the_file(path: Path) -> None:
    sealed = sealed_file.map_path(path)
    assert sealed.mapped
    assert sealed.view == CONTENT


class BrokenFile(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError("the disk is gone")


def test_a_file_that_cannot_be_read_leaves_nothing_open() -> None:
    with pytest.raises(OSError, match="gone"):
        sealed_file.read_file(BrokenFile())
    gc.collect()


def resident(view: memoryview) -> int:
    """Bytes of the mapping that contains *view* that are mapped in now."""
    at = np.frombuffer(view, np.uint8).ctypes.data
    inside = False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        place, _, rest = line.partition(" ")
        if "-" in place:
            start, end = (int(p, 16) for p in place.split("-"))
            inside = start <= at < end
        elif inside and place == "Rss:":
            return 1024 * int(rest.split()[0])
    raise AssertionError("nothing is mapped there")


@linux
def test_unloaded_bytes_take_no_memory_of_the_process_and_come_back(path: Path) -> None:
    for sealed in (sealed_file.read_path(path), sealed_file.map_path(path)):
        assert bytes(sealed.view) == CONTENT
        assert resident(sealed.view) >= len(CONTENT)
        sealed.unload()
        assert resident(sealed.view) == 0
        assert bytes(sealed.view) == CONTENT


def test_private_memory_is_not_unloaded() -> None:
    for sealed in (
        sealed_file.seal_bytes(CONTENT),
        sealed_file.seal_chunks([memoryview(CONTENT)], len(CONTENT)),
        sealed_file.seal_chunks([memoryview(b"ab"), memoryview(b"c")], 3),
    ):
        before = bytes(sealed.view)
        sealed.unload()
        assert bytes(sealed.view) == before


def test_chunks_are_sealed_in_order() -> None:
    words, many = np.arange(4).data.cast("B"), np.arange(1 << 18).data
    small = sealed_file.seal_chunks([words, memoryview(b""), memoryview(b"end")], 35)
    assert bytes(small.view) == words.tobytes() + b"end"
    assert small.fd is None
    large = sealed_file.seal_chunks([many, words], (8 << 18) + 32)
    assert bytes(large.view) == many.tobytes() + words.tobytes()
    assert large.view.readonly
    assert (large.fd is not None) is sealed_file.HAS_MEMFD
