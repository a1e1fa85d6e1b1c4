"""Memory when the system fails: at every call there is, in turn. An error with a name, and nothing
left behind.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import GeneralFailure, PenstockError, ResourceExhaustedTransient
from penstock.memory import (
    HardwareBuffer,
    HardwareBufferDescription,
    HardwareBufferFormat,
    MemoryPool,
    map_memory,
    mapping as mapping_module,
    pool_of,
)
from penstock.testing.resources import Resources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the calls are Linux's")

CALLS = ("dup", "memfd_create", "ftruncate", "open", "fstat", "lseek")
BLOB = HardwareBufferDescription(HardwareBufferFormat.BLOB, 64)


class Failing:
    """Lets the system's calls through, but for number *at*, counted over all of them, which fails
    by *number*.
    """

    def __init__(self, at: int, number: int) -> None:
        self.left, self.number = at, number

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.number, os.strerror(self.number))

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return call(*args, **kwargs)

        return made


def a_pool(place: Path) -> None:
    with MemoryPool.anonymous(64) as pool:
        view = pool.view(np.float32, 16)
        assert pool_of(view) is not None
        with map_memory(pool.memory) as mapping:
            assert mapping.array[0] == 0


def a_file(place: Path) -> None:
    with MemoryPool.from_file(place, 8, 64) as pool:
        pool.view(np.uint8, 64)[:] = 1
        pool.flush()
        with map_memory(pool.memory) as mapping:
            assert mapping.array[0] == 1


def a_descriptor(place: Path) -> None:
    with place.open("r+b") as file, MemoryPool.from_file(file.fileno(), 8, 64) as pool:
        pool.view(np.uint8, 64)


def a_buffer(place: Path) -> None:
    with HardwareBuffer.allocate(64) as buffer:
        with HardwareBuffer.wrap(buffer.memory.handle.fd, BLOB) as wrapped:
            with wrapped.lock(write=True) as content:
                content[:] = 1
            with MemoryPool.from_hardware_buffer(wrapped) as pool:
                pool.view(np.uint8, 64)
        with map_memory(buffer.memory) as mapping:
            assert mapping.array[0] == 1


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    return path


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
@pytest.mark.parametrize("use", [a_pool, a_file, a_descriptor, a_buffer])
def test_a_fault_at_every_call_leaves_nothing_behind(
    use: Callable[[Path], None], number: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(place)
    with Resources.unchanged("a fault at one of the calls"):
        calls = fail_at_each(use, number, place, monkeypatch)
    assert calls >= 3


def fail_at_each(
    use: Callable[[Path], None], number: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many calls there are, after each has failed in turn."""
    for at in range(1, 40):
        failing = Failing(at, number)
        with monkeypatch.context() as patched:
            for name in CALLS:
                patched.setattr(os, name, failing.around(getattr(os, name)))

            class Region(mapping_module.Region):
                def __new__(cls, *args: Any, **kwargs: Any) -> Any:
                    failing.count()  # noqa: B023  # of this turn
                    return mmap.mmap.__new__(cls, *args, **kwargs)

            patched.setattr(mapping_module, "Region", Region)
            with suppress(PenstockError, OSError):
                use(place)
        if failing.left > 0:
            return at - 1
    raise AssertionError("the calls do not end")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, ResourceExhaustedTransient),
        (errno.ENOMEM, ResourceExhaustedTransient),
        (errno.ENODEV, GeneralFailure),
        (errno.EACCES, GeneralFailure),
    ],
)
def test_failed_mapping_keeps_no_reference(
    number: int, kind: type[PenstockError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    class Owner:
        """Whose descriptors are closed when it goes."""

    def use() -> weakref.ref[Owner]:
        owner = Owner()
        known = weakref.ref(owner)
        with pytest.raises(kind):
            map_memory(pool.memory)
        return known

    with MemoryPool.anonymous(64) as pool:
        monkeypatch.setattr("penstock.memory.mapping.map_region", refuse)
        gc.disable()
        try:
            assert use()() is None
        finally:
            gc.enable()
