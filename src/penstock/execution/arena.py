"""The memory of one run for the values between its steps, and what is made of it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.hal import HostMemory, Request, RequestArgument
from penstock.ir import Model, NDArray
from penstock.ir.types import static_shape
from penstock.memory.arena import ArenaLayout


class Slot(Struct, frozen=True):
    """Where a temporary of known size lies."""

    operand: int
    offset: int
    nbytes: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class Places:
    """Values that a run finds in place, by operand: arrays, and the arguments to read and to write
    them by. *requests* are those of steps that use nothing else, by step; all steps do where
    *keeps_all*. One run at a time has them.
    """

    __slots__ = ("keeps_all", "readable", "requests", "values", "writable")

    def __init__(
        self,
        values: dict[int, NDArray],
        readable: dict[int, RequestArgument],
        writable: dict[int, RequestArgument],
    ) -> None:
        self.values, self.readable, self.writable = values, readable, writable
        self.requests: dict[object, Request] = {}
        self.keeps_all = False

    def joined(self, other: Places) -> Places:
        """These and *other*'s."""
        both = Places(
            self.values | other.values,
            self.readable | other.readable,
            self.writable | other.writable,
        )
        both.requests = self.requests
        return both


class Arena(Places):
    """One block of memory with its slots as arrays; it lies in *raw*, *nbytes* and *alignment*
    long, where that is given.
    """

    __slots__ = ()

    def __init__(
        self,
        slots: Sequence[Slot] = (),
        nbytes: int = 0,
        alignment: int = 1,
        *,
        raw: NDArray | None = None,
    ) -> None:
        if raw is None:
            raw = np.empty(nbytes + alignment, np.uint8)
        block = raw[-raw.ctypes.data % alignment :] if alignment > 1 else raw
        values: dict[int, NDArray] = {
            s.operand: block[s.offset : s.offset + s.nbytes].view(s.dtype).reshape(s.shape)
            for s in slots
        }
        super().__init__(
            values,
            {i: HostMemory(lent(array)) for i, array in values.items()},
            {i: HostMemory(array) for i, array in values.items()},
        )


NO_PLACES: Final = Places({}, {}, {})
"""Of a plan without temporaries of known size."""


def slots_of(model: Model, layout: ArenaLayout) -> tuple[Slot, ...]:
    """The slots of *model*'s temporaries."""
    operands = model.entry.operands
    return tuple(
        Slot(i, offset, nbytes, operands[i].dtype.numpy, shape)
        for i, (offset, nbytes) in layout.offsets.items()
        if (shape := static_shape(operands[i].shape)) is not None
    )


def lent(array: NDArray) -> NDArray:
    """*array* as a driver gets it to read: a view that it cannot write through."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.setflags(False)  # type: ignore[call-arg]  # NumPy takes it so, and by its name it takes twice as long
    return view
