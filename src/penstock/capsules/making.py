"""A capsule out of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from penstock.capsules.environment import device_record, environment, model_record, penstock_version
from penstock.capsules.manifest import (
    Capsule,
    CaseRecord,
    Failure,
    Manifest,
    OperationRecord,
    Stage,
)
from penstock.capsules.scrubbing import Scrubber, nameless, names_of
from penstock.errors import CapsuleError, NotExportable
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan


class Case(Struct, frozen=True, eq=False):
    """The failing step as a *model* with its *inputs*, and what is *expected* of it and what it
    *got*, where known.

    Without input data *inputs* is None, and *shapes* has the shape of each.
    """

    model: Model
    inputs: Sequence[NDArray] | None
    expected: Sequence[NDArray] = ()
    got: Sequence[NDArray] = ()
    shapes: Sequence[tuple[int, ...]] = ()


class Told(Struct, frozen=True):
    """What failed: *operations* of *model* by index, at *stage*, with what the driver said or how
    far it was off.
    """

    stage: Stage
    model: Model
    operations: Sequence[int]
    error: str = ""
    distance: str = ""


def make(
    told: Told,
    device: Device,
    *,
    accuracy: AccuracyClass = "faithful",
    plan: ExecutionPlan | None = None,
    receipt: str | None = None,
    case: Case | None = None,
    no_case: str = "",
    names: bool = False,
) -> Capsule:
    """The capsule of a failure of *device*. *receipt* is `Receipt.to_json`'s. Names of files, of
    users and of what the network's author named are left out; *names* keeps the last of these.
    """
    scrubber = Scrubber(names_of(told.model), keep_names=names)
    operations = tuple(
        OperationRecord(
            index,
            told.model.operations[index].key,
            told.model.entry.operation_name(index) if names else "",
        )
        for index in told.operations
    )
    record, content = None, b""
    if case is not None:
        try:
            content, kept = _exported(case, names=names)
        except (NotExportable, CapsuleError) as error:
            no_case = f"the step has no form in a capsule: {scrubber.text(str(error))}"
        else:
            left_out = None if kept.inputs is not None else tuple(kept.shapes)
            record = CaseRecord("", accuracy, (), left_out=left_out)
            case = kept
    manifest = Manifest(
        penstock=penstock_version(),
        environment=environment(),
        failure=Failure(
            told.stage,
            device_record(device),
            operations,
            scrubber.text(told.error),
            scrubber.text(told.distance),
        ),
        model=model_record(told.model),
        plan=_plan(plan, scrubber),
        receipt=msgspec.Raw(b"null") if receipt is None else scrubber.raw(receipt),
        case=record,
        no_case="" if record is not None else no_case,
    )
    if record is None or case is None:
        return Capsule(manifest)
    return Capsule(manifest, content, case.inputs or (), case.expected, case.got)


def _exported(case: Case, *, names: bool) -> tuple[bytes, Case]:
    """The step as a file, and *case* with the arrays and shapes that the file takes and gives."""
    from penstock.export.tflite import write
    from penstock.export.tflite.state import named, positions_in_file, with_state

    given = _zeros(case) if case.inputs is None else case.inputs
    model = with_state(case.model, given)
    content = write(named(model if names else nameless(model)))
    inputs, outputs = positions_in_file(case.model)
    return content, Case(
        case.model,
        None if case.inputs is None else [case.inputs[k] for k in inputs],
        [case.expected[k] for k in outputs] if case.expected else (),
        [case.got[k] for k in outputs] if case.got else (),
        [case.shapes[k] for k in inputs] if case.inputs is None else (),
    )


def _zeros(case: Case) -> list[NDArray]:
    """Zeros in place of each input of *case*, for the state of the step's operations; they take no
    memory.
    """
    return [
        np.broadcast_to(np.zeros((), operand.dtype.numpy), shape)
        for operand, shape in zip(case.model.inputs, case.shapes, strict=True)
    ]


def _plan(plan: ExecutionPlan | None, scrubber: Scrubber) -> msgspec.Raw:
    if plan is None:
        return msgspec.Raw(b"null")
    told = msgspec.json.decode(plan.to_json())
    if not scrubber.keep_names:
        _drop_names(told)
    return msgspec.Raw(msgspec.json.encode(scrubber.tree(told)))


def _drop_names(plan: dict[str, Any]) -> None:
    for operation in plan["operations"]:
        operation["name"] = ""
    for step in plan["steps"]:
        if step["control"] is not None:
            for branch in step["control"]["branches"]:
                _drop_names(branch)
