"""What a compile spent its time on, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from penstock.compilation.receipt import Span


class Recorder:
    """The spans of one compile so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def time(
        self,
        stage: Literal["load", "partition", "compile", "cache"],
        name: str,
        device: str | None = None,
    ) -> Iterator[None]:
        """Records how long the block takes, however it ends."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spans.append(Span(stage, name, device, began, time.perf_counter_ns() - began))
