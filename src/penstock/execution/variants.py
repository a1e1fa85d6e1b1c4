"""The compiled forms of a model with unknown dimensions: one for each set of input shapes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.errors import Cancelled, MissedDeadline, MissedDeadlineTransient
from penstock.execution.run import Run
from penstock.execution.variant import Variant
from penstock.hal import ExecutionConfig

MAX_VARIANTS: Final = 8
"""Compiled forms kept; the least recently used is evicted first."""

POLL_SECONDS: Final = 0.02
"""Seconds between checks of the cancel token while a run waits for another run's compile."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

Specialize: TypeAlias = Callable[[dict[int, tuple[int, ...]], ExecutionConfig], Variant]
"""Compiles the model for full input shapes, by position, under a run's deadline and token."""


class Entry:
    """A variant in the cache; *inside* has one entry for each of its runs."""

    __slots__ = ("dropped", "inside", "variant")

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        # Changed without the lock: append and pop are atomic.
        self.inside: list[None] = []
        self.dropped = False


class Variants:
    """A bounded cache of variants.

    Each set of shapes is compiled once, even if several runs ask for it at the same time. The
    compile does not hold the lock, so runs of other shapes continue. An evicted variant is closed
    when its last run has ended.
    """

    def __init__(self, specialize: Specialize) -> None:
        self._specialize = specialize
        self._lock = threading.Lock()
        self._ready: OrderedDict[Shapes, Entry] = OrderedDict()
        self._pending: dict[Shapes, _Pending] = {}
        self._latest: Entry | None = None
        """The most recently used entry."""

    def stop_compiling(self, end: float) -> None:
        """Cancels background compiles; `close` waits for their end until *end*."""
        with self._lock:
            every = [*self._ready.values()]
        for entry in every:
            entry.variant.compilation.stop_compiling(end)

    def close(self) -> None:
        """Closes every variant. None may be in use."""
        with self._lock:
            every = [*self._ready.values()]
            self._ready.clear()
            self._latest = None
        for entry in every:
            entry.variant.close()

    def take(self, shapes: Shapes, run: Run) -> Entry:
        """The variant for *shapes*, open until it is given back. Adds its compile to *run*."""
        latest = self._latest
        if latest is not None and self._ready.get(shapes) is latest:
            # Without the lock. `_drop` either sees this run inside, or has set *dropped* before.
            latest.inside.append(None)
            variant = latest.variant
            if (
                not latest.dropped
                and variant.absence is None
                and run.config.priority == variant.config.priority
            ):
                return latest
            self.give_back(latest)
        return self._taken(shapes, run)

    def _taken(self, shapes: Shapes, run: Run) -> Entry:
        config = run.config
        while True:
            self._renew(shapes)
            with self._lock:
                if (entry := self._ready.get(shapes)) is not None:
                    self._ready.move_to_end(shapes)
                    self._latest = entry
                    entry.inside.append(None)
                    if config.priority != entry.variant.config.priority:
                        entry.variant.expect(config.priority)
                    return entry
                mine = _Pending()
                pending = self._pending.setdefault(shapes, mine)
            if pending is mine:
                return self._compile(shapes, run, mine)
            _wait(pending, config)

    def _renew(self, shapes: Shapes) -> None:
        """Drops a variant compiled without a driver that is available again."""
        entry = self._ready.get(shapes)
        if entry is None or (absence := entry.variant.absence) is None or not absence.any_is_back():
            return
        with self._lock:
            if self._ready.get(shapes) is not entry:
                return
            del self._ready[shapes]
        self._drop(entry)

    def _compile(self, shapes: Shapes, run: Run, done: _Pending) -> Entry:
        try:
            variant = self._specialize(dict(enumerate(shapes)), run.config)
            variant.expect(run.config.priority)
            run.compiles += variant.compilation.receipt.compiles
            run.spans += variant.compilation.receipt.spans
            run.notes += variant.compilation.receipt.notes
            run.copies += variant.compilation.receipt.copies
            entry = Entry(variant)
            entry.inside.append(None)
            with self._lock:
                self._ready[shapes] = self._latest = entry
                dropped = []
                while len(self._ready) > MAX_VARIANTS:
                    dropped.append(self._ready.popitem(last=False)[1])
        except BaseException as error:
            with self._lock:
                del self._pending[shapes]
            done.end(error)
            raise
        with self._lock:
            del self._pending[shapes]
        done.end()
        for old in dropped:
            self._drop(old)
        return entry

    def give_back(self, entry: Entry) -> None:
        """Ends one use of *entry*."""
        entry.inside.pop()
        if entry.dropped:
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        """Closes the variant of *entry*, which is evicted: now, or when its last run gives it
        back.
        """
        with self._lock:
            entry.dropped = True
            if entry.inside:
                return
            entry.inside.append(None)  # so that it is closed once
        entry.variant.close()


class _Pending:
    """A compile that runs. `concurrent.futures` has the same, and takes long to import."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        self.error = error
        self.ended.set()


def _wait(pending: _Pending, config: ExecutionConfig) -> None:
    """Waits for another run's compile. Raises its error, unless that run was interrupted."""
    while True:
        if config.cancel is not None:
            config.cancel.check()
        if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
            text = "the deadline passed while another run compiled this shape"
            raise MissedDeadlineTransient(text)
        if pending.ended.wait(POLL_SECONDS):
            break
    if pending.error is not None and not isinstance(pending.error, Cancelled | MissedDeadline):
        raise pending.error
