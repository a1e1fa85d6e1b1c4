"""Requests that the device's side of a ring knows by number, and when another request may use the
same binding.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.hal import HostMemory, Memory, Request, RequestArgument
from penstock.ipc import ring
from penstock.ipc.lending import Lent
from penstock.memory import pool_of


class BoundRequest:
    """A request that the device's side knows as *number*, once *payload* has been sent. *pools* are
    the `id` of each memory that it lies in. It is bound until `drop`.
    """

    def __init__(
        self, number: int, payload: bytes, lent: Lent, pools: tuple[int, ...], request: Request
    ) -> None:
        self.number, self.pools = number, pools
        self.incoming, self.outgoing = lent.incoming, lent.outgoing
        self.is_staged = bool(lent.incoming or lent.outgoing)
        self.is_bound = True
        self.kind, self.payload = ring.BIND, payload
        self._staged_inputs = self._staged_outputs = _NONE
        arguments = len(request.inputs) + len(request.outputs)
        if arguments == len(lent.incoming) + len(lent.outgoing):
            self._staged_inputs = tuple([_form(a) for a in request.inputs])
            self._staged_outputs = tuple([_form(a) for a in request.outputs])
        self._request: weakref.ref[Request] | None = None
        self._inputs: tuple[_Known, ...] = ()
        self._outputs: tuple[_Known, ...] = ()
        self._pools: tuple[Memory, ...] = ()

    def sent(self) -> None:
        """The device's side has it."""
        self.kind, self.payload = ring.RUN, b""

    def drop(self) -> None:
        """It is bound no more, and keeps none of the memory that arrays were copied to."""
        self.is_bound = False
        self.incoming = self.outgoing = ()

    def takes(self, request: Request) -> bool:
        """Whether it is bound, and surely for *request* as well: all its arrays lie in NumPy's own
        memory, as those did that it was made for, and have their types and shapes.
        """
        return (
            self.is_bound
            and not request.pools
            and _same_forms(self._staged_inputs, request.inputs)
            and _same_forms(self._staged_outputs, request.outputs)
        )

    def remember(self, request: Request) -> None:
        """Takes *request* for the one that `is_for` knows at a look."""
        self._request = weakref.ref(request)
        self._inputs = tuple(map(_known, request.inputs))
        self._outputs = tuple(map(_known, request.outputs))
        self._pools = request.pools

    def is_for(self, request: Request) -> bool:
        """Whether it is bound, and *request* surely of the arguments of the one remembered: arrays
        are the same objects.
        """
        known = self._request
        if known is None or not self.is_bound:
            return False
        return known() is request or (
            _alike(self._inputs, request.inputs)
            and _alike(self._outputs, request.outputs)
            and (request.pools is self._pools or _identical(request.pools, self._pools))
        )


_Form: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...] | None, bool]
"""Type, shape and refined dimensions of an array that is copied, and whether it can be written."""

_NONE: Final[tuple[_Form, ...]] = ((None, (), None, False),)


def _form(argument: RequestArgument) -> _Form:
    if not isinstance(argument, HostMemory):
        return _NONE[0]
    array = argument.array
    return array.dtype, array.shape, argument.dimensions, bool(array.flags.writeable)


def _same_forms(forms: tuple[_Form, ...], arguments: tuple[RequestArgument, ...]) -> bool:
    if len(forms) != len(arguments):
        return False
    for (dtype, shape, dimensions, writeable), argument in zip(forms, arguments, strict=True):
        if type(argument) is not HostMemory:
            return False
        array = argument.array
        flags, owner = array.flags, array.base
        if array.shape != shape or array.dtype != dtype or argument.dimensions != dimensions:
            return False
        if flags.writeable is not writeable or not flags.c_contiguous:
            return False
        # What NumPy allocated lies in no pool.
        if not flags.owndata and (type(owner) is not np.ndarray or not owner.flags.owndata):
            return False
    return True


_Known: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...] | None]
"""An argument to compare others with: an array's are weak, so that it may go."""


def key_of(target: int, request: Request) -> tuple[Any, ...]:
    """What two requests to *target* share that may use one binding: places and shapes, not
    contents. Memory is told apart by its `id`: who keeps the key forgets it when the memory is
    gone.
    """
    return (
        target,
        tuple(map(_part, request.inputs)),
        tuple(map(_part, request.outputs)),
        tuple(map(id, request.pools)),
    )


def _known(argument: RequestArgument) -> _Known:
    if isinstance(argument, HostMemory):
        return weakref.ref(argument.array), argument.array.shape, argument.dimensions
    return argument, (), None


def _alike(known: tuple[_Known, ...], arguments: tuple[RequestArgument, ...]) -> bool:
    if len(known) != len(arguments):
        return False
    for (value, shape, dimensions), argument in zip(known, arguments, strict=True):
        if type(argument) is HostMemory:
            array = argument.array
            if type(value) is not weakref.ref or value() is not array or array.shape != shape:
                return False
            if argument.dimensions != dimensions:
                return False
        elif value is not argument:
            return False
    return True


def _identical(pools: tuple[Memory, ...], others: tuple[Memory, ...]) -> bool:
    return len(pools) == len(others) and all(map(operator.is_, pools, others))


def _part(argument: RequestArgument) -> Any:
    if not isinstance(argument, HostMemory):
        return argument
    array = argument.array
    place, flags = pool_of(array), array.flags
    lies = None if place is None else (id(place.memory), place.offset)
    kept = flags.c_contiguous, flags.writeable
    return lies, array.dtype, array.shape, argument.dimensions, kept
