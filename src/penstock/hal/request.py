"""A request: where the inputs and outputs of one execution are, and what came of it.

There are three kinds of argument. A `PoolArgument` lies in a `Memory` of the request, which the
driver maps by its name; a `TokenArgument` is a driver-managed buffer; a `HostMemory` is memory of
the caller, borrowed for this call, in process only. `NoValue` stands for an omitted optional.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.ir import DataLocation, NDArray
from penstock.ir.validate import MAX_RANK

Dimensions: TypeAlias = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_RANK)]
"""Bounded in messages: the product of many large dimensions takes hours."""


class Memory(msgspec.Struct, frozen=True, weakref=True):
    """A shareable region, unmapped (NNAPI HAL `hidl_memory`).

    *name* says what *handle* is and how to map it: "ashmem" and "mmap_fd" have a file descriptor
    (mmap_fd with offset and protection), "hardware_buffer_blob" and "hardware_buffer" a buffer
    object. *size* is in bytes. A name that the driver does not know, or one at odds with the
    buffer's format, is `GeneralFailure`.
    """

    name: str
    handle: Any
    size: int


class PoolArgument(msgspec.Struct, frozen=True, tag="pool"):
    """*location* in the request's pools; *padding* further bytes after it may be overwritten by the
    driver. *dimensions* refine the operand's; empty means as the model says.
    """

    location: DataLocation
    dimensions: Dimensions = ()
    padding: int = 0


class TokenArgument(msgspec.Struct, frozen=True, tag="token"):
    """A driver-managed buffer, by the token that `Device.allocate` gave."""

    token: int
    dimensions: Dimensions = ()


class PaddedBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Flat bytes that arrays of `HostMemory` lie in, each at a multiple of 64 bytes from the first.
    The driver may overwrite what is left up to the next multiple, as the *padding* of a pool's
    argument, and may keep them until its prepared model is closed. With other arrays it may do
    neither.
    """


class HostMemory(msgspec.Struct, frozen=True, tag="host", eq=False):
    """Memory of the caller, borrowed for this call.

    An input, or an output whose shape is known, is a C-contiguous array of the operand's dtype and
    full shape. An output of unknown shape is a flat uint8 array: its length is the capacity, the
    driver writes the value's bytes from its start and reports the shape; so is a string operand,
    in TFLite's string-tensor layout, with *dimensions* giving the shape of a string input. Inputs
    are not written; nothing is kept after the call returns. Two are equal where they are the same.
    """

    array: NDArray
    dimensions: Dimensions | None = None


class NoValue(msgspec.Struct, frozen=True, tag="none"):
    """An omitted optional input, or an output nobody wants."""


RequestArgument: TypeAlias = PoolArgument | TokenArgument | HostMemory | NoValue

NO_VALUE_ARGUMENT: Final = NoValue()


class Request(msgspec.Struct, frozen=True, weakref=True):
    """One argument for every input and output of the prepared model, state ports included, in
    the order of its entry subgraph's `inputs` and `outputs`.
    """

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory, ...] = ()


class ProvenRequest(Request, frozen=True):
    """A request of arguments for which `validate_request` need not look again: the runtime has made
    or checked each of them, and the prepared model has accepted others of the same dtypes and
    shapes. Never made of what came from another process.
    """


class OutputShape(msgspec.Struct, frozen=True):
    """The true shape of one output, and whether the memory given for it was enough."""

    dimensions: Dimensions
    is_sufficient: bool = True


class OperationTiming(msgspec.Struct, frozen=True):
    """What one kernel took: the *operations* (indexes into the prepared model's entry subgraph)
    that it computes, fused or not, the engine's *name* for it, and nanoseconds: *start_ns* counted
    from the beginning of the execution.
    """

    operations: tuple[int, ...]
    name: str
    start_ns: int
    duration_ns: int


class Timing(msgspec.Struct, frozen=True):
    """Nanoseconds; None is unknown. Time on the device is no more than time in the driver.
    *operations* is what the driver knows of its kernels, in the order they ran; only asked for by
    `ExecutionConfig.measure`.
    """

    on_device_ns: int | None = None
    in_driver_ns: int | None = None
    operations: tuple[OperationTiming, ...] = ()


NO_TIMING: Final = Timing()


class ExecutionResult(msgspec.Struct, frozen=True):
    """What a successful execution returns: *output_shapes* is empty, or one entry per output, all
    sufficient (NNAPI section 4.7). It must be there when an output's shape was unknown.
    """

    output_shapes: tuple[OutputShape, ...] = ()
    timing: Timing = NO_TIMING


class ArgumentCopy(msgspec.Struct, frozen=True):
    """A copy of one argument on its way to a device or back: of the input, or the output (*out*),
    number *argument* of the request. *start_ns* is on the clock of `time.perf_counter_ns`.
    """

    argument: int
    out: bool
    nbytes: int
    start_ns: int
    wall_ns: int


class RemoteResult(ExecutionResult, frozen=True):
    """The result of an execution that another process did: what was copied between the processes,
    and what else happened on the way, in words.
    """

    copies: tuple[ArgumentCopy, ...] = ()
    incidents: tuple[str, ...] = ()


DONE: Final = ExecutionResult()
"""The result of an execution that has nothing to report."""
