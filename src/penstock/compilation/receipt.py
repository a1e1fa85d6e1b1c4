"""`Receipt`: what a compile or a run really did. Nothing is done that does not stand in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from penstock.errors import NotYetWritten


class CacheOutcome(msgspec.Struct, frozen=True):
    """What the compilation cache did for one step, and why.

    The *reason* of a miss begins with the name of a `CacheError` where the cache refused something; that of
    a hit names the artefact, where the driver has several. After a miss, *saved* says whether the compiled
    step is in the cache now, and *not_saved* why not.
    """

    outcome: Literal["hit", "miss", "off"]
    reason: str = ""
    saved: bool = False
    not_saved: str = ""

    def __str__(self) -> str:
        text = f"{self.outcome}: {self.reason}" if self.reason else self.outcome
        return f"{text}; not saved: {self.not_saved}" if self.not_saved else text


TO_BE_WRITTEN: Final = str(NotYetWritten("the driver writes it when it has compiled"))
"""`CacheOutcome.not_saved` of a step whose driver has kept the files to write them later."""

CACHE_OFF: Final = CacheOutcome("off", "nothing was compiled")


class StepReceipt(msgspec.Struct, frozen=True):
    """One step: where it ran and for how long.

    *operations* are indexes of the plan's operations; *wall_ns* is what the runtime waited, *driver_ns*
    what the driver says it took (None: it did not say). *fallback_from* names the device that
    should have run it and *error* is what that device answered.
    """

    device: str
    operations: tuple[int, ...]
    wall_ns: int
    driver_ns: int | None = None
    cache: CacheOutcome = CACHE_OFF
    fallback_from: str | None = None
    error: str | None = None


copy_watchers: Final[list[Callable[[CopyReceipt], None]]] = []
"""Told of every copy as it is made, in the thread that makes it (`penstock.testing.assert_no_copies`)."""


class CopyReceipt(msgspec.Struct, frozen=True):
    """One copy of tensor data made by the runtime."""

    nbytes: int
    source: str
    destination: str
    reason: str

    def __post_init__(self) -> None:
        for watch in copy_watchers:
            watch(self)


class Receipt(msgspec.Struct, frozen=True):
    """Of one compile (`compiled.receipt`) or one run (`outputs.receipt`).

    *compiles* counts the driver compiles that this call made, *wall_ns* its whole duration.
    """

    steps: tuple[StepReceipt, ...] = ()
    compiles: int = 0
    copies: tuple[CopyReceipt, ...] = ()
    wall_ns: int = 0

    def show(self) -> str:
        """A few readable lines."""
        lines = [
            f"{self.wall_ns / 1e6:.3f} ms, {self.compiles} compiles, {self._copied()} bytes copied"
        ]
        for index, step in enumerate(self.steps):
            line = f"  step {index} on {step.device}: {len(step.operations)} operations, {step.wall_ns / 1e6:.3f} ms"
            line += f", cache {step.cache}"
            if step.fallback_from is not None:
                line += f", fell back from {step.fallback_from}: {step.error}"
            lines.append(line)
        lines += [
            f"  copy {c.nbytes} bytes, {c.source} -> {c.destination}: {c.reason}"
            for c in self.copies
        ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        """The same as one JSON object."""
        return msgspec.json.encode(self).decode()

    def _copied(self) -> int:
        return sum(c.nbytes for c in self.copies)
