"""Elementwise functions of large arrays, a part at a time: every pass but the first reads from the
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from penstock.interrupts import watched
from penstock.ir import NDArray

BLOCK: Final = 1 << 15
"""Elements of a part, about; and of an array that is worked on as a whole."""

Index: TypeAlias = "tuple[int | slice, ...]"


def by_parts(compute: Callable[..., NDArray], *operands: NDArray) -> NDArray:
    """*compute* of arrays that broadcast, whose results depend on the elements at their place
    alone.
    """
    for operand in operands:
        if operand.size > BLOCK:
            break
    else:
        return np.asarray(compute(*operands))
    shape = np.broadcast(*operands).shape
    if all(o.shape == shape and o.flags.c_contiguous for o in operands):
        flat = [o.reshape(-1) for o in operands]
        return _filled(compute, flat, flat[0].shape).reshape(shape)
    return _filled(compute, [np.broadcast_to(o, shape) for o in operands], shape)


def by_rows(compute: Callable[[NDArray], NDArray], x: NDArray) -> NDArray:
    """*compute* of an array, whose results have its shape and depend on their row along the last
    dimension.
    """
    if x.size <= BLOCK or x.ndim < 2:
        return np.asarray(compute(x))
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, BLOCK // rows.shape[1])
    made = [compute(rows[start : start + step]) for start in range(0, len(rows), step)]
    return np.concatenate(made).reshape(x.shape)


def _filled(
    compute: Callable[..., NDArray], operands: list[NDArray], shape: tuple[int, ...]
) -> NDArray:
    out: NDArray | None = None
    for part in parts(shape):
        made = compute(*(o[part] for o in operands))
        if out is None:
            out = np.empty(shape, made.dtype)
        out[part] = made
    return np.asarray(compute(*operands)) if out is None else out


def parts(shape: tuple[int, ...]) -> Iterator[Index]:
    """Indexes of parts of about `BLOCK` elements that together are an array of *shape*, in order."""
    if 0 in shape:
        return
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= BLOCK:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield ()
        return
    step = max(1, BLOCK // inner)
    for outer in watched(np.ndindex(shape[: axis - 1])):
        for start in watched(range(0, shape[axis - 1], step)):
            yield (*outer, slice(start, start + step))
