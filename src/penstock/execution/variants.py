"""The compiled forms of a model with unknown dimensions: one for each set of input shapes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import Cancelled, MissedDeadline, MissedDeadlineTransient
from penstock.execution.run import Run
from penstock.execution.variant import Variant
from penstock.hal import ExecutionConfig

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_VARIANTS: Final = 8
"""Compiled forms kept; the least recently used is evicted first."""

POLL_SECONDS: Final = 0.02
"""Seconds between checks of the cancel token while a run waits for another run's compile."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

Specialize: TypeAlias = Callable[[dict[int, tuple[int, ...]], ExecutionConfig], Variant]
"""Compiles the model for full input shapes, by position, under a run's deadline and token."""


class Variants:
    """A bounded cache of variants.

    Each set of shapes is compiled once, even if several runs ask for it at the same time. The
    compile does not hold the lock, so runs of other shapes continue. An evicted variant is closed
    when its last run has ended.
    """

    def __init__(self, specialize: Specialize) -> None:
        self._specialize = specialize
        self._lock = threading.Lock()
        self._ready: OrderedDict[Shapes, Variant] = OrderedDict()
        self._pending: dict[Shapes, Future[None]] = {}
        self._users: dict[Variant, int] = {}

    def stop_compiling(self, end: float) -> None:
        """Cancels background compiles; `close` waits for their end until *end*."""
        with self._lock:
            every = [*self._ready.values()]
        for variant in every:
            variant.compilation.stop_compiling(end)

    def close(self) -> None:
        """Closes every variant. None may be in use."""
        with self._lock:
            every = [*self._ready.values()]
            self._ready.clear()
        for variant in every:
            variant.close()

    def take(self, shapes: Shapes, run: Run) -> Variant:
        """The variant for *shapes*, open until it is given back. Adds its compile to *run*."""
        config = run.config
        while True:
            self._renew(shapes)
            with self._lock:
                if (variant := self._ready.get(shapes)) is not None:
                    self._ready.move_to_end(shapes)
                    self._users[variant] = self._users.get(variant, 0) + 1
                    if config.priority != variant.config.priority:
                        variant.expect(config.priority)
                    return variant
                from concurrent.futures import Future

                mine: Future[None] = Future()
                pending = self._pending.setdefault(shapes, mine)
            if pending is mine:
                return self._compile(shapes, run, mine)
            _wait(pending, config)

    def _renew(self, shapes: Shapes) -> None:
        """Drops a variant compiled without a driver that is available again."""
        variant = self._ready.get(shapes)
        if variant is None or variant.absence is None or not variant.absence.any_is_back():
            return
        with self._lock:
            if self._ready.get(shapes) is not variant:
                return
            del self._ready[shapes]
            unused = variant not in self._users
        if unused:
            variant.close()

    def _compile(self, shapes: Shapes, run: Run, done: Future[None]) -> Variant:
        try:
            variant = self._specialize(dict(enumerate(shapes)), run.config)
            variant.expect(run.config.priority)
            run.compiles += variant.compilation.receipt.compiles
            run.spans += variant.compilation.receipt.spans
            run.notes += variant.compilation.receipt.notes
            run.copies += variant.compilation.receipt.copies
            with self._lock:
                self._ready[shapes] = variant
                self._users[variant] = 1
                dropped = []
                while len(self._ready) > MAX_VARIANTS:
                    _, old = self._ready.popitem(last=False)
                    # One in use is closed when it is given back.
                    if old not in self._users:
                        dropped.append(old)
        except BaseException as error:
            with self._lock:
                del self._pending[shapes]
            done.set_exception(error)
            raise
        with self._lock:
            del self._pending[shapes]
        done.set_result(None)
        for old in dropped:
            old.close()
        return variant

    def give_back(self, variant: Variant) -> None:
        """Ends one use of *variant*."""
        with self._lock:
            self._users[variant] -= 1
            if self._users[variant]:
                return
            del self._users[variant]
            kept = variant in self._ready.values()
        if not kept:
            variant.close()


def _wait(pending: Future[None], config: ExecutionConfig) -> None:
    """Waits for another run's compile. Raises its error, unless that run was interrupted."""
    while True:
        if config.cancel is not None:
            config.cancel.check()
        if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
            text = "the deadline passed while another run compiled this shape"
            raise MissedDeadlineTransient(text)
        try:
            pending.result(POLL_SECONDS)
        except TimeoutError as error:
            if not pending.done():
                continue
            if not isinstance(error, MissedDeadline):
                raise
        except Cancelled:
            pass
        return
