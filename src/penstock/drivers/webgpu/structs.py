"""The structs of wgpu, whose methods are made when one is first used: this driver uses none of the
sixty, and to make their methods takes as long as the rest of wgpu's import.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

MODULE: Final = "wgpu.structs"


@contextmanager
def structs_made_later() -> Iterator[None]:
    """A block that imports wgpu. Other users of `dataclasses` notice nothing."""
    with _patching:
        own = dataclasses.dataclass
        dataclasses.dataclass = _decorator(own)
        try:
            yield
        finally:
            dataclasses.dataclass = own


def _decorator(own: Any) -> Any:
    """The function in the place of *own*, `dataclasses.dataclass`."""

    def dataclass(kind: Any = None, /, **options: Any) -> Any:
        if kind is None:
            return lambda kind: dataclass(kind, **options)
        if kind.__module__ != MODULE:
            return own(kind, **options)
        kind.__init__ = _first(kind, lambda: own(kind, **options))
        return kind

    return dataclass


def _first(kind: Any, make: Callable[[], object]) -> Callable[..., None]:
    """The constructor of *kind* until *make* has replaced it."""

    def construct(self: Any, *arguments: Any, **values: Any) -> None:
        with _making:
            if kind.__init__ is construct:
                del kind.__init__
                make()
        kind.__init__(self, *arguments, **values)

    return construct


_patching: Final = threading.Lock()
_making: Final = threading.Lock()
