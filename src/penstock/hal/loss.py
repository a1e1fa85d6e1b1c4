"""Engines that are lost: a graphics processor that was reset, a shader that does not end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from penstock.errors import DeadObject

_ends: Final[list[Callable[[str], NoReturn]]] = []


def engine_lost(reason: str) -> NoReturn:
    """A driver calls this when its process can no longer use its engine, whatever it tries.

    It ends a host process: the runtime starts another one, and repeats there what was under way.
    The receipt quotes *reason*. In the caller's process it raises `DeadObject`.
    """
    for end in _ends:
        end(reason)
    raise DeadObject(reason)


def end_with_engine(end: Callable[[str], NoReturn]) -> None:
    """Makes `engine_lost` end this process by *end*. A host process calls it before it loads its
    driver.
    """
    _ends[:] = [end]
