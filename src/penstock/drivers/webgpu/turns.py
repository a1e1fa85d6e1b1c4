"""Turns on a device: runs of models share it, and a measurement has it alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Keeps runs and measurements apart. Runs may overlap. A measurement waits until none is under
    way, and those that come meanwhile wait for the measurement. Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs = 0
        self._is_wanted = False

    @contextmanager
    def run(self) -> Iterator[None]:
        """A block that runs a model."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_wanted)
            self._runs += 1
        try:
            yield
        finally:
            with self._changed:
                self._runs -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block that measures."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_wanted)
            self._is_wanted = True
            self._changed.wait_for(lambda: not self._runs)
        try:
            yield
        finally:
            with self._changed:
                self._is_wanted = False
                self._changed.notify_all()
