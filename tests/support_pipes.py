"""Pipes for tests: a test of what may wait for one fails where that hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

PATIENCE: Final = 60.0
"""Seconds after which what should have ended hangs."""

descriptors = pytest.mark.skipif(
    not Path("/dev/fd").exists(), reason="descriptors have no paths here"
)


@contextmanager
def written(write: Callable[[Any], None]) -> Iterator[str]:
    """The path of a pipe into which another thread writes as long as anybody reads."""
    read_end, write_end = os.pipe()

    def run() -> None:
        with os.fdopen(write_end, "wb", buffering=0) as file, suppress(BrokenPipeError):
            write(file)

    writer = threading.Thread(target=run, daemon=True)
    writer.start()
    try:
        yield f"/dev/fd/{read_end}"
    finally:
        os.close(read_end)
        writer.join(PATIENCE)
    assert not writer.is_alive(), "the pipe is still open for reading"


def in_time(call: Callable[[], object]) -> BaseException | None:
    """What *call* raises, which must end in seconds: another thread makes it, and this one fails
    where that hangs.
    """
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # it is the answer
            raised.append(error)
        else:
            raised.append(None)

    caller = threading.Thread(target=run, daemon=True)
    caller.start()
    caller.join(PATIENCE)
    assert raised, "the call hangs"
    return raised[0]


@pytest.fixture
def named_pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe on disk that nobody writes."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("the platform has no named pipes")
    path = tmp_path / "pipe"
    os.mkfifo(path)
    yield path
    # Whoever waits for a writer gets one, and ends.
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
