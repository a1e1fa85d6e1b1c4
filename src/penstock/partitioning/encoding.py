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
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from penstock.ir import ConstantPool, Model
from penstock.ir.encoding import ModelForm, decode_hook, encode_hook, form_of, model_of
from penstock.memory.layout import ArenaLayout
from penstock.partitioning.placements import Alternative, Placement, Tuned, Worst
from penstock.partitioning.plan import Control, ExecutionPlan, ExecutionStep

MOST_KEPT: Final = 1 << 12
"""Most bytes of a pool of constants that is kept, instead of decoded again from the file."""


class PoolForm(Struct, frozen=True, array_like=True):
    """A pool that is not the file: its *content*, or its *number* among those of the model that the
    file decodes to, and its *kind* of memory.
    """

    content: bytes | None
    number: int
    kind: str


class ControlForm(Struct, frozen=True, array_like=True):
    """A `Control`."""

    kind: Literal["IF", "WHILE"]
    branches: tuple[PlanForm, ...]


class StepForm(Struct, frozen=True, array_like=True):
    """An `ExecutionStep`, field by field, with the number of its model."""

    index: int
    device: str
    operations: tuple[int, ...]
    model: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fallbacks: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    predicted_ns: int | None
    control: ControlForm | None
    no_fallback: str
    worst: Worst | None


class PlanForm(Struct, frozen=True, array_like=True):
    """An `ExecutionPlan`, field by field, with the number of its model."""

    model: int
    devices: tuple[str, ...]
    steps: tuple[StepForm, ...]
    operations: tuple[Placement, ...]
    temporaries: ArenaLayout
    predicted_ns: int | None
    predicted_energy: int | None
    alternatives: tuple[Alternative, ...]
    tuned: Tuned | None
    accuracy: Literal["exact", "faithful", "stepwise", "relaxed"]
    doubts: tuple[tuple[str, str], ...]
    apart: tuple[tuple[str, str], ...]


class Encoded(Struct, frozen=True, array_like=True):
    """A plan, the number of the model that was partitioned before shapes were put into it, all
    models, and the pools: pool 0 is the file, then these.
    """

    plan: PlanForm
    source: int
    models: tuple[ModelForm, ...]
    pools: tuple[PoolForm, ...]


class _Writer:
    """Numbers the models and pools of a plan; *file* is pool 0. *source* is all of its content."""

    def __init__(self, file: ConstantPool, source: Model) -> None:
        self._pools: dict[int, int] = {id(file): 0}
        self._decoded = {id(pool): number for number, pool in enumerate(source.pools)}
        self._models: dict[int, int] = {}
        self.pools: list[PoolForm] = []
        self.models: list[ModelForm] = []

    def pool(self, pool: ConstantPool) -> int:
        key = id(pool)
        if key not in self._pools:
            number, is_small = self._decoded.get(key, -1), len(pool) <= MOST_KEPT
            if number < 0 and not is_small:
                raise ValueError("it has constants that its file has not")
            content = bytes(pool.view) if is_small else None
            self.pools.append(PoolForm(content, number, pool.kind))
            self._pools[key] = len(self.pools)
        return self._pools[key]

    def model(self, model: Model) -> int:
        if id(model) not in self._models:
            self.models.append(form_of(model, self.pool))
            self._models[id(model)] = len(self.models) - 1
        return self._models[id(model)]

    def plan(self, plan: ExecutionPlan) -> PlanForm:
        model, devices, steps, *rest = astuple(plan)
        return PlanForm(self.model(model), devices, tuple(map(self.step, steps)), *rest)

    def step(self, step: ExecutionStep) -> StepForm:
        fields = dict(zip(step.__struct_fields__, astuple(step), strict=True))
        control = None
        if step.control is not None:
            branches = tuple(map(self.plan, step.control.branches))
            control = ControlForm(step.control.kind, branches)
        return StepForm(**{**fields, "model": self.model(step.model), "control": control})


class _Reader:
    def __init__(
        self, encoded: Encoded, file: ConstantPool, load: Callable[[ConstantPool], Model]
    ) -> None:
        pools = [file]
        if encoded.pools:
            from penstock.ir.deferred import Decoding, deferred

            decoding = Decoding(partial(load, file))
            pools += [
                deferred(decoding, form.number, form.kind)
                if form.content is None
                else ConstantPool(memoryview(form.content))
                for form in encoded.pools
            ]
        self.models = [model_of(form, pools) for form in encoded.models]

    def plan(self, form: PlanForm) -> ExecutionPlan:
        model, devices, steps, *rest = astuple(form)
        return ExecutionPlan(self.models[model], devices, tuple(map(self.step, steps)), *rest)

    def step(self, form: StepForm) -> ExecutionStep:
        fields: dict[str, Any] = dict(zip(form.__struct_fields__, astuple(form), strict=True))
        if form.control is not None:
            branches = tuple(map(self.plan, form.control.branches))
            fields["control"] = Control(form.control.kind, branches)
        fields["model"] = self.models[form.model]
        return ExecutionStep(**fields)


def encode(plan: ExecutionPlan, source: Model, file: ConstantPool) -> bytes:
    """The bytes of *plan*. *source* is the model of *file* before shapes were put into it.

    Raises `ValueError` or `TypeError`, with the reason, if the plan cannot be encoded.
    """
    writer = _Writer(file, source)
    form = writer.plan(plan)
    number = writer.model(source)
    encoded = Encoded(form, number, tuple(writer.models), tuple(writer.pools))
    return _ENCODER.encode(encoded)


def decode(
    content: bytes, file: ConstantPool, load: Callable[[ConstantPool], Model]
) -> tuple[ExecutionPlan, Model]:
    """The plan and the source model that `encode` made of *file*, which *load* decodes if constants
    are asked for that it does not have as they stand.

    Raises `msgspec.MsgspecError` for other bytes.
    """
    encoded = _DECODER.decode(content)
    reader = _Reader(encoded, file, load)
    return reader.plan(encoded.plan), reader.models[encoded.source]


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_DECODER: Final = msgspec.msgpack.Decoder(Encoded, dec_hook=decode_hook)
