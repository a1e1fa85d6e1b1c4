"""Dynamic programming: the cheapest assignment of operations to devices along one order.

The state is the device of the previous operation. The result is exact if every operation reads only
the output of its predecessor. Otherwise it is an approximation, which the judge of plans corrects.
A value from further back is priced by the device that the cheapest path so far gave its writer.
Operations between two parts on one device open a new step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.interrupts import polled
from penstock.ir import Model
from penstock.partitioning.prediction import Judge
from penstock.partitioning.support import SupportTable

LONGEST_LOOK_BACK: Final = 256
"""Maximum number of operations between a value's writer and reader that are looked back over."""

Path: TypeAlias = "tuple[int, Path | None]"
"""The device of the last operation, and the path before it."""

_Front: TypeAlias = "dict[tuple[int, int], tuple[float, Path | None]]"
"""The cheapest cost and path, by last device and number of steps (0: not counted)."""


def is_chain(model: Model) -> bool:
    """Whether each operation reads only constants, entry inputs and its predecessor."""
    before: frozenset[int] = frozenset()
    written: set[int] = set()
    read: set[int] = set()
    operands = model.operands
    for operation in model.operations:
        inputs = frozenset(operation.inputs)
        outside = {i for i in inputs - written if operands[i].has_value}
        outside = {i for i in outside if not operands[i].is_constant}
        if not (inputs & written) <= before or outside & read:
            return False
        read |= outside
        before = frozenset(operation.outputs)
        written |= before
    return True


def cheapest(
    table: SupportTable,
    judge: Judge,
    order: Sequence[int],
    *,
    reference_bias: float = 1.0,
    most_steps: int | None = None,
) -> list[int] | None:
    """The candidate of each operation along *order*, which must be a valid execution order.

    Every operation needs a candidate that may run it. Costs on the reference are multiplied by
    *reference_bias*. Of equal costs the reference is preferred, then the first candidate. With
    *most_steps* the path opens at most that many steps; None if there is no such path.
    """
    search = _Search(table, judge, order, reference_bias, most_steps)
    front: _Front = {}
    for at in polled(range(len(order))):
        front = search.extend(front, at)
        if not front:
            return None
    best: tuple[float, Path | None] = (math.inf, None)
    rank = {device: at for at, device in enumerate(search.preferred)}
    for state in sorted(front, key=lambda state: (rank[state[0]], state[1])):
        if front[state][0] < best[0]:
            best = front[state]
    path, assignment = best[1], [0] * len(order)
    for index in reversed(order):
        if path is not None:
            assignment[index], path = path
    return assignment


class _Search:
    def __init__(
        self,
        table: SupportTable,
        judge: Judge,
        order: Sequence[int],
        reference_bias: float,
        most_steps: int | None,
    ) -> None:
        self._most = most_steps
        self.model, self.prices, self.order = table.model, judge.prices, order
        self._judge = judge
        entry = self.model.entry
        names = range(len(table.candidates))
        self.preferred = sorted(names, key=lambda k: not table.candidates[k].is_reference)
        self._bias = [reference_bias if c.is_reference else 1.0 for c in table.candidates]
        self._answers = [c.answers for c in table.candidates]
        self._private = any(self.prices.moving)
        self._outputs = frozenset(entry.outputs)
        self._position = {index: at for at, index in enumerate(order)}
        self._writer = {
            o: i for i, operation in enumerate(entry.operations) for o in operation.outputs
        }

    def extend(self, front: _Front, at: int) -> _Front:
        """The cheapest path to each device for the operation at *at*, by number of steps."""
        index = self.order[at]
        row, opening = self.prices.operations[index], self.prices.steps
        reached: _Front = {}
        for device in self.preferred:
            if not self._answers[device][index].supported:
                continue
            own = row[device] * self._bias[device]
            if self._private:
                own += self._leaving(index, device)
            if at == 0:
                entering = self._entering(index, device, None, at) if self._private else 0.0
                cost = own + opening[device] + entering
                reached[device, 0 if self._most is None else 1] = cost, (device, None)
                continue
            between = self._is_between(at, device)
            for (before, steps), (cost, path) in front.items():
                joins = before == device and not between
                total = own + (cost if joins else cost + opening[device])
                if self._private:
                    total += self._entering(index, device, path, at)
                count = steps if joins or self._most is None else steps + 1
                if self._most is not None and count > self._most:
                    continue
                known = reached.get((device, count))
                if known is None or total < known[0] or (total == known[0] and before == device):
                    reached[device, count] = total, (device, path)
        return reached

    def _is_between(self, at: int, device: int) -> bool:
        judge, order = self._judge, self.order
        return bool(judge.apart) and (
            judge.is_apart(order[at], device) or judge.is_apart(order[at - 1], device)
        )

    def _leaving(self, index: int, device: int) -> float:
        written = self.model.operations[index].outputs
        nbytes = sum(self.prices.nbytes[o] for o in written if o in self._outputs)
        return self.prices.moving[device] * nbytes

    def _entering(self, index: int, device: int, path: Path | None, at: int) -> float:
        """The cost of moving the inputs to *device* from the devices of *path*."""
        total, moving = 0.0, self.prices.moving
        for operand in dict.fromkeys(self.model.operations[index].inputs):
            nbytes = self.prices.nbytes[operand]
            if not nbytes:
                continue
            writer = self._writer.get(operand)
            if writer is None:
                total += moving[device] * nbytes
                continue
            home, together = _look_back(path, at - self._position[writer], device)
            if not together:
                out = 0.0 if operand in self._outputs else moving[home]
                total += (moving[device] + out) * nbytes
        return total


def _look_back(path: Path | None, distance: int, device: int) -> tuple[int, bool]:
    """The device *distance* operations back, and whether everything since ran on *device*."""
    together = distance <= LONGEST_LOOK_BACK
    for _ in range(min(distance, LONGEST_LOOK_BACK) - 1):
        if path is None:
            return device, False
        together = together and path[0] == device
        path = path[1]
    if path is None:
        return device, False
    return path[0], together and path[0] == device
