"""`ScribblingDevice`: a device that writes where it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from penstock.hal import Device, ExecutionResult, HostMemory, PoolArgument, Request
from penstock.ir import NDArray
from penstock.memory import map_memory
from penstock.testing.doubles.intercepting import InterceptingDevice

T = TypeVar("T")

Where: TypeAlias = Literal["inputs", "behind", "before"]

DAMAGED_BYTES: Final = 8
"""How much of an output `damage_outputs` turns: an element of any type, whole."""


class ScribblingDevice(InterceptingDevice):
    """Writes where it must not, after every run: over its *inputs*, or *behind* or *before* its
    outputs.

    One byte each. Behind and before are possible in pools alone: an array of the caller's has no
    memory around it.
    """

    def __init__(self, device: Device, where: Where, name: str | None = None) -> None:
        super().__init__(device, name)
        self.where: Where = where

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result = proceed()
        if isinstance(result, ExecutionResult):
            scribble(arguments[0], self.where)
        return result


def scribble(request: Request, where: Where) -> None:
    """Turns one byte over each input of *request*, or behind or before each output."""
    over = request.inputs if where == "inputs" else request.outputs
    for argument in over:
        if isinstance(argument, HostMemory):
            if where == "inputs":
                _turn(argument.array, 1)
        elif isinstance(argument, PoolArgument):
            place = argument.location
            at = {"inputs": place.offset, "before": place.offset - 1}.get(
                where, place.offset + place.length
            )
            with map_memory(request.pools[place.pool]) as mapping:
                if 0 <= at < mapping.array.size:
                    mapping.array[at] ^= 0xFF


def damage_outputs(request: Request) -> None:
    """Turns the bits of the first bytes of every output of *request*."""
    for argument in request.outputs:
        if isinstance(argument, HostMemory):
            _turn(argument.array, DAMAGED_BYTES)
        elif isinstance(argument, PoolArgument):
            place = argument.location
            with map_memory(request.pools[place.pool]) as mapping:
                _turn(mapping.array[place.offset : place.offset + place.length], DAMAGED_BYTES)


def _turn(array: NDArray, count: int) -> None:
    array.reshape(-1).view(np.uint8)[:count] ^= 0xFF
