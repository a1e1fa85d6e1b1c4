"""A compile beside others that hold its entry: how long it waits, and what its receipt says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import Cancelled
from penstock.hal import CancelToken
from penstock.sealed.locks import lock
from tests.support_caching import CachingDevice, lock_file
from tests.unit.partitioning.models import chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

MODEL = chain(("ADD", "RELU"))


def compiled(
    path: Path, device: CachingDevice | None = None, **more: Any
) -> penstock.CompiledModel:
    return penstock.compile(MODEL, devices=[device or CachingDevice()], cache=path, **more)


@contextmanager
def held(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Another opening of the entry's lock file has the lock."""
    fd = os.open(lock_file(path), os.O_RDWR)
    try:
        assert lock(fd, exclusive=exclusive, timeout=0)
        yield
    finally:
        os.close(fd)


def test_an_entry_that_others_use_costs_no_compile_its_deadline(tmp_path: Path) -> None:
    compiled(tmp_path).close()
    next(tmp_path.glob("*10")).write_bytes(b"")
    refusing = CachingDevice(status=penstock.errors.GeneralFailure)
    with held(tmp_path, exclusive=False), compiled(tmp_path, refusing, timeout=1.5) as made:
        (step,) = made.receipt.steps
        assert not step.cache.saved
        assert "stays in use by others" in step.cache.not_saved


def test_a_compile_beside_a_stopped_writer_is_cancelled_soon(tmp_path: Path) -> None:
    compiled(tmp_path).close()
    cancel = CancelToken()
    with held(tmp_path, exclusive=True):
        timer = threading.Timer(0.1, cancel.set)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            compiled(tmp_path, cancel=cancel)
        assert time.monotonic() - began < 5
        timer.join()


def test_a_stopped_writer_costs_no_compile_its_deadline(tmp_path: Path) -> None:
    compiled(tmp_path).close()
    with held(tmp_path, exclusive=True):
        began = time.monotonic()
        with compiled(tmp_path, timeout=4) as made:
            (step,) = made.receipt.steps
        assert time.monotonic() - began < 3
    assert step.cache.reason.startswith("NotYetWritten: ")
    assert "stays in use by others" in step.cache.not_saved
