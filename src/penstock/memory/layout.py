"""Layout of arrays in a region: an arena planned by lifetimes, and the layout of a pool."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import force_setattr

from penstock.arguments import check_kind, there_are
from penstock.errors import InputError, ShapeOverflow
from penstock.hal import MemoryPreference
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import MAX_BYTES, element_count, is_static, static_shape

if TYPE_CHECKING:
    from penstock.memory.pool import MemoryPool

MIN_ALIGNMENT: Final = 64
"""Alignment of every offset in bytes: a cache line, and the widest vector in use."""


class ArenaRequest(Struct, frozen=True):
    """One value: *nbytes* bytes, alive from step *first* to step *last*, both included.

    *alignment* is a power of two. The value gets room up to a multiple of *padding* bytes; a driver
    that writes the value may overwrite all of it (NNAPI section 6.8).
    """

    key: int
    nbytes: int
    first: int
    last: int
    alignment: int = MIN_ALIGNMENT
    padding: int = 1


class ArenaLayout(Struct, frozen=True):
    """Place of each value: *offsets* maps its key to (offset, length) in bytes.

    The block needs *nbytes* bytes and must start at a multiple of *alignment*. *dynamic* are the
    keys without a place, because their size is known at run time only. Can be pickled.
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
    layouts, in any order. Raises `InputError` for a request that contradicts itself or is repeated,
    `ShapeOverflow` if the block would exceed 64-bit sizes.
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
    """Places values of *sizes* bytes one after the other.

    Returns (offset, padding) of each value, and the end of the last one with its padding. Raises
    `ShapeOverflow` beyond 64-bit sizes.
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
    """Bytes of an array of this operand, with one byte for each element of a packed type.

    None if its shape is not fully known or its elements have no fixed size (strings, resources).
    """
    shape = operand.shape
    if shape is None or not is_static(shape) or operand.dtype.bits is None:
        return None
    return element_count(shape) * operand.dtype.numpy.itemsize


def _lowest_gap(
    placed: list[tuple[int, int, ArenaRequest]], request: ArenaRequest, reserved: int, step: int
) -> int:
    """Lowest offset that fits *request* among *placed*, which is in order of offsets.

    Requests that are not alive together with *request* may share its bytes.
    """
    offset = 0
    for start, end, other in placed:
        if other.first > request.last or request.first > other.last:
            continue
        if offset + reserved <= start:
            break
        offset = max(offset, _round_up(end, step))
    return offset


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _check(request: ArenaRequest) -> None:
    if request.nbytes < 0 or request.first > request.last:
        raise InputError(
            f"arena value {request.key}: {request.nbytes} bytes from step {request.first} to "
            f"{request.last}"
        )
    for label, value in (("alignment", request.alignment), ("padding", request.padding)):
        if value < 1 or value & (value - 1):
            raise InputError(f"arena value {request.key}: {label} {value} is not a power of two")


PLAIN = MemoryPreference()
"""The preference without any device: the strictest alignment of a C scalar, no padding."""


class Preferring(Protocol):
    """The part of a compiled model that a layout needs."""

    @property
    def inputs(self) -> tuple[Operand, ...]: ...
    @property
    def outputs(self) -> tuple[Operand, ...]: ...
    @property
    def input_memory(self) -> tuple[MemoryPreference, ...]: ...
    @property
    def output_memory(self) -> tuple[MemoryPreference, ...]: ...


class PoolPlan(Struct, frozen=True):
    """One value: *nbytes* bytes from *offset* on, and *padding* that a driver may overwrite."""

    offset: int
    nbytes: int
    padding: int
    dtype: DType
    shape: tuple[int, ...]


class PoolLayout:
    """Place of each value of `places` in a pool of `nbytes` bytes; `views` gives arrays.

    The pool begins at a page, so an offset is aligned as its address is.
    """

    def __init__(self, places: Mapping[str, PoolPlan], nbytes: int) -> None:
        check_kind(places, (dict, Mapping), "a layout has a mapping of names to PoolPlans")
        self.places: Mapping[str, PoolPlan] = MappingProxyType(dict(places))
        self.nbytes = nbytes

    @classmethod
    def of(
        cls,
        compiled: Preferring,
        inputs: Iterable[str] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> PoolLayout:
        """The layout of these inputs and outputs of a compiled model, by name; None: all of them.

        Raises `InputError` if the arguments are no compiled model or no list of names, for an
        unknown or repeated name, and for a value whose size is not known before a run.
        """
        if not hasattr(compiled, "input_memory"):
            raise InputError(f"a layout is of a compiled model, not of {type(compiled).__name__}")
        wanted: list[tuple[Operand, MemoryPreference]] = []
        sides = (
            ("input", inputs, compiled.inputs, compiled.input_memory),
            ("output", outputs, compiled.outputs, compiled.output_memory),
        )
        for kind, names, operands, preferences in sides:
            known = {o.name: (o, p) for o, p in zip(operands, preferences, strict=True)}
            if names is not None:
                check_names(f"{kind}s", names)
            chosen = [o.name for o in operands] if names is None else list(names)
            for name in chosen:
                if name not in known:
                    raise InputError(f"no {kind} is named {name!r}; {there_are(list(known))}")
                wanted.append(known[name])
        return cls.for_operands(wanted)

    @classmethod
    def for_operands(cls, wanted: Sequence[tuple[Operand, MemoryPreference]]) -> PoolLayout:
        """The layout of one value for each operand, in order; raises `InputError` as `of` does."""
        plans: dict[str, PoolPlan] = {}
        end = 0
        for operand, preference in wanted:
            name, dtype, shape = operand.name, operand.dtype, static_shape(operand.shape)
            if name in plans:
                raise InputError(f"two values are named {name!r}; lay them out apart")
            if shape is None or dtype is DType.STRING or dtype.bits is None:
                raise InputError(f"{name!r} has no size that is known before a run")
            nbytes = math.prod(shape) * dtype.numpy.itemsize
            ((offset, padding),), end = lay_out([nbytes], preference, end)
            plans[name] = PoolPlan(offset, nbytes, padding, dtype, shape)
        return cls(plans, end)

    def pool(self) -> MemoryPool:
        """A new anonymous pool of this size. Raises `ResourceExhaustedTransient`."""
        from penstock.memory.pool import MemoryPool

        return MemoryPool.anonymous(self.nbytes)

    def views(self, pool: MemoryPool) -> dict[str, NDArray]:
        """Arrays in *pool* by name. Raises `InputError` if it is no pool, or too small."""
        from penstock.memory.pool import MemoryPool

        if not isinstance(pool, MemoryPool):
            raise InputError(f"views of a layout lie in a MemoryPool, not in {type(pool).__name__}")
        return {
            name: pool.view(plan.dtype.numpy, plan.shape, plan.offset)
            for name, plan in self.places.items()
        }


def strictest(preferences: Iterable[MemoryPreference]) -> MemoryPreference:
    """The greatest alignment and padding of all preferences, at least 16 and 1."""
    every = [PLAIN, *preferences]
    return MemoryPreference(max(p.alignment for p in every), max(p.padding for p in every))


def check_names(label: str, names: object) -> None:
    """Raises `InputError` for an invalid argument *label*, a list of names or positions."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        one = f"; for one, [{names!r}]" if isinstance(names, str | int) else ""
        raise InputError(f"{label} takes a list of names or positions, not {names!r}{one}")
