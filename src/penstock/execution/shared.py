"""Memory of a series of runs that processes share, so that what lies there is not copied between
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.execution.arena import Arena, Slot
from penstock.execution.results import is_sized
from penstock.ir import NDArray, Operand
from penstock.ir.types import static_shape
from penstock.memory import MemoryPool

ALIGNMENT: Final = 64


def in_a_pool(operands: Sequence[Operand]) -> list[NDArray | None]:
    """An array for each of the *operands* of known size, all in one pool, which lives as long as
    any of them.

    Raises `ResourceExhaustedTransient` where there is no room for it.
    """
    shapes = [static_shape(o.shape) if is_sized(o) else None for o in operands]
    sizes = [
        0 if shape is None else math.prod(shape) * o.dtype.numpy.itemsize
        for o, shape in zip(operands, shapes, strict=True)
    ]
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += size + -size % ALIGNMENT
    pool = MemoryPool.anonymous(max(end, 1))
    return [
        None if shape is None else pool.view(o.dtype.numpy, shape, start)
        for o, shape, start in zip(operands, shapes, starts, strict=True)
    ]


def arena_in_a_pool(slots: Sequence[Slot], nbytes: int, alignment: int) -> Arena:
    """An arena likewise."""
    pool = MemoryPool.anonymous(nbytes + alignment)
    return Arena(slots, nbytes, alignment, raw=pool.view(np.uint8, nbytes + alignment))
