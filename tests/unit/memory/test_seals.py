"""Seals that the kernel refuses for a moment."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import pytest

from penstock.memory import sealed_file
from penstock.memory.sealed_file import is_write_sealed, seal_chunks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sealed files are Linux's")


def busy(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Lets that many calls that add seals fail, as while a page is in use. The list counts them."""
    import fcntl

    inner, calls = fcntl.fcntl, list[int]()

    def fake(fd: int, command: int, *rest: Any) -> Any:
        if command == fcntl.F_ADD_SEALS:
            calls.append(fd)
            if len(calls) <= times:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return inner(fd, command, *rest)

    monkeypatch.setattr(fcntl, "fcntl", fake)
    return calls


def test_a_file_whose_pages_are_in_use_for_a_moment_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = busy(monkeypatch, 3)
    content = bytes(range(256)) * 8192
    sealed = seal_chunks([memoryview(content)], len(content))
    assert bytes(sealed.view) == content
    assert len(calls) == 4
    assert sealed.fd is not None
    assert is_write_sealed(sealed.fd)


def test_a_file_whose_pages_stay_in_use_is_refused_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealed_file, "PATIENCE_S", 0.02)
    calls = busy(monkeypatch, 10**9)
    with pytest.raises(OSError, match="busy"):
        seal_chunks([memoryview(bytes(1 << 20))], 1 << 20)
    assert len(calls) > 1
