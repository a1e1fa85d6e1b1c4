"""Objects of an engine that a child process made by `fork` must not destroy."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


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
