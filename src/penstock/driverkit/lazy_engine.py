"""Engines that are loaded when first used, their messages, and what a fork leaves of them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.errors import DeviceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MAX_MESSAGE: Final = 300


def message_of(error: BaseException, *, line: int) -> str:
    """The *line* of an engine's exception, of those with text; its type if there is none."""
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return (lines[line] if lines else type(error).__name__)[:MAX_MESSAGE]


class LazyEngine(Generic[T]):
    """What *load* returns, loaded once a process when it is first asked for.

    The threads of an engine stay with the process that loaded it. A child made by `fork` is refused
    with *forked*, also where another thread was loading the engine at that moment. A *load* that
    fails raises `DeviceUnavailable` with *name* and what *message_of* says of its exception.
    """

    def __init__(
        self, name: str, load: Callable[[], T], forked: str, message_of: Callable[[Exception], str]
    ) -> None:
        self._name, self._load, self._forked, self._message_of = name, load, forked, message_of
        self._lock = threading.Lock()
        self._loaded: T | None = None
        self._process: int | None = None

    def get(self) -> T:
        """The engine. Raises `DeviceUnavailable`."""
        if (reason := self.unusable()) is not None:
            raise DeviceUnavailable(reason)
        with self._lock:
            if self._loaded is None:
                # Before the load: a child forked meanwhile would wait for a thread it lacks.
                self._process = os.getpid()
                try:
                    self._loaded = self._load()
                except Exception as error:
                    self._process = None
                    reason = f"{self._name} cannot be used: {self._message_of(error)}"
                    raise DeviceUnavailable(reason) from error
            return self._loaded

    def unusable(self) -> str | None:
        """Why this process cannot use the engine, as far as is known without loading it."""
        return None if self._process in {None, os.getpid()} else self._forked


class LeftInChildren:
    """Objects of an engine with threads. A child process made by `fork` has none of these threads,
    and to destroy such an object there may wait for them for ever: in the child these objects are
    left as they are until it ends.

    Thread-safe; holds its objects weakly, which must allow that.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakSet[Any] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def add(self, made: object) -> None:
        """From now on *made*, and what it refers to, is not destroyed in a child."""
        self._objects.add(made)

    def _after_fork(self) -> None:
        leave(self._objects)
        self._objects = weakref.WeakSet()


def leave(objects: Iterable[object]) -> None:
    """Keeps *objects* from ever being destroyed: also when the interpreter ends, which a list of
    them would not.
    """
    from ctypes import py_object, pythonapi

    for each in objects:
        pythonapi.Py_IncRef(py_object(each))
