"""Addresses of arrays, and memory that is aligned for vector instructions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from penstock.ir import NDArray

ALIGNMENT: Final = 64

HEAD: Final = object.__basicsize__
"""Where a NumPy array object has the pointer to its elements: behind the head of any object
(`PyArrayObject` of NumPy's C interface).
"""


class _Pointer:
    """What `pointer_at` returns where arrays are laid out otherwise."""

    def __init__(self, identity: int) -> None:
        array: Any = ctypes.cast(identity, ctypes.py_object).value
        self.value: int = array.ctypes.data


class _Shifted(ctypes.Structure):
    _fields_ = [("head", ctypes.c_char * HEAD), ("value", ctypes.c_uint64)]


def _has_pointer_behind_head() -> bool:
    """Whether arrays have their pointer where NumPy's C interface says, in this interpreter."""
    samples = [np.zeros(7, np.uint8)[offset:] for offset in range(3)]
    return all(_Shifted.from_address(id(a)).value == a.ctypes.data for a in samples)


HAS_POINTER: Final = _has_pointer_behind_head()

pointer_at: Final[Callable[[int], Any]] = _Shifted.from_address if HAS_POINTER else _Pointer
"""`pointer_at(id(array)).value` is the address of the array's elements. `array.ctypes.data` takes
twenty times as long, which is longer than a small network.
"""


def address_of(array: NDArray) -> int:
    """The address of the first element."""
    address: int = pointer_at(id(array)).value
    return address


OBJECT_HEAD: Final = HEAD if HAS_POINTER else 0
"""The word `HEAD` of frames whose ports are `port_of` arrays."""

port_of: Final[Callable[[NDArray], int]] = id if HAS_POINTER else address_of
"""What a port of a frame gets for an array: the object, or its address. The object is faster."""


def aligned(size: int) -> NDArray:
    """Fresh bytes, aligned for vector instructions."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -address_of(room) % ALIGNMENT
    return room[start : start + size]


def is_aligned(array: NDArray) -> bool:
    """Whether *array* is aligned for vector instructions."""
    return address_of(array) % ALIGNMENT == 0


def moved(array: NDArray) -> NDArray:
    """A copy of bytes, aligned."""
    copy = aligned(array.nbytes)
    copy[...] = array
    return copy
