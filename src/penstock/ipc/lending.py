"""Arguments of a request in memory that both sides can map, instead of in the caller's own.

The client's side lends: an array that lies in a live pool goes by its place there, any other is
staged, that is copied into a pool made for it and, for an output, back. The device's side borrows:
it maps the pools and makes arrays of the same types and shapes, so that a driver gets `HostMemory`
as it would in the caller's process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from penstock.errors import InvalidArgument, WireError
from penstock.hal import HostMemory, Memory, NoValue, PoolArgument, Request, TokenArgument
from penstock.ipc import wire
from penstock.ipc.staging import ALIGNMENT
from penstock.ir import DataLocation, DType, NDArray
from penstock.memory import MemoryPool

MAX_STAGED_BYTES: Final = 1 << 40
"""Bytes that one request may stage: sizes beyond it are mistakes."""

LentArgument: TypeAlias = PoolArgument | TokenArgument | wire.LentForm | NoValue


class Staged(NamedTuple):
    """Argument *position* of the inputs or the outputs, and where in the staging pool it lies."""

    position: int
    view: NDArray


class Lent(NamedTuple):
    """A request whose arguments all lie in *pools*. *incoming* is copied in before a run,
    *outgoing* out after it.
    """

    inputs: tuple[LentArgument, ...]
    outputs: tuple[LentArgument, ...]
    pools: tuple[Memory, ...]
    incoming: tuple[Staged, ...]
    outgoing: tuple[Staged, ...]


PlaceOf: TypeAlias = Callable[[NDArray], Any]
"""`penstock.memory.pool_of`, or its like: the (memory, offset) of the live pool that holds an
array, or None.
"""

PoolFor: TypeAlias = Callable[[int], MemoryPool]
"""A pool of at least that many bytes, for arrays that lie in none."""


def lend(request: Request, place_of: PlaceOf, pool_for: PoolFor, unit: int = ALIGNMENT) -> Lent:
    """*request* with every `HostMemory` by its place in a pool; staged arrays lie at multiples of
    *unit* bytes from the first byte of *pool_for* on. Nothing is copied yet.

    Raises `InvalidArgument` for an array that no other process can be given: one that is not
    C-contiguous, whose elements are Python objects, or an output that cannot be written; and for a
    pool that *request* has not.
    """
    pools = list(request.pools)
    waiting: list[tuple[bool, int, NDArray, tuple[int, ...] | None, int]] = []
    total = 0
    sides: list[list[LentArgument]] = []
    for is_output, arguments in ((False, request.inputs), (True, request.outputs)):
        side: list[LentArgument] = []
        for position, argument in enumerate(arguments):
            if not isinstance(argument, HostMemory):
                _check_pool(argument, len(request.pools), is_output, position)
                side.append(argument)
                continue
            array, dimensions = argument.array, argument.dimensions
            _check(array, is_output, position)
            place = place_of(array)
            if place is None:
                waiting.append((is_output, position, array, dimensions, total))
                total += array.nbytes + -array.nbytes % unit
                side.append(NoValue())
            else:
                pool = _number(pools, place.memory)
                side.append(_form(array, dimensions, pool, place.offset))
        sides.append(side)
    if not waiting:
        return Lent(tuple(sides[0]), tuple(sides[1]), tuple(pools), (), ())
    if total > MAX_STAGED_BYTES:
        raise InvalidArgument(f"a request whose arrays take {total} bytes outside of pools")
    staging = pool_for(max(1, total))
    pool = len(pools)
    pools.append(staging.memory)
    copies: tuple[list[Staged], list[Staged]] = [], []
    for is_output, position, array, dimensions, offset in waiting:
        sides[is_output][position] = _form(array, dimensions, pool, offset)
        view = staging.view(array.dtype, array.shape, offset)
        copies[is_output].append(Staged(position, view))
    return Lent(tuple(sides[0]), tuple(sides[1]), tuple(pools), tuple(copies[0]), tuple(copies[1]))


class Borrower:
    """The device's side of lent arrays. *regions* give the flat bytes of each pool of the request,
    asked once each.
    """

    def __init__(self, regions: Sequence[Callable[[], NDArray]]) -> None:
        self._regions = regions
        self._mapped: dict[int, NDArray] = {}

    def __call__(self, form: wire.LentForm, *, writeable: bool) -> HostMemory:
        """The argument that *form* describes, an array that can be written where *writeable*.
        Raises `WireError` for one that does not lie within its pool, or is not of a type that is
        lent, and what mapping raises.
        """
        dtype = DTYPES.get(form.dtype)
        if dtype is None:
            raise WireError(f"a lent array of the type {form.dtype[:40]!r}")
        pool, offset, length = form.location.pool, form.location.offset, form.location.length
        if len(form.shape) > wire.MAX_RANK or min(form.shape, default=0) < 0:
            raise WireError(f"a lent array of the shape {form.shape[: wire.MAX_RANK]}")
        if length != math.prod(form.shape) * dtype.itemsize:
            raise WireError(
                f"a lent array of {dtype.name} and shape {form.shape} in {length} bytes"
            )
        region = self._region(pool)
        if offset < 0 or offset + length > region.nbytes:
            raise WireError(
                f"a lent array at [{offset}, {offset + length}) of {region.nbytes} bytes"
            )
        array: NDArray = region[offset : offset + length].view(dtype).reshape(form.shape)
        if not writeable:
            array.flags.writeable = False
        return HostMemory(array, form.dimensions)

    def _region(self, pool: int) -> NDArray:
        if not 0 <= pool < len(self._regions):
            raise WireError(f"pool {pool} of {len(self._regions)} for a lent array")
        if pool not in self._mapped:
            self._mapped[pool] = self._regions[pool]()
        return self._mapped[pool]


def _form(
    array: NDArray, dimensions: tuple[int, ...] | None, pool: int, offset: int
) -> wire.LentForm:
    location = DataLocation(pool, offset, array.nbytes)
    return wire.LentForm(location, array.dtype.name, array.shape, dimensions)


def _check_pool(argument: object, pools: int, is_output: bool, position: int) -> None:
    # Behind the request's own pools come those that its arrays lie in.
    if isinstance(argument, PoolArgument) and not 0 <= argument.location.pool < pools:
        place = f"{'output' if is_output else 'input'} {position}"
        raise InvalidArgument(f"{place}: pool {argument.location.pool} of {pools}")


def _check(array: NDArray, is_output: bool, position: int) -> None:
    place = f"{'output' if is_output else 'input'} {position}"
    if array.dtype.name not in DTYPES:
        raise InvalidArgument(f"{place}: an array of {array.dtype} cannot be lent")
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{place}: host memory must be C-contiguous")
    if is_output and not array.flags.writeable:
        raise InvalidArgument(f"{place}: host memory of an output must be writeable")


def _number(pools: list[Memory], memory: Memory) -> int:
    for number, known in enumerate(pools):
        if known is memory:
            return number
    pools.append(memory)
    return len(pools) - 1


def _dtypes(kinds: Sequence[DType]) -> dict[str, np.dtype[Any]]:
    found = {}
    for kind in kinds:
        if kind.bits is not None and not (dtype := kind.numpy).hasobject:
            found[dtype.name] = dtype
    return found


DTYPES: Final = _dtypes(tuple(DType))
"""The types of arrays that can be lent, by their names: those of operands."""
