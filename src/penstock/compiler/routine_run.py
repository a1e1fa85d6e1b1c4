"""Evaluates routines in Python, statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.routine import Assign, Block, If, Load, Routine, Store, While
from penstock.errors import GeneralFailure
from penstock.interrupts import checkpoint
from penstock.ir import NDArray


class RoutineRun:
    """One run of *routine*, which writes *written*. *values* returns the elements of a tensor that
    it reads. Raises `GeneralFailure` for an element outside its tensor.
    """

    def __init__(
        self, routine: Routine, written: NDArray, values: Callable[[int], NDArray]
    ) -> None:
        self._variables: list[Any] = [dtype.numpy.type(0) for dtype in routine.variables]
        self._types = [dtype.numpy.type for dtype in routine.variables]
        self._written = written.reshape(-1)
        read = [values(tensor).reshape(-1) for tensor in routine.reads]
        self._sources = [*read, self._written]
        self._block(routine.body)

    def _block(self, block: Block) -> None:
        variables = self._variables
        for statement in block:
            match statement:
                case Assign(variable, value, arguments):
                    given = [variables[a] for a in arguments]
                    made = evaluate(value, given, _no_table)
                    variables[variable] = self._types[variable](made)
                case Load(variable, number, index):
                    source = self._sources[number]
                    variables[variable] = source[self._place(source, index)]
                case Store(index, variable):
                    self._written[self._place(self._written, index)] = variables[variable]
                case If(condition, body):
                    if variables[condition]:
                        self._block(body)
                case While():
                    self._loop(statement)

    def _loop(self, loop: While) -> None:
        self._block(loop.before)
        while self._variables[loop.condition]:
            checkpoint()
            self._block(loop.body)
            self._block(loop.before)

    def _place(self, array: NDArray, index: int) -> int:
        place = int(self._variables[index])
        if not 0 <= place < array.size:
            raise GeneralFailure(f"a routine accesses element {place} of {array.size}")
        return place


def _no_table(number: int) -> NDArray:
    raise GeneralFailure(f"a routine looks up table {number}")


__all__ = ["RoutineRun"]
