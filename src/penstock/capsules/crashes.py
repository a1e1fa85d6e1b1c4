"""What a capsule tells of a driver's process that died."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.capsules.environment import environment, penstock_version
from penstock.capsules.manifest import Capsule, DeviceRecord, Failure, Manifest, OperationRecord
from penstock.capsules.scrubbing import Scrubber
from penstock.ipc.crash_records import Crash, last_crash

TOGETHER_SECONDS: Final = 600.0
"""A crash of the device that failed belongs to the failure where they lie no farther apart."""

_OPERATION: Final = re.compile(r"(\d+) \((\S+), (.*)\)", re.DOTALL)


def with_crash(capsule: Capsule | None) -> Capsule | None:
    """*capsule* with the last crash, where that is of its device and of its time; the crash alone
    where there is no capsule, or an older one; None where there is neither.
    """
    crash = last_crash()
    if crash is None:
        return capsule
    if capsule is None:
        return of_crash(crash)
    failed = capsule.manifest.failure.device.name
    own = failed == crash.driver or failed in {call.device for call in crash.underway}
    if own and abs(capsule.manifest.created - crash.when) <= TOGETHER_SECONDS:
        return _attached(capsule, crash)
    return of_crash(crash) if crash.when > capsule.manifest.created else capsule


def of_crash(crash: Crash) -> Capsule:
    """A capsule that tells of *crash*, and has no step."""
    call = crash.underway[0] if crash.underway else None
    operations = () if call is None else tuple(map(_operation, call.operations))
    device = DeviceRecord(
        crash.driver if call is None or not call.device else call.device,
        "" if call is None else call.version,
        "",
        0,
    )
    manifest = Manifest(
        penstock=penstock_version(),
        created=crash.when,
        environment=environment(),
        failure=Failure("crash", device, operations, Scrubber().text(crash.how)),
        no_case="nothing is kept of what a driver was given when its process died",
        crash=_told(crash),
    )
    return Capsule(manifest)


def _attached(capsule: Capsule, crash: Crash) -> Capsule:
    return replace(capsule, manifest=replace(capsule.manifest, crash=_told(crash)))


def _told(crash: Crash) -> msgspec.Raw:
    """The record of the crash, without what it names."""
    told: dict[str, Any] = msgspec.to_builtins(crash)
    names = {_name(o) for call in crash.underway for o in call.operations}
    for call in told["underway"]:
        call["operations"] = [f"{o.index} ({o.type})" for o in map(_operation, call["operations"])]
    told.pop("pid")
    scrubber = Scrubber(names)
    return msgspec.Raw(msgspec.json.encode(scrubber.tree(told)))


def _operation(text: str) -> OperationRecord:
    found = _OPERATION.fullmatch(text)
    return OperationRecord(int(found[1]), found[2]) if found else OperationRecord(0, "")


def _name(text: str) -> str:
    found = _OPERATION.fullmatch(text)
    return found[3].strip("'\"") if found else ""
