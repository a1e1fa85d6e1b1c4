"""Every message between the runtime and a device in another process.

Each call has one reply. The device's side numbers its objects: prepared models, bursts, executions
and buffers. Messages contain structs of `penstock.hal` unchanged, and the forms of
`penstock.ipc.forms` for other values; `penstock.ipc.codec` converts these.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from penstock import hal
from penstock.errors import ErrorStatus, WireError
from penstock.hal.request import Dimensions
from penstock.ipc.forms import (
    CallId,
    Form,
    Handle,
    Handles,
    LentForm,
    MemoryForm,
    MemoryId,
    ModelForm,
    ObjectId,
    RequestForm,
    RoleForm,
)

WIRE_VERSION: Final = 9
"""Increased whenever a message changes its form."""

MAX_FRAME: Final = 32 << 20
"""Bytes of the largest message, without constants and tensors. Reading it blocks the process."""


def check_length(nbytes: int) -> None:
    """Raises `WireError` for a message of more than `MAX_FRAME` bytes."""
    if nbytes > MAX_FRAME:
        raise WireError(f"a message of {nbytes} bytes; the limit is {MAX_FRAME}")


class RingRequest(Form, frozen=True):
    """A `Request` to *target*, a prepared model or burst, in a slot of a ring. *pools* are
    numbers of shared pools, since a slot has no handles.
    """

    target: ObjectId
    inputs: tuple[hal.PoolArgument | hal.TokenArgument | LentForm | hal.NoValue, ...]
    outputs: tuple[hal.PoolArgument | hal.TokenArgument | LentForm | hal.NoValue, ...]
    pools: tuple[ObjectId, ...]


class Describe(Form, frozen=True, tag="describe"):
    """The first call. The reply is `Description`."""

    wire_version: int


class Check(Form, frozen=True, tag="check"):
    """`Device.check`. The reply is `Reason`."""


class CacheFilesNeeded(Form, frozen=True, tag="cache_files_needed"):
    """`Device.cache_files_needed`. The reply is `CacheFiles`."""


class SupportedOperations(Form, frozen=True, tag="supported_operations"):
    """`Device.supported_operations`. The reply is `Supports`."""

    model: ModelForm


class Prepare(Form, frozen=True, tag="prepare_model"):
    """`Device.prepare_model`. The reply is `Made`."""

    model: ModelForm
    config: hal.PrepareConfig


class Dump(Form, frozen=True, tag="dump"):
    """`Device.dump` of a stage of the description. The reply is `Dumped`."""

    model: ModelForm
    config: hal.PrepareConfig
    stage: str


class Explain(Form, frozen=True, tag="explain"):
    """`Device.explain`. The reply is `Explained`."""

    model: ModelForm
    config: hal.PrepareConfig


class PrepareFromCache(Form, frozen=True, tag="prepare_model_from_cache"):
    """`Device.prepare_model_from_cache`. The reply is `Made`."""

    config: hal.PrepareConfig


class Allocate(Form, frozen=True, tag="allocate"):
    """`Device.allocate`. The reply is `Allocated`."""

    desc: hal.BufferDesc
    roles: tuple[RoleForm, ...]


class Execute(Form, frozen=True, tag="execute"):
    """`execute` of a prepared model or burst, or of a reusable execution without *request*."""

    target: ObjectId
    request: RequestForm | None
    config: hal.ExecutionConfig


class ExecuteFenced(Form, frozen=True, tag="execute_fenced"):
    """`PreparedModel.execute_fenced`. The reply is `Fenced`."""

    prepared: ObjectId
    request: RequestForm
    wait_for: tuple[Handle, ...]
    config: hal.ExecutionConfig
    timeout_after_fence_ns: int | None


class ConfigureBurst(Form, frozen=True, tag="configure_burst"):
    """`PreparedModel.configure_burst`. The reply is `Made`."""

    prepared: ObjectId


class CreateReusableExecution(Form, frozen=True, tag="create_reusable_execution"):
    """`PreparedModel.create_reusable_execution`. The reply is `Made`."""

    prepared: ObjectId
    request: RequestForm


class CopyTo(Form, frozen=True, tag="copy_to"):
    """`Buffer.copy_to`. The reply is `Done`."""

    buffer: ObjectId
    destination: MemoryForm


class CopyFrom(Form, frozen=True, tag="copy_from"):
    """`Buffer.copy_from`. The reply is `Done`."""

    buffer: ObjectId
    source: MemoryForm
    dimensions: Dimensions


class Report(Form, frozen=True, tag="report"):
    """`PreparedModel.cache_report`, which a late write changes. The reply is `Reported`."""

    prepared: ObjectId


class OpenRing(Form, frozen=True, tag="open_ring"):
    """Opens a ring for executions on the device. The reply is `Made`; `Close` closes the ring.

    *memory* is the region of that layout (`penstock.ipc.ring.Layout`), *to_device* and *to_client*
    are the device's ends of the doorbells.
    """

    memory: Handle
    to_device: Handle
    to_client: Handle
    slots: int
    slot_bytes: int


class LendPool(Form, frozen=True, tag="lend_pool"):
    """Shares a memory with requests of rings until `Close` unbinds them. The reply is `Made`."""

    memory: MemoryForm


class Close(Form, frozen=True, tag="close"):
    """`close` of any object. The reply is `Done`, even if the object is already closed."""

    target: ObjectId


Call: TypeAlias = (
    Describe
    | Check
    | CacheFilesNeeded
    | SupportedOperations
    | Prepare
    | Dump
    | Explain
    | PrepareFromCache
    | Allocate
    | Execute
    | ExecuteFenced
    | ConfigureBurst
    | CreateReusableExecution
    | CopyTo
    | CopyFrom
    | Report
    | OpenRing
    | LendPool
    | Close
)


class Description(Form, frozen=True, tag="description"):
    """A device's properties."""

    name: str
    version: str
    device_type: hal.DeviceType
    feature_level: int
    capabilities: hal.Capabilities
    hal_version: int
    stages: tuple[str, ...] = ()


class Dumped(Form, frozen=True, tag="dumped"):
    """What a stage of a compile made, as text."""

    text: str


class Explained(Form, frozen=True, tag="explained"):
    """How a device computes each operation."""

    words: tuple[str, ...]


class Reason(Form, frozen=True, tag="reason"):
    reason: str | None


class CacheFiles(Form, frozen=True, tag="cache_files"):
    model: int
    data: int


class Supports(Form, frozen=True, tag="supports"):
    answers: tuple[hal.Support, ...]


class Made(Form, frozen=True, tag="made"):
    """The number of a new object; *cache* is a prepared model's."""

    target: ObjectId
    cache: hal.CacheReport = hal.NO_CACHE_REPORT


class Reported(Form, frozen=True, tag="reported"):
    """State of a prepared model's cache files so far."""

    cache: hal.CacheReport


class Allocated(Form, frozen=True, tag="allocated"):
    token: int
    buffer: ObjectId


class Executed(Form, frozen=True, tag="executed"):
    result: hal.ExecutionResult


class Fenced(Form, frozen=True, tag="fenced"):
    """*copies* are those that the driver made before it returned the fence."""

    fence: Handle
    copies: tuple[hal.ArgumentCopy, ...] = ()


class Done(Form, frozen=True, tag="done"):
    """Reply of a call without a result."""


class Failure(Form, frozen=True, tag="failure"):
    """A `DriverError`: the class of *status*, its message, shapes of `OutputInsufficientSize`, and
    the copies that the driver made for the execution.
    """

    status: ErrorStatus
    message: str
    output_shapes: tuple[hal.OutputShape, ...] = ()
    copies: tuple[hal.ArgumentCopy, ...] = ()


class Stopped(Form, frozen=True, tag="stopped"):
    """An error outside the statuses: `Cancelled`, or `ClosedError`."""

    kind: Literal["cancelled", "closed"]
    message: str


Reply: TypeAlias = (
    Description
    | Dumped
    | Explained
    | Reason
    | CacheFiles
    | Supports
    | Made
    | Reported
    | Allocated
    | Executed
    | Fenced
    | Done
    | Failure
    | Stopped
)


class Progress(Form, frozen=True, tag="progress"):
    """An event for the progress callback of a call in progress."""

    event: hal.ProgressEvent
    call: CallId = 0


class Signalled(Form, frozen=True, tag="signalled"):
    """Sent when a fence signals: with *failure*, or with success."""

    failure: Failure | None


Notice: TypeAlias = Progress | Signalled


class Hello(Form, frozen=True, tag="hello"):
    """A client's first message. The reply is `Welcome` or `Refused`."""

    wire_version: int


class Ask(Form, frozen=True, tag="ask"):
    """A call to the device with the index *device*; *body* is a `Call`, *handles* its table."""

    call: CallId
    device: int
    body: bytes
    handles: Handles = ()


class Cancel(Form, frozen=True, tag="cancel"):
    """Sets the cancel token of a call. A call that was answered meanwhile is not cancelled."""

    call: CallId


class Drop(Form, frozen=True, tag="drop"):
    """Closes an object of a device that the client has dropped. Has no answer."""

    device: int
    target: ObjectId


class Lend(Form, frozen=True, tag="lend"):
    """Memory that a client shares until its `Release`: *size* bytes of the attached descriptor."""

    memory: MemoryId
    size: int


class Release(Form, frozen=True, tag="release"):
    """The client withdraws shared memory."""

    memory: MemoryId


class Welcome(Form, frozen=True, tag="welcome"):
    """The host accepts the client. It has *devices* devices.

    It is the process *pid*, a child of *broker*, which ends when it does. Two read-only files
    travel with the message: the heartbeat's page and the process's output. *refused* devices could
    not be made; *sandbox* has the result of each measure.
    """

    wire_version: int
    pid: int
    broker: int
    devices: int
    refused: tuple[str, ...] = ()
    sandbox: tuple[tuple[str, str], ...] = ()


class Refused(Form, frozen=True, tag="refused"):
    """The host rejects the client."""

    reason: str


class Answer(Form, frozen=True, tag="answer"):
    """The reply to a call; *body* is a `Reply`, an error's if the call *failed*."""

    call: CallId
    body: bytes
    handles: Handles = ()
    failed: bool = False


ToHost: TypeAlias = Hello | Ask | Cancel | Drop | Lend | Release
ToClient: TypeAlias = Welcome | Refused | Answer | Progress
