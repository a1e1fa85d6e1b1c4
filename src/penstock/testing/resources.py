"""What a process holds: descriptors, threads, children, mapped pools. For tests that nothing leaks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.memory import live_mappings


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
        """Raises `AssertionError` when the block leaves more behind than it found."""
        before = cls.now()
        yield
        after = cls.now()
        if leaks := after.more_than(before):
            raise AssertionError(f"{what} leaves behind: {', '.join(leaks)}")

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
    try:
        return len(Path("/proc/thread-self/children").read_text("ascii").split())
    except OSError:
        return None
