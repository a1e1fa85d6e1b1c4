"""Views of an interpreter's memory that are counted: while one lives, nothing may move or overwrite
it.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from penstock.ir import NDArray


class Loan:
    """The base of a view handed out. It lives as long as the view, or anything derived from it."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: NDArray) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class Guests:
    """Who refers to an interpreter's memory: loans of `tensor()`, and signature runners."""

    def __init__(self) -> None:
        self._guests: weakref.WeakSet[Any] = weakref.WeakSet()

    def __bool__(self) -> bool:
        return len(self._guests) > 0

    def add(self, guest: object) -> None:
        """Counts *guest* until it dies."""
        self._guests.add(guest)

    def lend(self, memory: NDArray, dtype: type[np.generic]) -> Any:
        """A counted view of *memory*, its elements shown as *dtype* of the same width; of a scalar
        its value.

        Arrays of objects cannot be viewed: they come as copies, and count for nothing.
        """
        if memory.dtype.hasobject:
            return memory.copy()
        loan = Loan(memory)
        view = np.asarray(loan).view(dtype)
        if not view.ndim:
            return view[()]
        self.add(loan)
        return view
