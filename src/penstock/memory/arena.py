"""Offsets for values that share one block of memory because they do not live at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from penstock.errors import InputError, ShapeOverflow
from penstock.hal import MemoryPreference
from penstock.ir import Operand
from penstock.ir.types import MAX_BYTES, element_count, is_static

MIN_ALIGNMENT: Final = 64
"""Bytes that every offset is a multiple of: a cache line, and the widest vector in use."""


class ArenaRequest(Struct, frozen=True):
    """One value: *nbytes* bytes, alive from step *first* to step *last*, both included.

    *alignment* is a power of two; *padding* the multiple of bytes that is kept free for it, so that
    whoever writes it may overwrite the rest (NNAPI section 6.8).
    """

    key: int
    nbytes: int
    first: int
    last: int
    alignment: int = MIN_ALIGNMENT
    padding: int = 1


class ArenaLayout(Struct, frozen=True):
    """Where each value lies: *offsets* maps its key to (offset, length) in bytes.

    The block takes *nbytes* bytes and must start at a multiple of *alignment*. *dynamic* are the
    keys that have no place because their size is known at run time only. Pickles.
    """

    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    nbytes: int = 0
    alignment: int = MIN_ALIGNMENT
    dynamic: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "offsets", MappingProxyType(dict(self.offsets)))

    def __hash__(self) -> int:
        return hash((self.nbytes, self.alignment, self.dynamic))

    def __reduce__(self) -> tuple[Any, ...]:
        return ArenaLayout, (dict(self.offsets), self.nbytes, self.alignment, self.dynamic)


def plan_arena(requests: Iterable[ArenaRequest], dynamic: Iterable[int] = ()) -> ArenaLayout:
    """Places every request so that no two that are alive at the same step overlap.

    Largest first, each in the lowest gap that fits (greedy by size: Pisarchyk and Lee, "Efficient
    Memory Management for Deep Neural Net Inference", 2020, section 5.2). Equal requests give equal
    layouts, in whatever order they come. Raises `InputError` for a request that contradicts itself
    or comes twice, `ShapeOverflow` where the block would exceed 64-bit sizes.
    """
    ordered = sorted(requests, key=lambda r: (-r.nbytes, r.first, r.last, r.key))
    if not ordered:
        return ArenaLayout(dynamic=tuple(sorted(dynamic)))
    from bisect import bisect

    offsets: dict[int, tuple[int, int]] = {}
    placed: list[tuple[int, int, ArenaRequest]] = []
    alignment, total = MIN_ALIGNMENT, 0
    for request in ordered:
        _check(request)
        if request.key in offsets:
            raise InputError(f"arena value {request.key} is requested twice")
        step = max(MIN_ALIGNMENT, request.alignment)
        reserved = _round_up(request.nbytes, request.padding)
        offset = _lowest_gap(placed, request, reserved, step)
        offsets[request.key] = (offset, request.nbytes)
        if reserved:
            at = bisect(placed, offset, key=lambda p: p[0])
            placed.insert(at, (offset, offset + reserved, request))
        alignment, total = max(alignment, step), max(total, offset + reserved)
    if total > MAX_BYTES:
        raise ShapeOverflow(f"an arena of {total} bytes exceeds 64-bit sizes")
    return ArenaLayout(
        {key: offsets[key] for key in sorted(offsets)}, total, alignment, tuple(sorted(dynamic))
    )


def lay_out(
    sizes: Iterable[int], preference: MemoryPreference, start: int = 0
) -> tuple[list[tuple[int, int]], int]:
    """(offset, padding) of values of *sizes* bytes one after the other, and where the last one with
    its padding ends.

    Raises `ShapeOverflow` beyond 64-bit sizes.
    """
    places, end = [], start
    for size in sizes:
        end += -end % preference.alignment
        padding = -size % preference.padding
        places.append((end, padding))
        end += size + padding
    if end > MAX_BYTES:
        raise ShapeOverflow(f"a layout of {end} bytes exceeds 64-bit sizes")
    return places, end


def array_nbytes(operand: Operand) -> int | None:
    """Bytes an array of this operand takes (packed types one byte an element); None where its shape
    is not fully known or its elements have no fixed size (strings, resources).
    """
    shape = operand.shape
    if shape is None or not is_static(shape) or operand.dtype.bits is None:
        return None
    return element_count(shape) * operand.dtype.numpy.itemsize


def _lowest_gap(
    placed: list[tuple[int, int, ArenaRequest]],
    request: ArenaRequest,
    reserved: int,
    alignment: int,
) -> int:
    """*placed* is in order of offsets; what is not alive together with *request* is no obstacle."""
    offset = 0
    for start, end, other in placed:
        if other.first > request.last or request.first > other.last:
            continue
        if offset + reserved <= start:
            break
        offset = max(offset, _round_up(end, alignment))
    return offset


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _check(request: ArenaRequest) -> None:
    if request.nbytes < 0 or request.first > request.last:
        raise InputError(
            f"arena value {request.key}: {request.nbytes} bytes from step {request.first} to {request.last}"
        )
    for label, value in (("alignment", request.alignment), ("padding", request.padding)):
        if value < 1 or value & (value - 1):
            raise InputError(f"arena value {request.key}: {label} {value} is not a power of two")
