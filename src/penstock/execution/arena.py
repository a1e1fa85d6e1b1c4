"""The memory of one run for the values between its steps, and what is made of it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from penstock.execution.transfer import lent
from penstock.hal import HostMemory, Request
from penstock.ir import Model, NDArray
from penstock.ir.types import static_shape
from penstock.memory.arena import ArenaLayout

if TYPE_CHECKING:
    from penstock.execution.step import StepRunner


class Slot(Struct, frozen=True):
    """Where a temporary of known size lies."""

    operand: int
    offset: int
    nbytes: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class Arena:
    """One block of memory, its slots as arrays and as arguments, and the requests of the steps that use nothing
    else. One run at a time has it.
    """

    __slots__ = ("readable", "requests", "values", "writable")

    def __init__(self, slots: Sequence[Slot] = (), nbytes: int = 0, alignment: int = 1) -> None:
        raw = np.empty(nbytes + alignment, np.uint8)
        block = raw[-raw.ctypes.data % alignment :] if alignment > 1 else raw
        self.values: dict[int, NDArray] = {
            s.operand: block[s.offset : s.offset + s.nbytes].view(s.dtype).reshape(s.shape)
            for s in slots
        }
        self.writable = {i: HostMemory(array) for i, array in self.values.items()}
        self.readable = {i: HostMemory(lent(array)) for i, array in self.values.items()}
        self.requests: dict[StepRunner, Request] = {}


NO_ARENA: Final = Arena()
"""Of a plan without temporaries of known size."""


def slots_of(model: Model, layout: ArenaLayout) -> tuple[Slot, ...]:
    """The slots of *model*'s temporaries."""
    operands = model.entry.operands
    return tuple(
        Slot(i, offset, nbytes, operands[i].dtype.numpy, shape)
        for i, (offset, nbytes) in layout.offsets.items()
        if (shape := static_shape(operands[i].shape)) is not None
    )
