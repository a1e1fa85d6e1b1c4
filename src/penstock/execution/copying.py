"""Copies that the runtime makes by itself, each with its receipt."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.execution.arena import lent
from penstock.execution.results import allocate, shaped
from penstock.ir import NDArray, Operand
from penstock.memory.copies import STAGED

if TYPE_CHECKING:
    from penstock.memory.bound import BoundMemory


def copied(
    value: NDArray,
    copies: list[CopyReceipt],
    route: tuple[str, str],
    reason: str,
    *,
    step: int | None = None,
    operand: int | None = None,
) -> NDArray:
    """*value* in memory of its own; *route* says from where to where, for the receipt that is added
    to *copies*.
    """
    began = perf_counter_ns()
    kept = np.array(value)
    spent = perf_counter_ns() - began
    copies.append(CopyReceipt(value.nbytes, *route, reason, step, operand, began, spent))
    return kept


def copy_over(
    target: NDArray,
    value: NDArray,
    copies: list[CopyReceipt],
    route: tuple[str, str],
    reason: str,
    *,
    step: int | None = None,
    operand: int | None = None,
) -> None:
    """Copies *value* over *target*, likewise."""
    began = perf_counter_ns()
    np.copyto(target, value)
    spent = perf_counter_ns() - began
    copies.append(CopyReceipt(value.nbytes, *route, reason, step, operand, began, spent))


class Copying:
    """Copies at the boundary of one step, or of the run, each with its receipt in *copies*."""

    def __init__(self, step: int | None, device: str, copies: list[CopyReceipt]) -> None:
        self._step, self._device, self._copies = step, device, copies
        self.reason = f"device {device} shares no host memory"

    def copy(self, destination: NDArray, source: NDArray, operand: int, *, out: bool) -> None:
        """Copies *source* over *destination*, from the device to the host (*out*) or the other way."""
        began = perf_counter_ns()
        np.copyto(destination, source)
        places = (self._device, "host") if out else ("host", self._device)
        self._copies.append(
            CopyReceipt(
                source.nbytes,
                *places,
                self.reason,
                self._step,
                operand,
                began,
                perf_counter_ns() - began,
            )
        )

    def fetch(self, memory: BoundMemory, operand: int) -> NDArray:
        """The value of *memory*, which the device does not take, in the host's; where the host sees
        it, as it is.
        """
        if (array := memory.array) is not None:
            return lent(array)
        began = perf_counter_ns()
        value = memory.read()
        self._moved(value.nbytes, memory.name, "host", operand, began)
        self._staged(memory, value.nbytes, operand)
        return value

    def put(self, memory: BoundMemory, value: NDArray, operand: int) -> None:
        """Puts *value* into *memory*, which the device did not take."""
        began = perf_counter_ns()
        memory.write(value)
        self._moved(value.nbytes, "host", memory.name, operand, began)
        self._staged(memory, value.nbytes, operand)

    def _staged(self, memory: BoundMemory, nbytes: int, operand: int) -> None:
        """The copies made on the way, whose time is that of the one before."""
        for _ in range(memory.staged):
            self._copies.append(CopyReceipt(nbytes, "host", "host", STAGED, self._step, operand))

    def _moved(
        self, nbytes: int, source: str, destination: str, operand: int, began_ns: int
    ) -> None:
        spent = perf_counter_ns() - began_ns
        reason = f"{self._device} does not take it as it is"
        self._copies.append(
            CopyReceipt(nbytes, source, destination, reason, self._step, operand, began_ns, spent)
        )

    def packed(self, pack: Callable[[], bytes], operand: int) -> bytes:
        """What *pack* makes of strings for the device."""
        began = perf_counter_ns()
        content = pack()
        self._strings(len(content), ("host", self._device), operand, began)
        return content

    def unpacked(self, flat: NDArray, operand: Operand, shape: tuple[int, ...], i: int) -> NDArray:
        """The strings that the device left at the start of *flat*, as operand *i*."""
        began = perf_counter_ns()
        value = shaped(flat, operand, shape)
        self._strings(sum(map(len, value.flat)), (self._device, "host"), i, began)
        return value

    def _strings(self, nbytes: int, route: tuple[str, str], operand: int, began_ns: int) -> None:
        spent = perf_counter_ns() - began_ns
        reason = "strings travel in TFLite's string-tensor layout"
        self._copies.append(
            CopyReceipt(nbytes, *route, reason, self._step, operand, began_ns, spent)
        )

    def home(self, value: NDArray, operand: int) -> NDArray:
        """*value*, which lies in the device's memory, in memory of its own. Strings are objects
        already.
        """
        if value.dtype.hasobject:
            return value
        kept = allocate(value.shape, value.dtype)
        self.copy(kept, value, operand, out=True)
        return kept

    def away(self, value: NDArray, operand: int) -> NDArray:
        """*value* in memory that only the device has."""
        lent_away = allocate(value.shape, value.dtype)
        self.copy(lent_away, value, operand, out=False)
        return lent_away
