"""Double-buffered state. Each run reads one buffer of a variable and writes the other, then they
swap. A failed run therefore leaves the state unchanged without a copy.
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


class BufferedVariable(Struct, frozen=True):
    """A variable, and the operands by which a run reads and writes it; None if the run does not."""

    variable: int
    input: int | None
    output: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def buffered_variables(model: Model) -> tuple[BufferedVariable, ...]:
    """The variables of the entry subgraph. Empty if double buffering is impossible: the size of a
    variable is known only in a run, or its new value shares memory with another value.
    """
    entry = model.entry
    apart = [*entry.ordinary_inputs, *entry.ordinary_outputs]
    found: list[BufferedVariable] = []
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
            BufferedVariable(port.variable, port.input, port.output, shape, operands[0].dtype.numpy)
        )
    if len({p.variable for p in found}) != len(found):
        return ()
    return tuple(found)


class StateBuffers(Places):
    """The buffers that one run reads and writes.

    *after* holds the value of every variable once the run has succeeded; *written* are the
    variables that it changes. *known* is set once a run has given the written buffers a value.
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


class DoubleBuffer:
    """Two sets of buffers over *values*, the present value of each variable. The first run reads these."""

    __slots__ = ("_next", "now", "ports")

    def __init__(self, ports: Sequence[BufferedVariable], values: Sequence[NDArray]) -> None:
        self.ports = ports
        first = list(values)
        second = list(values)
        written = [p for p in ports if p.output is not None]
        fresh = side_by_side([(p.shape, p.dtype) for p in written])
        for port, array in zip(written, fresh, strict=True):
            second[port.variable] = array
        self.now, self._next = _buffers(ports, first, second), _buffers(ports, second, first)

    def swap(self) -> None:
        """The next run uses the other set."""
        self.now, self._next = self._next, self.now


def can_double_buffer(ports: Sequence[BufferedVariable], values: Sequence[NDArray]) -> bool:
    """Whether *values* have the shape and dtype that *ports* declare, and are contiguous and writable."""
    return all(
        (value := values[p.variable]).shape == p.shape
        and value.dtype == p.dtype
        and value.flags.c_contiguous
        and value.flags.writeable
        for p in ports
    )


def _buffers(
    ports: Sequence[BufferedVariable], before: list[NDArray], after: list[NDArray]
) -> StateBuffers:
    return StateBuffers(
        {p.input: before[p.variable] for p in ports if p.input is not None},
        {p.output: after[p.variable] for p in ports if p.output is not None},
        after,
        frozenset(p.variable for p in ports if p.output is not None),
    )
