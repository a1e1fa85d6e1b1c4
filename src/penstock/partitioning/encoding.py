"""An `ExecutionPlan` as bytes, with its models and without the bytes of the model's file.

Only for bytes that are authenticated before they are decoded: a restored plan is not checked, and
its models are not validated again.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from penstock.ir import ConstantPool, Model
from penstock.ir.encoding import ModelForm, decode_hook, encode_hook, form_of, model_of
from penstock.memory.layout import ArenaLayout
from penstock.partitioning.placements import Alternative, Placement, Tuned, Worst
from penstock.partitioning.plan import Control, ExecutionPlan, ExecutionStep

MOST_POOL: Final = 1 << 16
"""Most bytes of constants that are not in the model's file, such as sparse ones made dense."""


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
    models, and the constants that are not in the file: pool 0 is the file's, then these.
    """

    plan: PlanForm
    source: int
    models: tuple[ModelForm, ...]
    pools: tuple[bytes, ...]


class _Writer:
    """Numbers the models and pools of a plan; *file* is pool 0."""

    def __init__(self, file: ConstantPool) -> None:
        self._pools: dict[int, int] = {id(file.view): 0}
        self._models: dict[int, int] = {}
        self.pools: list[bytes] = []
        self.models: list[ModelForm] = []
        self._room = MOST_POOL

    def pool(self, pool: ConstantPool) -> int:
        if id(pool.view) not in self._pools:
            self._room -= len(pool)
            if self._room < 0:
                raise ValueError("its constants are not in the model's file")
            self.pools.append(bytes(pool.view))
            self._pools[id(pool.view)] = len(self.pools)
        return self._pools[id(pool.view)]

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
    def __init__(self, encoded: Encoded, file: ConstantPool) -> None:
        pools = [file, *(ConstantPool(memoryview(content)) for content in encoded.pools)]
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
    writer = _Writer(file)
    form = writer.plan(plan)
    number = writer.model(source)
    encoded = Encoded(form, number, tuple(writer.models), tuple(writer.pools))
    return _ENCODER.encode(encoded)


def decode(content: bytes, file: ConstantPool) -> tuple[ExecutionPlan, Model]:
    """The plan and the source model that `encode` made, with *file* as the content of the file.

    Raises `msgspec.MsgspecError` for other bytes.
    """
    encoded = _DECODER.decode(content)
    reader = _Reader(encoded, file)
    return reader.plan(encoded.plan), reader.models[encoded.source]


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_DECODER: Final = msgspec.msgpack.Decoder(Encoded, dec_hook=decode_hook)
