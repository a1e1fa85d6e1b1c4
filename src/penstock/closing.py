"""Closing of objects by a `with` block, and errors stored without their frames."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class Closable(Protocol):
    """An object with `close`."""

    def close(self) -> None: ...


class Closing:
    """A `Closable` that its `with` block closes, also after an exception."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self: Closable, *_: object) -> None:
        self.close()


def without_frames(error: Raised) -> Raised:
    """Removes the traceback frames from *error* and its causes, and returns it for storing.

    Frames would keep files and mappings alive until the garbage collector runs.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        if (one := left.pop()) is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += one.__cause__, one.__context__
    return error
