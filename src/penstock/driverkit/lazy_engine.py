"""Engines that are loaded on first use, their error messages, and their state after a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from penstock.driverkit.ending import engine_at_work
from penstock.errors import DeviceUnavailable, DriverError, GeneralFailure

T = TypeVar("T")

MAX_MESSAGE: Final = 300


def message_of(error: BaseException, *, line: int) -> str:
    """Line number *line* of the message of an engine's exception, not counting empty lines; the
    type's name if the message is empty.
    """
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return (lines[line] if lines else type(error).__name__)[:MAX_MESSAGE]


class LazyEngine(Generic[T]):
    """The result of *load*, which is called once per process, on first use.

    The threads of an engine stay in the process that loaded it. A child process made by `fork` is
    refused with the reason *forked*, even if another thread was loading the engine at the moment of
    the fork. Children may use a *forkable* engine that was loaded before the fork. If *load* fails,
    raises `DeviceUnavailable` with *name* and the text that *message_of* returns for the exception.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], T],
        forked: str,
        message_of: Callable[[Exception], str],
        *,
        forkable: bool = False,
    ) -> None:
        self._name, self._load, self._forked, self._message_of = name, load, forked, message_of
        self._forkable = forkable
        self._loaded: T | None = None
        self._process: int | None = None
        self._make_lock()
        if hasattr(os, "register_at_fork"):
            # Another thread of the parent may have held the lock.
            os.register_at_fork(after_in_child=self._make_lock)

    def get(self) -> T:
        """The engine. Raises `DeviceUnavailable`."""
        if (reason := self.unusable()) is not None:
            raise DeviceUnavailable(reason)
        with self._lock:
            if self._loaded is None:
                # Set before the load: a child forked meanwhile would wait for a thread that it does
                # not have.
                self._process = os.getpid()
                try:
                    self._loaded = self._load()
                except Exception as error:
                    reason = f"{self._name} cannot be used: {self._message_of(error)}"
                    raise DeviceUnavailable(reason) from error
                finally:
                    if self._forkable or self._loaded is None:
                        self._process = None
            return self._loaded

    def unusable(self) -> str | None:
        """Why this process cannot use the engine, as far as can be known without loading it."""
        return None if self._process in {None, os.getpid()} else self._forked

    @contextmanager
    def guarded(self, task: str) -> Iterator[None]:
        """A block in which the engine compiles (`engine_at_work`): turns its exceptions into
        `GeneralFailure`, it did not *task*.
        """
        try:
            with engine_at_work():
                yield
        except DriverError:
            raise
        except Exception as error:
            text = f"{self._name} did not {task}: {self._message_of(error)}"
            raise GeneralFailure(text) from error

    def _make_lock(self) -> None:
        self._lock = threading.Lock()


class LeftInChildren:
    """Engine objects with threads, which a forked child process must not destroy.

    The child has none of these threads, so destroying such an object there may wait for them
    forever. The child keeps these objects until it ends.

    Thread-safe. Holds weak references, so the objects must support them.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakSet[Any] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def add(self, made: object) -> None:
        """Protects *made*, and the objects that it refers to, from destruction in a child."""
        self._objects.add(made)

    def _after_fork(self) -> None:
        leave(self._objects)
        self._objects = weakref.WeakSet()


def leave(objects: Iterable[object]) -> None:
    """Keeps *objects* from ever being destroyed, even at the interpreter's exit, unlike a list."""
    from ctypes import py_object, pythonapi

    for each in objects:
        pythonapi.Py_IncRef(py_object(each))
