"""Copies of a state's tensors into and out of an interpreter, adjacent tensors in one copy.

A state has many small tensors. If they are adjacent on both sides, with only unused bytes
between them (`penstock.hal.PaddedBytes`), one copy of the whole range replaces a copy of each.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from penstock.driverkit.request_arrays import unknown_memory
from penstock.hal import HostMemory, NoValue, PaddedBytes, RequestArgument
from penstock.ir import Model, NDArray

ALIGNMENT: Final = 64
"""LiteRT's tensors begin at multiples of this many bytes; the bytes between are unused."""

MOST_BYTES: Final = 1 << 20
"""Most bytes of arrays that are remembered for the next run, which keeps the arrays alive."""

MOST_KNOWN: Final = 4
"""Greatest number of sets of arrays that are remembered. A double-buffered state has two."""

Arguments: TypeAlias = tuple[RequestArgument, ...]
Pieces: TypeAlias = list[tuple[NDArray, NDArray]]
"""Pairs of a tensor's view and the array that is copied to or from that view."""


class AdjacentTensors:
    """Tensors that never move, by their views *places*, and copies of arrays to or from them."""

    def __init__(self, places: Sequence[NDArray]) -> None:
        self._places = places
        self._remembers = sum(p.nbytes for p in places) <= MOST_BYTES
        self._known: deque[tuple[tuple[HostMemory, ...], Pieces]] = deque(maxlen=MOST_KNOWN)

    def pieces(self, arguments: Arguments) -> Pieces | None:
        """The copies for *arguments*, one for each place; None if one is not an array."""
        for known, pieces in self._known:
            if known == arguments:
                return pieces
        arrays = tuple([a for a in arguments if type(a) is HostMemory])
        if len(arrays) != len(self._places):
            return None
        pieces = merged(self._places, [a.array for a in arrays])
        # Only merged pairs belong to a state. Other arrays of the caller are not kept alive.
        if self._remembers and len(pieces) < len(arrays):
            self._known.append((arrays, pieces))
        return pieces


class _Run(NamedTuple):
    """A pair of place and array: addresses, size, and the owner of the array's bytes."""

    place: int
    array: int
    nbytes: int
    owner: PaddedBytes | None
    first: int


def merged(places: Sequence[NDArray], arrays: Sequence[NDArray]) -> Pieces:
    """*places* with *arrays*, in order. Pairs that are adjacent on both sides, within memory of one
    owner, become one pair of flat bytes.
    """
    runs: list[list[_Run]] = []
    for at, (place, array) in enumerate(zip(places, arrays, strict=True)):
        owner = _owner(array)
        places_at = (0, 0) if owner is None else (_address(place), _address(array))
        run = _Run(*places_at, place.nbytes, owner, at)
        group = runs[-1] if runs else None
        if group is not None and _follows(group[-1], run):
            group.append(run)
        else:
            runs.append([run])
    found: Pieces = []
    for group in runs:
        first, last = group[0], group[-1]
        if len(group) == 1 or first.owner is None:
            found += [(places[r.first], arrays[r.first]) for r in group]
            continue
        nbytes = last.place + last.nbytes - first.place
        begin = first.array - _address(first.owner)
        owned: NDArray = first.owner[begin : begin + nbytes].view(np.ndarray)
        if not arrays[first.first].flags.writeable:
            owned = owned.view()
            owned.setflags(write=False)
        found.append((_bytes_at(first.place, nbytes), owned))
    return found


def _follows(before: _Run, run: _Run) -> bool:
    """Whether *run* follows *before* on both sides with only padding between them."""
    step = run.place - before.place
    return (
        step == run.array - before.array
        and step == before.nbytes + -before.nbytes % ALIGNMENT
        and before.place % ALIGNMENT == 0
        and run.owner is before.owner
        and run.owner is not None
    )


def _owner(array: NDArray) -> PaddedBytes | None:
    """The padded bytes that *array* is a view of; None if bytes behind the array may be in use."""
    owner: PaddedBytes | None = None
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, PaddedBytes):
            owner = base
        base = base.base
    return owner


def _address(array: NDArray) -> int:
    return int(array.__array_interface__["data"][0])


def _bytes_at(address: int, nbytes: int) -> NDArray:
    """A view of LiteRT's memory, valid as long as its interpreter lives."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class Interpreter(Protocol):
    """The part of a `Runner` that copies need."""

    inputs: Sequence[NDArray]
    outputs: Sequence[NDArray]
    state_tensors: tuple[AdjacentTensors, AdjacentTensors] | None


class StateCopies:
    """Copies the arguments of requests with a state: *read* and *written* are the positions of the
    state's arrays among the *counts* of inputs and outputs.
    """

    def __init__(
        self, read: Sequence[int], written: Sequence[int], counts: tuple[int, int]
    ) -> None:
        self._read, self._written = tuple(read), tuple(written)
        self._of_read, self._of_written = _getter(self._read), _getter(self._written)
        self._inputs = tuple([k for k in range(counts[0]) if k not in self._read])
        self._outputs = tuple([k for k in range(counts[1]) if k not in self._written])

    def write_inputs(self, runner: Interpreter, arguments: Arguments) -> None:
        """Copies the arrays of *arguments* into the input tensors of *runner*."""
        views, positions = runner.inputs, self._inputs
        tensors = runner.state_tensors or self._state_tensors(runner)
        pieces = tensors[0].pieces(self._of_read(arguments))
        if pieces is None:
            positions = tuple(range(len(views)))
        for place, part in pieces or ():
            place[...] = part
        for k in positions:
            argument = arguments[k]
            if type(argument) is not HostMemory:
                raise unknown_memory(argument)
            views[k][...] = argument.array

    def read_outputs(self, runner: Interpreter, arguments: Arguments) -> None:
        """Copies the output tensors of *runner* into the arrays of *arguments*."""
        views, positions = runner.outputs, self._outputs
        tensors = runner.state_tensors or self._state_tensors(runner)
        pieces = tensors[1].pieces(self._of_written(arguments))
        if pieces is None:
            positions = tuple(range(len(views)))
        for place, part in pieces or ():
            part[...] = place
        for k in positions:
            wanted = arguments[k]
            if type(wanted) is HostMemory:
                wanted.array[...] = views[k]
            elif type(wanted) is not NoValue:
                raise unknown_memory(wanted)

    def _state_tensors(self, runner: Interpreter) -> tuple[AdjacentTensors, AdjacentTensors]:
        tensors = runner.state_tensors = (
            AdjacentTensors([runner.inputs[k] for k in self._read]),
            AdjacentTensors([runner.outputs[k] for k in self._written]),
        )
        return tensors


def _getter(positions: tuple[int, ...]) -> Callable[[Arguments], Arguments]:
    """A getter of arguments at *positions*, at least two; a slice if they are consecutive."""
    first, last = positions[0], positions[-1]
    if positions == tuple(range(first, last + 1)):
        return itemgetter(slice(first, last + 1))
    return itemgetter(*positions)


def state_copies(model: Model) -> StateCopies | None:
    """The copies for requests to *model*; None unless it has a state of several arrays."""
    positions = state_positions(model)
    entry = model.entry
    return positions and StateCopies(*positions, (len(entry.inputs), len(entry.outputs)))


def state_positions(model: Model) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The positions of a state's arrays among the inputs and the outputs of *model*; None unless
    there are several.
    """
    entry = model.entry
    given, made = {p.input for p in entry.states}, {p.output for p in entry.states}
    read = tuple(k for k, i in enumerate(entry.inputs) if i in given)
    written = tuple(k for k, i in enumerate(entry.outputs) if i in made)
    return (read, written) if len(read) > 1 and len(written) > 1 else None
