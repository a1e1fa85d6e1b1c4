"""Two arrays for each variable that runs change: one run reads the first and writes the second, the
next the other way.

A run that fails has written only what nobody reads, so that nothing is copied to keep the state as
it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from penstock.execution.arena import Places, lent
from penstock.execution.results import side_by_side
from penstock.hal import HostMemory
from penstock.ir import DType, Model, NDArray
from penstock.ir.types import static_shape


class TurningPort(Struct, frozen=True):
    """A variable with the operands that a run reads and writes it as, if it does."""

    variable: int
    input: int | None
    output: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def turning_ports(model: Model) -> tuple[TurningPort, ...]:
    """The state ports of the entry subgraph; none where a variable's size or whose memory its new
    value is shows only in a run.
    """
    entry = model.entry
    apart = [*entry.ordinary_inputs, *entry.ordinary_outputs]
    found: list[TurningPort] = []
    for port in entry.states:
        used = [i for i in (port.input, port.output) if i is not None]
        operands = [entry.operands[i] for i in used]
        shapes = {static_shape(o.shape) for o in operands}
        dtypes = {o.dtype for o in operands}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is None or len(dtypes) != 1 or DType.STRING in dtypes:
            return ()
        if any(o.is_constant for o in operands) or any(i in apart for i in used):
            return ()
        if port.input == port.output:
            return ()
        apart += used
        found.append(
            TurningPort(port.variable, port.input, port.output, shape, operands[0].dtype.numpy)
        )
    if len({p.variable for p in found}) != len(found):
        return ()
    return tuple(found)


class Turn(Places):
    """What one run reads and writes; *after* are all variables' values once it has succeeded, those
    among them that it changes *written*.

    It is *known* that what it writes has a value once a run has.
    """

    __slots__ = ("after", "known", "written")

    def __init__(
        self,
        read: dict[int, NDArray],
        written: dict[int, NDArray],
        after: list[NDArray],
        variables: frozenset[int],
    ) -> None:
        super().__init__(
            read | written,
            {i: HostMemory(lent(array)) for i, array in read.items()},
            {i: HostMemory(array) for i, array in written.items()},
        )
        self.after, self.written = after, variables
        self.known = False


class Turns:
    """The two turns over *values*, the present ones by variable, which are read first."""

    __slots__ = ("_next", "now", "ports")

    def __init__(self, ports: Sequence[TurningPort], values: Sequence[NDArray]) -> None:
        self.ports = ports
        here = list(values)
        there = list(values)
        written = [p for p in ports if p.output is not None]
        fresh = side_by_side([(p.shape, p.dtype) for p in written])
        for port, array in zip(written, fresh, strict=True):
            there[port.variable] = array
        self.now, self._next = _turn(ports, here, there), _turn(ports, there, here)

    def pass_on(self) -> None:
        """The other turn is next."""
        self.now, self._next = self._next, self.now


def may_turn(ports: Sequence[TurningPort], values: Sequence[NDArray]) -> bool:
    """Whether *values* are as *ports* declare, so that they can be written over."""
    return all(
        (value := values[p.variable]).shape == p.shape
        and value.dtype == p.dtype
        and value.flags.c_contiguous
        and value.flags.writeable
        for p in ports
    )


def _turn(ports: Sequence[TurningPort], before: list[NDArray], after: list[NDArray]) -> Turn:
    return Turn(
        {p.input: before[p.variable] for p in ports if p.input is not None},
        {p.output: after[p.variable] for p in ports if p.output is not None},
        after,
        frozenset(p.variable for p in ports if p.output is not None),
    )
