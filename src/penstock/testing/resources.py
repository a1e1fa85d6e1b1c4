"""Counts of open resources (descriptors, threads, children, mapped pools), for leak tests."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Self

from penstock.memory import live_mappings

SETTLE_SECONDS: Final = 2.0
"""Seconds within which closed threads and processes must end."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Counts of each resource. *descriptors* and *children* are None if the system does not report
    them.
    """

    descriptors: int | None
    children: int | None
    threads: int
    mappings: int

    @classmethod
    def now(cls) -> Self:
        """The resources of this process after a garbage collection."""
        gc.collect()
        return cls(
            _entries(Path("/proc/self/fd")), _children(), threading.active_count(), live_mappings()
        )

    @classmethod
    @contextmanager
    def unchanged(cls, what: str) -> Iterator[None]:
        """Raises `AssertionError` if more resources are open `SETTLE_SECONDS` after the block than
        before it.
        """
        before = cls.now()
        yield
        limit = time.monotonic() + SETTLE_SECONDS
        while leaks := cls.now().more_than(before):
            if time.monotonic() > limit:
                raise AssertionError(f"{what} leaves behind: {', '.join(leaks)}")
            time.sleep(0.02)

    def more_than(self, before: Resources) -> list[str]:
        """The counts that exceed those in *before*, in words."""
        names = "descriptors", "child processes", "threads", "mapped pools"
        return [
            f"{now - then} {name}"
            for name, now, then in zip(names, astuple(self), astuple(before), strict=True)
            if now is not None and then is not None and now > then
        ]


def _entries(directory: Path) -> int | None:
    try:
        return sum(1 for _ in directory.iterdir())
    except OSError:
        return None


def _children() -> int | None:
    # If a thread ends, another thread becomes the parent of its child.
    children: list[list[str]] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            # A thread may have ended meanwhile.
            with suppress(OSError):
                children.append((task / "children").read_text("ascii").split())
    return sum(map(len, children)) if children else None
