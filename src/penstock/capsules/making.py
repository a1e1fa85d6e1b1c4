"""Makes capsules from a failed step, or from the crash of a host process."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.capsules.archive import (
    Capsule,
    CaseRecord,
    DeviceRecord,
    Failure,
    Manifest,
    OperationRecord,
    Stage,
)
from penstock.capsules.scrubbing import (
    Scrubber,
    environment,
    model_record,
    nameless,
    names_of,
)
from penstock.errors import CapsuleError, NotExportable
from penstock.hal import AccuracyClass, Device
from penstock.ipc.crash_records import Crash, last_crash
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan


class Case(Struct, frozen=True, eq=False):
    """The failing step as a *model*, its *inputs*, *expected* results and the actual ones, *got*.

    Results are None if unknown. Without input data, *inputs* is None, and *shapes* has their
    shapes.
    """

    model: Model
    inputs: Sequence[NDArray] | None
    expected: Sequence[NDArray] = ()
    got: Sequence[NDArray] = ()
    shapes: Sequence[tuple[int, ...]] = ()


class FailureDetails(Struct, frozen=True):
    """*operations* of *model* that failed at *stage*: the error, or the error's size."""

    stage: Stage
    model: Model
    operations: Sequence[int]
    error: str = ""
    distance: str = ""


def make(
    details: FailureDetails,
    device: Device,
    *,
    accuracy: AccuracyClass = "faithful",
    plan: ExecutionPlan | None = None,
    receipt: str | None = None,
    case: Case | None = None,
    no_case: str = "",
    names: bool = False,
) -> Capsule:
    """The capsule of a failure of *device*.

    *receipt* is that of `Receipt.to_json`. Names of files, of users, and those given by the
    network's author are removed; *names* keeps the author's names.
    """
    scrubber = Scrubber(names_of(details.model), keep_names=names)
    model, entry = details.model, details.model.entry
    operations = tuple(
        OperationRecord(i, model.operations[i].key, entry.operation_name(i) if names else "")
        for i in details.operations
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
        penstock=_version(),
        environment=environment(),
        failure=Failure(
            details.stage,
            DeviceRecord(device.name, device.version, device.type.value, device.feature_level),
            operations,
            scrubber.text(details.error),
            scrubber.text(details.distance),
        ),
        model=model_record(model),
        plan=_plan(plan, scrubber),
        receipt=msgspec.Raw(b"null") if receipt is None else scrubber.raw(receipt),
        case=record,
        no_case="" if record is not None else no_case,
    )
    if record is None or case is None:
        return Capsule(manifest)
    return Capsule(manifest, content, case.inputs or (), case.expected, case.got)


def _exported(case: Case, *, names: bool) -> tuple[bytes, Case]:
    """The step as a file, and *case* with the arrays of that file's inputs and outputs."""
    from penstock.export.tflite import write
    from penstock.export.tflite.state import named, positions_in_file, with_state

    given = case.inputs
    if given is None:
        # Zeros as the state of operations, which use no memory.
        pairs = zip(case.model.inputs, case.shapes, strict=True)
        given = [np.broadcast_to(np.zeros((), o.dtype.numpy), shape) for o, shape in pairs]
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


def _plan(plan: ExecutionPlan | None, scrubber: Scrubber) -> msgspec.Raw:
    if plan is None:
        return msgspec.Raw(b"null")
    content = msgspec.json.decode(plan.to_json())
    if not scrubber.keep_names:
        _drop_names(content)
    return msgspec.Raw(msgspec.json.encode(scrubber.tree(content)))


def _drop_names(plan: dict[str, Any]) -> None:
    for operation in plan["operations"]:
        operation["name"] = ""
    for step in plan["steps"]:
        if step["control"] is not None:
            for branch in step["control"]["branches"]:
                _drop_names(branch)


def _version() -> str:
    # Read from `sys.modules`: an import would be circular.
    return str(sys.modules["penstock"].__version__)


TOGETHER_SECONDS: Final = 600.0
"""Seconds within which a crash and a failure of the same device belong together."""

_OPERATION: Final = re.compile(r"(\d+) \((\S+), (.*)\)", re.DOTALL)


def with_crash(capsule: Capsule | None) -> Capsule | None:
    """*capsule* with the last crash, if it is of the same device and time.

    The crash alone if there is no capsule, or an older one. None if there is neither.
    """
    crash = last_crash()
    if crash is None:
        return capsule
    if capsule is None:
        return of_crash(crash)
    failed = capsule.manifest.failure.device.name
    own = failed == crash.driver or failed in {call.device for call in crash.underway}
    if own and abs(capsule.manifest.created - crash.when) <= TOGETHER_SECONDS:
        manifest = replace(capsule.manifest, crash=_crash_record(crash))
        return replace(capsule, manifest=manifest)
    return of_crash(crash) if crash.when > capsule.manifest.created else capsule


def of_crash(crash: Crash) -> Capsule:
    """A capsule for *crash* without a step."""
    call = crash.underway[0] if crash.underway else None
    operations = () if call is None else tuple(map(_operation, call.operations))
    name, version = ("", "") if call is None else (call.device, call.version)
    device = DeviceRecord(name or crash.driver, version, "", 0)
    manifest = Manifest(
        penstock=_version(),
        created=crash.when,
        environment=environment(),
        failure=Failure("crash", device, operations, Scrubber().text(crash.how)),
        no_case="nothing is kept of what a driver was given when its process died",
        crash=_crash_record(crash),
    )
    return Capsule(manifest)


def _crash_record(crash: Crash) -> msgspec.Raw:
    """The record of the crash, without private names."""
    record: dict[str, Any] = msgspec.to_builtins(crash)
    names = {_name(o) for call in crash.underway for o in call.operations}
    for call in record["underway"]:
        call["operations"] = [f"{o.index} ({o.type})" for o in map(_operation, call["operations"])]
    record.pop("pid")
    return msgspec.Raw(msgspec.json.encode(Scrubber(names).tree(record)))


def _operation(text: str) -> OperationRecord:
    found = _OPERATION.fullmatch(text)
    return OperationRecord(int(found[1]), found[2]) if found else OperationRecord(0, "")


def _name(text: str) -> str:
    found = _OPERATION.fullmatch(text)
    return found[3].strip("'\"") if found else ""
