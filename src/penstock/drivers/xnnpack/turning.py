"""Requests whose arrays are a state: they come back with every other run, and are copied together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from penstock.drivers.xnnpack.arguments import unknown
from penstock.drivers.xnnpack.interpreter import Runner
from penstock.drivers.xnnpack.neighbours import Neighbours
from penstock.hal import HostMemory, NoValue, RequestArgument
from penstock.ir import Model


class Turning:
    """*read* and *written* are the positions of a state's arrays among the inputs and the outputs
    of a request.
    """

    def __init__(
        self, read: Sequence[int], written: Sequence[int], counts: tuple[int, int]
    ) -> None:
        self._read, self._written = tuple(read), tuple(written)
        self._of_read, self._of_written = _getter(self._read), _getter(self._written)
        self._inputs = tuple([k for k in range(counts[0]) if k not in self._read])
        self._outputs = tuple([k for k in range(counts[1]) if k not in self._written])

    def put(self, runner: Runner, arguments: tuple[RequestArgument, ...]) -> None:
        """Copies the arrays of *arguments* to where *runner* reads them."""
        views, positions = runner.inputs, self._inputs
        sides = runner.sides or self._sides(runner)
        pieces = sides[0].pieces(self._of_read(arguments))
        if pieces is None:
            positions = tuple(range(len(views)))
        else:
            for place, part in pieces:
                place[...] = part
        for k in positions:
            argument = arguments[k]
            if type(argument) is not HostMemory:
                raise unknown(argument)
            views[k][...] = argument.array

    def fetch(self, runner: Runner, arguments: tuple[RequestArgument, ...]) -> None:
        """Copies what *runner* made to the arrays of *arguments*."""
        views, positions = runner.outputs, self._outputs
        sides = runner.sides or self._sides(runner)
        pieces = sides[1].pieces(self._of_written(arguments))
        if pieces is None:
            positions = tuple(range(len(views)))
        else:
            for place, part in pieces:
                part[...] = place
        for k in positions:
            wanted = arguments[k]
            if type(wanted) is HostMemory:
                wanted.array[...] = views[k]
            elif type(wanted) is not NoValue:
                raise unknown(wanted)

    def _sides(self, runner: Runner) -> tuple[Neighbours, Neighbours]:
        sides = runner.sides = (
            Neighbours([runner.inputs[k] for k in self._read]),
            Neighbours([runner.outputs[k] for k in self._written]),
        )
        return sides


def _getter(
    positions: tuple[int, ...],
) -> Callable[[tuple[RequestArgument, ...]], tuple[RequestArgument, ...]]:
    """What takes the arguments at *positions*, two at the least; a slice, which is faster, where
    they follow one another.
    """
    first, last = positions[0], positions[-1]
    if positions == tuple(range(first, last + 1)):
        return itemgetter(slice(first, last + 1))
    return itemgetter(*positions)


def turning(model: Model) -> Turning | None:
    """For requests to *model*; None where it has no state of several arrays."""
    entry = model.entry
    given, made = {p.input for p in entry.states}, {p.output for p in entry.states}
    read = [k for k, i in enumerate(entry.inputs) if i in given]
    written = [k for k, i in enumerate(entry.outputs) if i in made]
    if len(read) < 2 or len(written) < 2:
        return None
    return Turning(read, written, (len(entry.inputs), len(entry.outputs)))
