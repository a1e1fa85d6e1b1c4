"""What a process holds: descriptors, threads, children, mapped pools. For tests that nothing leaks."""

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
"""How long what was closed may take until it is gone: threads and processes end by themselves."""


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
        """Raises `AssertionError` when the block leaves more behind than it found, `SETTLE_SECONDS`
        after its end still.
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
    # Of all threads: the child of one that ends becomes another's.
    told: list[list[str]] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            # A thread may have ended meanwhile.
            with suppress(OSError):
                told.append((task / "children").read_text("ascii").split())
    return sum(map(len, told)) if told else None
