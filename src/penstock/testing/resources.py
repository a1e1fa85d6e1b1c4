"""Counts of what a process holds (descriptors, threads, children, mapped pools), for leak tests."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from penstock.memory import live_mappings

SETTLE_SECONDS: Final = 2.0
"""How long threads and processes that were closed may take to end."""


@dataclass(frozen=True, slots=True)
class Resources:
    """A count of each; *descriptors* and *children* are None where the system does not tell."""

    descriptors: int | None
    children: int | None
    threads: int
    mappings: int

    @classmethod
    def now(cls) -> Self:
        """What this process holds after a garbage collection."""
        gc.collect()
        return cls(
            _entries(Path("/proc/self/fd")), _children(), threading.active_count(), live_mappings()
        )

    @classmethod
    @contextmanager
    def unchanged(cls, what: str) -> Iterator[None]:
        """Raises `AssertionError` if there is still more than before, `SETTLE_SECONDS` after the
        block
        ends.
        """
        before = cls.now()
        yield
        limit = time.monotonic() + SETTLE_SECONDS
        while leaks := cls.now().more_than(before):
            if time.monotonic() > limit:
                raise AssertionError(f"{what} leaves behind: {', '.join(leaks)}")
            time.sleep(0.02)

    def more_than(self, before: Resources) -> list[str]:
        """Which counts are higher than in *before*, in words."""
        pairs = (
            ("descriptors", self.descriptors, before.descriptors),
            ("child processes", self.children, before.children),
            ("threads", self.threads, before.threads),
            ("mapped pools", self.mappings, before.mappings),
        )
        return [
            f"{now - then} {name}"
            for name, now, then in pairs
            if now is not None and then is not None and now > then
        ]


def _entries(directory: Path) -> int | None:
    try:
        return sum(1 for _ in directory.iterdir())
    except OSError:
        return None


def _children() -> int | None:
    # The child of a thread that ends becomes the child of another thread.
    children: list[list[str]] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            # A thread may have ended meanwhile.
            with suppress(OSError):
                children.append((task / "children").read_text("ascii").split())
    return sum(map(len, children)) if children else None
