"""Pools of constants between processes: sealed, and one mapping of equal ones."""

from __future__ import annotations

import gc
import os

import pytest

from penstock.errors import WireError
from penstock.ipc.constants import SEALS, descriptor_of, is_sealed, mapped
from penstock.ir import ConstantPool


def pool(content: bytes) -> ConstantPool:
    return ConstantPool(memoryview(content))


def test_a_copy_is_made_once_and_closed_with_its_pool() -> None:
    made = pool(b"constants")
    fd = descriptor_of(made)
    assert descriptor_of(made) == fd
    assert is_sealed(fd, SEALS)
    assert os.pread(fd, 100, 0) == b"constants"
    del made
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_equal_contents_are_mapped_once() -> None:
    first, second, other = pool(b"equal" * 99), pool(b"equal" * 99), pool(b"other" * 99)
    one = mapped(descriptor_of(first), 495)
    assert mapped(descriptor_of(first), 495) is one
    assert mapped(descriptor_of(second), 495) is one
    assert mapped(descriptor_of(other), 495) is not one
    assert bytes(mapped(descriptor_of(first), 5).view) == b"equal"
    assert bytes(one.view) == b"equal" * 99
    assert one.view.readonly


def test_what_can_be_changed_is_copied() -> None:
    fd = os.memfd_create("open", os.MFD_CLOEXEC)
    os.write(fd, b"before")
    made = mapped(fd, 6)
    os.pwrite(fd, b"after!", 0)
    assert bytes(made.view) == b"before"
    with pytest.raises(WireError, match="7 bytes of constants"):
        mapped(fd, 7)
    os.close(fd)
    with pytest.raises(WireError, match="cannot be read"):
        mapped(fd, 1)
