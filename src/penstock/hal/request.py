"""A request: where the inputs and outputs of one execution are, and its result.

There are three kinds of argument. A `PoolArgument` lies in a `Memory` of the request, which the
driver maps by its name. A `TokenArgument` is a driver-managed buffer. A `HostMemory` is memory of
the caller, borrowed for this call, in process only. `NoValue` stands for an omitted optional.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.ir import DataLocation, NDArray
from penstock.ir.types import MAX_RANK

Dimensions: TypeAlias = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_RANK)]
"""Bounded in messages: the product of many large dimensions takes hours."""


class Memory(msgspec.Struct, frozen=True, weakref=True):
    """A shareable region, unmapped (NNAPI HAL `hidl_memory`).

    *name* is the kind of *handle* and how to map it: "ashmem" and "mmap_fd" have a file descriptor
    (mmap_fd with offset and protection), "hardware_buffer_blob" and "hardware_buffer" a buffer
    object. *size* is in bytes. A name that the driver does not know, or that contradicts the
    buffer's format, raises `GeneralFailure`.
    """

    name: str
    handle: Any
    size: int


class PoolArgument(msgspec.Struct, frozen=True, tag="pool"):
    """An argument at *location* in the request's pools.

    The driver may overwrite *padding* further bytes after it. *dimensions* refine the operand's;
    empty means those of the model.
    """

    location: DataLocation
    dimensions: Dimensions = ()
    padding: int = 0


class TokenArgument(msgspec.Struct, frozen=True, tag="token"):
    """A driver-managed buffer, by the token that `Device.allocate` gave."""

    token: int
    dimensions: Dimensions = ()


class PaddedBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Flat bytes that hold arrays of `HostMemory`, each at a multiple of 64 bytes from the first.

    The driver may overwrite the bytes up to the next multiple, as the *padding* of a pool's
    argument. It may keep the bytes until its prepared model is closed. Arrays outside `PaddedBytes`
    allow neither.
    """


class HostMemory(msgspec.Struct, frozen=True, tag="host", eq=False):
    """Memory of the caller, borrowed for this call.

    An input, or an output whose shape is known, is a C-contiguous array of the operand's dtype and
    full shape. An output of unknown shape is a flat uint8 array whose length is the capacity: the
    driver writes the value's bytes from its start and reports the shape. A string operand is a flat
    uint8 array too, in TFLite's string-tensor layout; *dimensions* are the shape of a string input.

    The driver does not write inputs, and keeps nothing after the call returns. Two are equal if
    they are the same object.
    """

    array: NDArray
    dimensions: Dimensions | None = None


class NoValue(msgspec.Struct, frozen=True, tag="none"):
    """An omitted optional input, or an output that the caller does not want."""


RequestArgument: TypeAlias = PoolArgument | TokenArgument | HostMemory | NoValue

NO_VALUE_ARGUMENT: Final = NoValue()


class Request(msgspec.Struct, frozen=True, weakref=True):
    """One argument for every input and output of the prepared model, state ports included.

    They are in the order of its entry subgraph's `inputs` and `outputs`.
    """

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory, ...] = ()


class ProvenRequest(Request, frozen=True):
    """A request whose arguments `validate_request` need not check again.

    The runtime made or checked each argument, and the prepared model has accepted arguments of the
    same dtypes and shapes. Never made from the data of another process.
    """


class OutputShape(msgspec.Struct, frozen=True):
    """The true shape of one output, and whether the memory given for it was enough."""

    dimensions: Dimensions
    is_sufficient: bool = True


class OperationTiming(msgspec.Struct, frozen=True):
    """Time of one kernel in nanoseconds; *start_ns* counts from the start of the execution.

    *operations* are indexes into the prepared model's entry subgraph: those that the kernel
    computes, fused or not. *name* is the engine's name for it.
    """

    operations: tuple[int, ...]
    name: str
    start_ns: int
    duration_ns: int


class Timing(msgspec.Struct, frozen=True):
    """Nanoseconds; None is unknown. Time on the device is no more than time in the driver.

    *operations* are the driver's times of its kernels, in the order they ran. Only
    `ExecutionConfig.measure` requests them.
    """

    on_device_ns: int | None = None
    in_driver_ns: int | None = None
    operations: tuple[OperationTiming, ...] = ()


NO_TIMING: Final = Timing()


class ArgumentCopy(msgspec.Struct, frozen=True, array_like=True):
    """A copy of one argument on its way to a device or back.

    It is argument *argument* of the request's inputs, or of its outputs (*out*). *start_ns* is on
    the clock of `time.perf_counter_ns`. *by_driver*: the driver copied it between the host's memory
    and the device's own. Otherwise it was copied between processes.
    """

    argument: int
    out: bool
    nbytes: int
    start_ns: int
    wall_ns: int
    by_driver: bool = False


class ExecutionResult(msgspec.Struct, frozen=True):
    """Result of a successful execution (NNAPI section 4.7).

    *output_shapes* is empty, or has one entry per output, all sufficient. It is required if an
    output's shape was unknown. *copies* are optional: those that a driver made between the host's
    memory and the device's own, and those between processes.
    """

    output_shapes: tuple[OutputShape, ...] = ()
    timing: Timing = NO_TIMING
    copies: tuple[ArgumentCopy, ...] = ()


class RemoteResult(ExecutionResult, frozen=True):
    """Result of an execution in another process, with incidents, which are sentences."""

    incidents: tuple[str, ...] = ()


DONE: Final = ExecutionResult()
"""The result of an execution that has nothing to report."""
