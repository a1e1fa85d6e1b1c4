"""Executions that need more than lending: private memory, pools, strings, and shapes learned on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt
from penstock.errors import (
    FOREIGN,
    Cancelled,
    DeadObject,
    DriverError,
    GeneralFailure,
    OutputInsufficientSize,
)
from penstock.execution.results import allocate, check_result, grown_sizes, is_sized, shaped
from penstock.hal import (
    NO_VALUE_ARGUMENT,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    Memory,
    Request,
    RequestArgument,
)
from penstock.hal.request import STAGED
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.partitioning.plan import ExecutionStep

if TYPE_CHECKING:
    from penstock.memory.bound import BoundMemory

MAX_ATTEMPTS: Final = 8
"""How often a step may answer "too small" before the runtime stops believing it."""

FIRST_GUESS: Final = 4096
"""Bytes given to an output of unknown shape at the first attempt."""


class Ports(Struct, frozen=True):
    """The arguments of a step: the plan's operand that each one is, and how the step's model describes it."""

    step: int
    inputs: tuple[tuple[int, Operand], ...]
    outputs: tuple[tuple[int, Operand], ...]


def ports_of(step: ExecutionStep) -> Ports:
    """The arguments of *step*, in order."""
    entry = step.model.entry
    return Ports(
        step.index,
        tuple(zip(step.inputs, (entry.operands[i] for i in entry.inputs), strict=True)),
        tuple(zip(step.outputs, (entry.operands[i] for i in entry.outputs), strict=True)),
    )


def execute(
    ports: Ports,
    prepared: PreparedStep,
    values: dict[int, NDArray],
    config: ExecutionConfig,
    copies: list[CopyReceipt],
    bound: Mapping[int, BoundMemory] | None = None,
) -> ExecutionResult:
    """Executes once on any device: inputs are read from *values* (operand -> array), outputs put there.

    A device that does not share host memory reads and writes memory of its own, copied both ways; one that
    takes pools only likewise, in a pool. An output of unknown shape is tried with more memory until it
    fits (NNAPI sections 4.6 and 4.7). Arrays already in *values* for outputs of known shape are written in place, and
    only by an execution that succeeded where they are copied. What is *bound* is read and written where it lies if the
    device takes it, else copied through the host; an output that the device wrote is not in *values*.
    """
    capabilities = prepared.device.capabilities
    in_pools = not capabilities.accepts_host_memory
    private = not capabilities.shares_host_memory and not in_pools
    copying = Copying(ports.step, prepared.device.name, copies)
    direct = None if bound is None else Direct(ports, prepared, values, bound, copying)
    inputs: tuple[RequestArgument, ...] = tuple(
        direct.inputs[i]
        if direct is not None and i in direct.inputs
        else _input(i, o, values[i], copying, private)
        for i, o in ports.inputs
    )
    operands = tuple(operand for _, operand in ports.outputs)
    sizes = [FIRST_GUESS] * len(operands)
    for _ in range(MAX_ATTEMPTS):
        given = [
            None
            if direct is not None and i in direct.outputs
            else _memory(i, o, size, values, private)
            for (i, o), size in zip(ports.outputs, sizes, strict=True)
        ]
        outputs = tuple(
            _wanted(array, index, direct)
            for array, (index, _) in zip(given, ports.outputs, strict=True)
        )
        request = Request(inputs, outputs, () if direct is None else tuple(direct.pools))
        try:
            if in_pools:
                from penstock.execution.pools import execute_in_pools

                result = execute_in_pools(ports, prepared, request, config, copying)
            else:
                result = call_execute(prepared, request, config)
            check_result(result, operands, given)
        except OutputInsufficientSize as error:
            if direct is not None:
                direct.lose()
            sizes = grown_sizes(sizes, operands, error)
            continue
        except BaseException as error:
            if direct is not None:
                direct.lose()
                if isinstance(error, DeadObject):
                    direct.tell_lost(error)
            raise
        for place, (index, operand) in enumerate(ports.outputs):
            array = given[place]
            if array is None:
                continue
            if not is_sized(operand):
                dimensions = tuple(result.output_shapes[place].dimensions)
                if operand.dtype is DType.STRING:
                    values[index] = copying.unpacked(array, operand, dimensions, index)
                    continue
                value = shaped(array, operand, dimensions)
                values[index] = copying.home(value, index) if private else value
            elif private:
                copying.copy(target(index, operand, values), array, index, out=True)
        if direct is not None:
            direct.finish(result)
        return result
    raise GeneralFailure(f"device {prepared.device.name} said 'too small' {MAX_ATTEMPTS} times")


class Direct:
    """The *bound* operands of one step: those that its device takes, by argument; the others copied."""

    def __init__(
        self,
        ports: Ports,
        prepared: PreparedStep,
        values: dict[int, NDArray],
        bound: Mapping[int, BoundMemory],
        copying: Copying,
    ) -> None:
        self.pools: list[Memory] = []
        self.inputs: dict[int, RequestArgument] = {}
        self.outputs: dict[int, RequestArgument] = {}
        self._ports, self._values, self._bound, self._copying = ports, values, bound, copying
        from penstock.execution.holding import unheld

        device, model = prepared.device, unheld(prepared.prepared)
        for position, (index, _) in enumerate(ports.inputs):
            if index not in bound or index in values:
                continue
            found = bound[index].argument(device, model, "input", position, self.pools)
            if found is not None:
                self.inputs[index] = found
            else:
                values[index] = copying.fetch(bound[index], index)
        for position, (index, operand) in enumerate(ports.outputs):
            if index not in bound:
                continue
            found = bound[index].argument(device, model, "output", position, self.pools)
            if found is not None:
                self.outputs[index] = found
                # What was staged for a device that failed is not the value.
                values.pop(index, None)
            elif is_sized(operand):
                staged = bound[index].stage(static_shape(operand.shape) or (), operand)
                if staged is not None:
                    values[index] = staged

    def lose(self) -> None:
        """The execution failed: what it was to write has no value."""
        for index in self.outputs:
            self._bound[index].lost()

    def tell_lost(self, error: DeadObject) -> None:
        """The device's process ended: raises, from *error*, that of the first operand that ended with it, if one did."""
        for index in (*self.inputs, *self.outputs):
            if (gone := self._bound[index].gone()) is not None:
                gone.copies = error.copies
                raise gone from error

    def finish(self, result: ExecutionResult) -> None:
        """The execution succeeded: its outputs have their values, those copied too."""
        for place, (index, operand) in enumerate(self._ports.outputs):
            if index in self.outputs:
                told = result.output_shapes[place].dimensions if result.output_shapes else None
                shape = static_shape(operand.shape) if told is None else tuple(told)
                self._bound[index].written(shape or ())
            elif index in self._bound:
                self._copying.put(self._bound[index], self._values[index], index)


class Copying:
    """Copies at the boundary of one step, or of the run, each with its receipt in *copies*."""

    def __init__(self, step: int | None, device: str, copies: list[CopyReceipt]) -> None:
        self._step, self._device, self._copies = step, device, copies
        self.reason = f"device {device} shares no host memory"

    def copy(self, destination: NDArray, source: NDArray, operand: int, *, out: bool) -> None:
        """Copies *source* over *destination*, from the device to the host (*out*) or the other way."""
        began = time.perf_counter_ns()
        np.copyto(destination, source)
        places = (self._device, "host") if out else ("host", self._device)
        self._copies.append(
            CopyReceipt(
                source.nbytes,
                *places,
                self.reason,
                self._step,
                operand,
                began,
                time.perf_counter_ns() - began,
            )
        )

    def fetch(self, memory: BoundMemory, operand: int) -> NDArray:
        """The value of *memory*, which the device does not take, in the host's; where the host sees it, as it is."""
        if (array := memory.array) is not None:
            return lent(array)
        began = time.perf_counter_ns()
        value = memory.read()
        self._moved(value.nbytes, memory.name, "host", operand, began)
        self._staged(memory, value.nbytes, operand)
        return value

    def put(self, memory: BoundMemory, value: NDArray, operand: int) -> None:
        """Puts *value* into *memory*, which the device did not take."""
        began = time.perf_counter_ns()
        memory.write(value)
        self._moved(value.nbytes, "host", memory.name, operand, began)
        self._staged(memory, value.nbytes, operand)

    def _staged(self, memory: BoundMemory, nbytes: int, operand: int) -> None:
        """The copies made on the way, whose time is that of the one before."""
        for _ in range(memory.staged):
            self._copies.append(CopyReceipt(nbytes, "host", "host", STAGED, self._step, operand))

    def _moved(
        self, nbytes: int, source: str, destination: str, operand: int, began_ns: int
    ) -> None:
        spent = time.perf_counter_ns() - began_ns
        reason = f"{self._device} does not take it as it is"
        self._copies.append(
            CopyReceipt(nbytes, source, destination, reason, self._step, operand, began_ns, spent)
        )

    def packed(self, pack: Callable[[], bytes], operand: int) -> bytes:
        """What *pack* makes of strings for the device."""
        began = time.perf_counter_ns()
        content = pack()
        self._strings(len(content), ("host", self._device), operand, began)
        return content

    def unpacked(self, flat: NDArray, operand: Operand, shape: tuple[int, ...], i: int) -> NDArray:
        """The strings that the device left at the start of *flat*, as operand *i*."""
        began = time.perf_counter_ns()
        value = shaped(flat, operand, shape)
        self._strings(sum(map(len, value.flat)), (self._device, "host"), i, began)
        return value

    def _strings(self, nbytes: int, route: tuple[str, str], operand: int, began_ns: int) -> None:
        spent = time.perf_counter_ns() - began_ns
        reason = "strings travel in TFLite's string-tensor layout"
        self._copies.append(
            CopyReceipt(nbytes, *route, reason, self._step, operand, began_ns, spent)
        )

    def home(self, value: NDArray, operand: int) -> NDArray:
        """*value*, which lies in the device's memory, in memory of its own. Strings are objects already."""
        if value.dtype.hasobject:
            return value
        kept = allocate(value.shape, value.dtype)
        self.copy(kept, value, operand, out=True)
        return kept

    def away(self, value: NDArray, operand: int) -> NDArray:
        """*value* in memory that only the device has."""
        lent_away = allocate(value.shape, value.dtype)
        self.copy(lent_away, value, operand, out=False)
        return lent_away


def target(index: int, operand: Operand, values: dict[int, NDArray]) -> NDArray:
    """The array of an output of known shape: the one in *values*, or a new one put there."""
    array = values.get(index)
    if array is None:
        array = values[index] = allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
    return array


def lent(array: NDArray) -> NDArray:
    """*array* as a driver gets it to read: a view it cannot write through."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.setflags(False)  # type: ignore[call-arg]  # NumPy takes it so, and by its name it takes twice as long
    return view


def call_execute(
    prepared: PreparedStep, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    """`execute` with its contract enforced: whatever else a driver raises is a `GeneralFailure`."""
    try:
        return prepared.prepared.execute(request, config)
    except (DriverError, Cancelled):
        raise
    except FOREIGN as error:
        raise not_agreed(prepared, error) from error


def not_agreed(prepared: PreparedStep, error: BaseException) -> GeneralFailure:
    """What an exception counts as that no driver may raise."""
    return GeneralFailure(f"device {prepared.device.name} failed in execute: {error!r}")


def _wanted(array: NDArray | None, index: int, direct: Direct | None) -> RequestArgument:
    if array is None and direct is not None:
        return direct.outputs[index]
    return NO_VALUE_ARGUMENT if array is None else HostMemory(array)


def _input(
    index: int, operand: Operand, value: NDArray, copying: Copying, private: bool
) -> HostMemory:
    if operand.dtype is DType.STRING:
        from penstock.ir.builder import pack_strings

        packed = copying.packed(lambda: pack_strings(value), index)
        return HostMemory(np.frombuffer(packed, np.uint8), value.shape)
    return HostMemory(lent(copying.away(value, index) if private else value))


def _memory(
    index: int, operand: Operand, size: int, values: dict[int, NDArray], private: bool
) -> NDArray:
    """Where the driver writes an output."""
    if not is_sized(operand):
        return allocate((size,), np.dtype(np.uint8))
    if private:
        return allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
    return target(index, operand, values)
