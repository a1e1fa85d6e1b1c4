"""The last inferences of a server, for its page."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from msgspec import Struct

from penstock.compilation.receipt import Receipt
from penstock.serve.receipts import Summary, summary_of
from penstock.serve.values import InferAnswer

KEPT: Final = 20


class Served(Struct, frozen=True):
    """One inference: when it ended (seconds since 1970), and the receipt of its run."""

    number: int
    ended: float
    model: str
    version: str
    id: str
    summary: Summary
    receipt: Receipt


class History:
    """The last `KEPT` inferences. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._kept: deque[tuple[int, float, InferAnswer]] = deque(maxlen=KEPT)

    def add(self, answer: InferAnswer) -> None:
        """Keeps the receipt of *answer*, without its outputs."""
        from msgspec.structs import replace

        bare = replace(answer, outputs={})
        with self._lock:
            self._number += 1
            self._kept.append((self._number, time.time(), bare))

    def latest(self) -> list[Served]:
        """The kept inferences, the last first."""
        with self._lock:
            kept = [*self._kept]
        return [
            Served(number, ended, a.model, a.version, a.id, summary_of(a), a.receipt)
            for number, ended, a in reversed(kept)
        ]
