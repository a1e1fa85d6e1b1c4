"""An `ExecutionPlan` as bytes, with its models and without their constants.

Constants that lie in the model's file are read from there. Others, those of sparse tensors or of
ONNX files, are kept if they are few, and otherwise decoded again from the file when somebody asks
for them.

Only for bytes that are authenticated before they are decoded: a restored plan is not checked, and
its models are not validated again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from penstock.errors import ErrorStatus, Refusal, RefusalCode
from penstock.ir import ConstantPool, Model
from penstock.ir.encoding import Parts, RestoredParts, Row, fixed, model_of, row_of
from penstock.memory.layout import ArenaLayout
from penstock.partitioning.placements import (
    Alternative,
    Measured,
    Placement,
    Remedy,
    Slow,
    Tuned,
    Worst,
)
from penstock.partitioning.plan import Control, ExecutionPlan, ExecutionStep

MOST_KEPT: Final = 1 << 12
"""Most bytes of a pool of constants that is kept, instead of decoded again from the file."""


class _Writer:
    """Numbers the models and pools of a plan, and the refusals of operations; *file* is pool 0.
    *source* is all of its content.
    """

    def __init__(self, file: ConstantPool, source: Model) -> None:
        self._pools: dict[int, int] = {id(file): 0}
        self._decoded = {id(pool): number for number, pool in enumerate(source.pools)}
        self._models: dict[int, int] = {}
        self._refusals: dict[tuple[tuple[str, Refusal], ...], int] = {}
        self.pools: list[Row] = []
        """Of each pool but the file: its content, or its number among those of the model that the
        file decodes to, and its kind of memory.
        """
        self.models: list[Row] = []
        self.parts = Parts()

    @property
    def refusals(self) -> Row:
        return [
            {
                name: (why.code.value, why.detail, _number(why.status), why.admits)
                for name, why in of
            }
            for of in self._refusals
        ]

    def pool(self, pool: ConstantPool) -> int:
        key = id(pool)
        if key not in self._pools:
            number, is_small = self._decoded.get(key, -1), len(pool) <= MOST_KEPT
            if number < 0 and not is_small:
                raise ValueError("it has constants that its file has not")
            content = bytes(pool.view) if is_small else None
            self.pools.append((content, number, pool.kind))
            self._pools[key] = len(self.pools)
        return self._pools[key]

    def model(self, model: Model) -> int:
        if id(model) not in self._models:
            self.models.append(row_of(model, self.pool, self.parts))
            self._models[id(model)] = len(self.models) - 1
        return self._models[id(model)]

    def plan(self, plan: ExecutionPlan) -> Row:
        model, devices, steps, operations, temporaries, *rest = astuple(plan)
        nanoseconds, energy, alternatives, tuned, accuracy, doubts, apart, slow, basis = rest
        offsets, *sizes = astuple(temporaries)
        return (
            self.model(model),
            devices,
            tuple(map(self.step, steps)),
            tuple(map(self.placement, operations)),
            (dict(offsets), *sizes),
            nanoseconds,
            energy,
            tuple(map(astuple, alternatives)),
            None if tuned is None else self.tuned(tuned),
            accuracy,
            doubts,
            apart,
            None if slow is None else self.slow(slow),
            basis,
        )

    def step(self, step: ExecutionStep) -> Row:
        index, device, operations, model, *rest = astuple(step)
        inputs, outputs, fallbacks, options, nanoseconds, control, no_fallback, worst = rest
        return (
            index,
            device,
            operations,
            self.model(model),
            inputs,
            outputs,
            fallbacks,
            options,
            nanoseconds,
            None if control is None else (control.kind, tuple(map(self.plan, control.branches))),
            no_fallback,
            None if worst is None else astuple(worst),
        )

    def placement(self, placement: Placement) -> Row:
        index, kind, name, device, refusals, accuracy = astuple(placement)
        number = self._refusals.setdefault(tuple(refusals.items()), len(self._refusals))
        return index, kind, name, device, number, accuracy

    def tuned(self, tuned: Tuned) -> Row:
        candidates, *rest = astuple(tuned)
        return tuple(map(astuple, candidates)), *rest

    def slow(self, slow: Slow) -> Row:
        share, types, remedies = astuple(slow)
        return share, types, tuple(map(astuple, remedies))


class _Reader:
    """Restores plans from the parts of `encode`'s bytes."""

    def __init__(
        self,
        models: Row,
        parts: Row,
        pools: Row,
        refusals: Row,
        file: ConstantPool,
        load: Callable[[ConstantPool], Model],
    ) -> None:
        known = [file]
        if pools:
            from penstock.ir.deferred import Decoding, deferred

            decoding = Decoding(partial(load, file))
            known += [
                deferred(decoding, number, kind)
                if content is None
                else ConstantPool(memoryview(content))
                for content, number, kind in pools
            ]
        restored = RestoredParts(*parts)
        self.models = [model_of(row, known, restored) for row in models]
        self._refusals = [{name: _refusal(*why) for name, why in of.items()} for of in refusals]

    def plan(self, row: Row) -> ExecutionPlan:
        model, devices, steps, operations, (offsets, *sizes), *rest = row
        nanoseconds, energy, alternatives, tuned, accuracy, doubts, apart, slow, basis = rest
        places = {key: tuple(place) for key, place in offsets.items()}
        return ExecutionPlan(
            self.models[model],
            tuple(devices),
            tuple(map(self.step, steps)),
            tuple(map(self.placement, operations)),
            ArenaLayout(places, *map(fixed, sizes)),
            nanoseconds,
            energy,
            tuple(Alternative(*one) for one in alternatives),
            None if tuned is None else _tuned(*tuned),
            accuracy,
            fixed(doubts),
            fixed(apart),
            None if slow is None else _slow(*slow),
            basis,
        )

    def step(self, row: Row) -> ExecutionStep:
        index, device, operations, model, *rest = row
        inputs, outputs, fallbacks, options, nanoseconds, control, no_fallback, worst = rest
        made = None
        if control is not None:
            kind, branches = control
            made = Control(kind, tuple(map(self.plan, branches)))
        return ExecutionStep(
            index,
            device,
            tuple(operations),
            self.models[model],
            tuple(inputs),
            tuple(outputs),
            tuple(fallbacks),
            fixed(options),
            nanoseconds,
            made,
            no_fallback,
            None if worst is None else Worst(*worst),
        )

    def placement(self, row: Row) -> Placement:
        index, kind, name, device, number, accuracy = row
        return Placement(index, kind, name, device, self._refusals[number], accuracy)


def _number(status: ErrorStatus | None) -> int | None:
    return None if status is None else status.value


def _refusal(code: str, detail: str, status: int | None, admits: str) -> Refusal:
    known = None if status is None else ErrorStatus(status)
    return Refusal(RefusalCode(code), detail, known, admits)


def _tuned(candidates: Row, *rest: Any) -> Tuned:
    return Tuned(tuple(Measured(*one) for one in candidates), *rest)


def _slow(share: float, types: Row, remedies: Row) -> Slow:
    made = (
        Remedy(kind, tuple(devices), part, fix, accuracy)
        for kind, devices, part, fix, accuracy in remedies
    )
    return Slow(share, tuple(types), tuple(made))


def encode(plan: ExecutionPlan, source: Model, file: ConstantPool) -> bytes:
    """The bytes of *plan*. *source* is the model of *file* before shapes were put into it.

    Raises `ValueError` or `TypeError`, with the reason, if the plan cannot be encoded.
    """
    writer = _Writer(file, source)
    row = writer.plan(plan)
    number = writer.model(source)
    parts = writer.parts.operands, writer.parts.operations
    encoded = row, number, writer.models, parts, writer.pools, writer.refusals
    return msgspec.msgpack.encode(encoded)


def decode(
    content: bytes, file: ConstantPool, load: Callable[[ConstantPool], Model]
) -> tuple[ExecutionPlan, Model]:
    """The plan and the source model that `encode` made of *file*, which *load* decodes if constants
    are asked for that it does not have as they stand.

    Raises `TypeError`, `ValueError` or `LookupError` for other bytes.
    """
    row, source, models, parts, pools, refusals = msgspec.msgpack.decode(content)
    reader = _Reader(models, parts, pools, refusals, file, load)
    return reader.plan(row), reader.models[source]
