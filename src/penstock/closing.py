"""What everything that is closed does in a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Closable(Protocol):
    """Has a `close`."""

    def close(self) -> None: ...


class Closing:
    """A `Closable` that is closed when its block ends, however it ends."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
