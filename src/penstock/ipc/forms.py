"""The values inside messages between the runtime and a device in another process.

Values without bytes (descriptors, cancel tokens, callbacks, fences, host arrays, pools of
constants) are in a table of handles that travels with the message; the message holds their indices.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from penstock import hal
from penstock.hal.request import Dimensions
from penstock.ir import DataLocation, DType, Signature, Subgraph, Variable
from penstock.memory import HardwareBufferDescription

MAX_HANDLES: Final = 4096
"""Most handles that one message may carry."""

Handle: TypeAlias = int
"""An index into the message's table of handles."""

ObjectId: TypeAlias = int
"""The number of a device-side object; 0 is the device itself."""

DEVICE: Final[ObjectId] = 0

CallId: TypeAlias = int
"""The number that a client gives a call; its answer has the same."""

MemoryId: TypeAlias = int
"""The client's number for memory that it shares."""


class Form(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message, or a part of one."""


class ModelForm(Form, frozen=True):
    """A model without its metadata, which does not affect results; *pools* are handles."""

    subgraphs: tuple[Subgraph, ...]
    pools: tuple[Handle, ...]
    variables: tuple[Variable, ...]
    signatures: dict[str, Signature]
    main: int


class MemoryForm(Form, frozen=True):
    """A `Memory`; *window* is the offset and protection of an `mmap_fd`."""

    name: str
    handle: Handle
    size: int
    window: tuple[int, int] | None = None
    buffer: HardwareBufferDescription | None = None


class LentForm(msgspec.Struct, frozen=True, tag="lent"):
    """A `HostMemory` at *location* in the request's pools: an array of *dtype* and *shape*."""

    location: DataLocation
    dtype: str
    shape: Dimensions
    dimensions: Dimensions | None = None


class RequestForm(Form, frozen=True):
    """A `Request`."""

    inputs: tuple[hal.RequestArgument, ...]
    outputs: tuple[hal.RequestArgument, ...]
    pools: tuple[MemoryForm, ...]


class RoleForm(Form, frozen=True):
    """A `BufferRole`."""

    prepared: ObjectId
    kind: Literal["input", "output"]
    index: int
    frequency: float


class DescriptorForm(Form, frozen=True, tag="fd"):
    """A descriptor. It was not open if *place* is missing."""

    place: int | None


class ConstantsForm(Form, frozen=True, tag="constants"):
    """A pool of constants: *size* bytes of a memfd from byte *offset* on. The receiver
    maps a sealed one and copies others. *kind* is the sender's name of the memory.
    """

    place: int
    size: int
    kind: str = ""
    offset: int = 0


class ArrayForm(Form, frozen=True, tag="array"):
    """An array in memory that the client shares under the number *memory*."""

    memory: MemoryId
    offset: int
    dtype: DType
    shape: tuple[int, ...]
    writable: bool


class CancelForm(Form, frozen=True, tag="cancel"):
    """The cancel token of the call: a `Cancel` sets it, unless it *is_set* already."""

    is_set: bool


class ReportForm(Form, frozen=True, tag="report"):
    """The call's progress callback. `Progress` messages report to it."""


class FenceForm(Form, frozen=True, tag="fence"):
    """A fence, as a descriptor (`penstock.hal.DescriptorFence`)."""

    place: int


class ValueForm(Form, frozen=True, tag="value"):
    """The handle of a memory without a descriptor, for the driver to reject."""


HandleForm: TypeAlias = (
    DescriptorForm | ConstantsForm | ArrayForm | CancelForm | ReportForm | FenceForm | ValueForm
)


Handles: TypeAlias = Annotated[tuple[HandleForm, ...], msgspec.Meta(max_length=MAX_HANDLES)]
"""A table of handles. A message with a longer one is malformed."""
