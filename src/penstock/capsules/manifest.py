"""What stands in a capsule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from penstock.errors import counted
from penstock.hal import AccuracyClass
from penstock.ir import NDArray

FORMAT: Final = 1
"""Raised when a reader of this version would misunderstand a capsule."""

Text = Annotated[str, Meta(max_length=65_536)]
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Stage: TypeAlias = Literal["compile", "execute", "verify", "crash"]


class Environment(Struct, frozen=True):
    """Where it failed: versions of *packages*, and the *knobs* that were not at their defaults."""

    python: Text
    implementation: Text
    system: Text
    machine: Text
    packages: Annotated[dict[Text, Text], Meta(max_length=64)]
    knobs: Annotated[dict[Text, Text], Meta(max_length=256)]


class DeviceRecord(Struct, frozen=True):
    """The device that failed, as it describes itself."""

    name: Text
    version: Text
    type: Text
    feature_level: Count


class OperationRecord(Struct, frozen=True):
    """An operation that failed: its *index* in the entry subgraph and its *type*; *name* only where
    names were asked for.
    """

    index: Count
    type: Text
    name: Text = ""


class Failure(Struct, frozen=True):
    """What failed, and where.

    *stage* is "compile", "execute", "verify" (a result that departs from the reference's), or
    "crash". *error* is what the driver said, *distance* how far off the result is, in words.
    """

    stage: Stage
    device: DeviceRecord
    operations: Annotated[tuple[OperationRecord, ...], Meta(max_length=65_536)]
    error: Text = ""
    distance: Text = ""


class ModelRecord(Struct, frozen=True):
    """Which model it was, without anything of it: digests, as digits, and how many operations its
    entry has. *constants* is empty where their digest was not known.
    """

    structure: Text
    constants: Text
    operations: Count


class ArrayRecord(Struct, frozen=True):
    """An array beside the manifest: raw little-endian elements in C order in the member *file*;
    strings as TFLite packs them. *dtype* is a `DType`'s name.
    """

    file: Text
    dtype: Text
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    nbytes: Count


Arrays = Annotated[tuple[ArrayRecord, ...], Meta(max_length=4096)]
Shape = Annotated[tuple[Count, ...], Meta(max_length=64)]


class CaseRecord(Struct, frozen=True):
    """The failing step alone: the member *model*, a `.tflite` file, what goes in, what should come
    out and what did.

    *left_out* has the shape of each input where the capsule holds no input data: then *inputs*,
    *expected* and *got* are empty, and whoever replays the step draws its inputs.
    """

    model: Text
    accuracy: AccuracyClass
    inputs: Arrays
    expected: Arrays = ()
    got: Arrays = ()
    left_out: Annotated[tuple[Shape, ...], Meta(max_length=4096)] | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """All of a capsule but models and arrays.

    *plan* and *receipt* are those of `ExecutionPlan.to_json` and `Receipt.to_json`, *crash* what is
    known of a driver's process that died, as JSON. *no_case* says why there is no *case*. *created*
    is in seconds since the epoch.
    """

    format: int = FORMAT
    penstock: Text
    created: float = msgspec.field(default_factory=time.time)
    environment: Environment
    failure: Failure
    model: ModelRecord | None = None
    plan: msgspec.Raw = msgspec.Raw(b"null")
    receipt: msgspec.Raw = msgspec.Raw(b"null")
    case: CaseRecord | None = None
    no_case: Text = ""
    crash: msgspec.Raw = msgspec.Raw(b"null")


class Capsule(Struct, frozen=True, eq=False):
    """A *manifest*, and where it has a case the failing step as the bytes of a `.tflite` file,
    *model*, with its arrays.
    """

    manifest: Manifest
    model: bytes = b""
    inputs: Sequence[NDArray] = ()
    expected: Sequence[NDArray] = ()
    got: Sequence[NDArray] = ()

    def show(self) -> str:
        """The failure in a few lines, without a line end."""
        failure, environment = self.manifest.failure, self.manifest.environment
        which = ", ".join(f"{o.index} ({o.type})" for o in failure.operations[:4])
        if len(failure.operations) > 4:
            which += f" and {len(failure.operations) - 4} more"
        device = failure.device
        lines = [
            f"{failure.stage} on {device.name}, version {device.version}",
            f"operation {which}" if which else "no operation is known",
            failure.error or failure.distance or "no error is known",
            f"penstock {self.manifest.penstock}, Python {environment.python}, {environment.system} {environment.machine}",
        ]
        if self.manifest.case is None:
            lines.append(f"no step to repeat: {self.manifest.no_case or 'none was kept'}")
        else:
            nbytes = len(self.model) + sum(a.nbytes for a in self.inputs)
            what = (
                "the step and its inputs"
                if self.manifest.case.left_out is None
                else "the step without input data"
            )
            lines.append(f"{what}: {counted(nbytes, 'byte')}")
        return "\n".join(lines)
