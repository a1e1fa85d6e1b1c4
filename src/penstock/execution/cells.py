"""Device memory of values that stay on a device between runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
from msgspec import Struct

from penstock.ir import NDArray, Operand, Shape
from penstock.memory.buffer import DeviceBuffer, fetch_value, put_value
from penstock.memory.copies import CopyReceipt, receipts_of


class Loop(Struct, frozen=True):
    """One fed-back value: the operand that a run reads, and the operand that it writes.

    *position* and *input_position* are those of the output and input among the model's ordinary
    ones. For a variable of the network, *variable* is its index instead.
    """

    name: str
    input: Operand
    output: Operand
    read: int
    written: int
    input_position: int = -1
    position: int = -1
    variable: int = -1
    shape: Shape = None


class Cells:
    """Two device buffers a value: a run reads the first, writes the second, and they swap."""

    def __init__(self, made: dict[Loop, tuple[DeviceBuffer, DeviceBuffer]]) -> None:
        self._made = made
        self.variables = tuple(p.variable for p in made if p.variable >= 0)

    def of(self, loops: Sequence[Loop]) -> list[tuple[DeviceBuffer, DeviceBuffer]]:
        """For each of *loops*, the buffer to read and the buffer to write."""
        return [self._made[loop] for loop in loops]

    def turn(self) -> None:
        """Swaps the buffers: the next run reads what this run wrote."""
        self._made = {loop: (written, read) for loop, (read, written) in self._made.items()}

    def _variables(self) -> Iterator[tuple[Loop, DeviceBuffer]]:
        """The variables, each with the buffer that has its present value."""
        return ((loop, read) for loop, (read, _) in self._made.items() if loop.variable >= 0)

    def fetch_variables(self, copies: list[CopyReceipt]) -> dict[int, NDArray]:
        """Copies the present values of the variables to the host; records each copy in *copies*."""
        found = {}
        for loop, read in self._variables():
            began = perf_counter_ns()
            value, count = fetch_value(read)
            route = (read.device or "pool", "host")
            reason = f"the state has its value of {loop.name!r} on the device of another model"
            copies += receipts_of(count, value.nbytes, route, reason, began)
            found[loop.variable] = value
        return found

    def put_variables(self, values: Sequence[NDArray], copies: list[CopyReceipt]) -> None:
        """Replaces the values of the variables; records each copy in *copies*."""
        for loop, read in self._variables():
            reason = f"the state has another value of {loop.name!r} than its device"
            put(read, values[loop.variable], loop, reason, copies)

    def close(self) -> None:
        """Frees the buffers."""
        for pair in self._made.values():
            for buffer in pair:
                buffer.close()


def put(
    buffer: DeviceBuffer, value: Any, loop: Loop, reason: str, copies: list[CopyReceipt]
) -> None:
    """Writes *value* of *loop* to *buffer*; records the copies, with *reason*, in *copies*."""
    array, began = np.asarray(value), perf_counter_ns()
    count = put_value(buffer, array)
    route = ("host", buffer.device or "pool")
    copies += receipts_of(count, array.nbytes, route, reason, began, loop.read)
