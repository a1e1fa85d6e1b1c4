"""Executions that cannot lend arrays: private memory, pools, device buffers, strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from penstock.compilation.prepared import PreparedStep
from penstock.errors import DeadObject, GeneralFailure, OutputInsufficientSize
from penstock.execution.arena import allocate, is_sized, lent
from penstock.execution.results import Copying, call_execute, check_result, grown_sizes, shaped
from penstock.execution.run import Run
from penstock.hal import (
    DONE,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    Memory,
    PoolArgument,
    Request,
    RequestArgument,
    TokenArgument,
)
from penstock.hal.device import mappable_kinds, preferred_memory
from penstock.ir import DataLocation, DType, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.memory import MemoryPool, pool_of
from penstock.memory.bound import BoundMemory, StepUse
from penstock.memory.layout import lay_out
from penstock.partitioning.plan import Ports


def execute_in_pools(
    operands: Sequence[int],
    prepared: PreparedStep,
    request: Request,
    config: ExecutionConfig,
    copying: Copying,
) -> ExecutionResult:
    """Executes *request* with its `HostMemory` arguments moved to pools (NNAPI section 6.8).

    *operands* are those of the arguments. An argument in a pool that the device maps is not copied.
    All others go through an anonymous pool in the layout that the device prefers. Inputs are copied
    there before the execution, and outputs back after a success.
    """
    device = prepared.device
    copying.reason = f"device {device.name} takes pools only"
    given = [*request.inputs, *request.outputs]
    pools = list(request.pools)
    kinds, preference = mappable_kinds(device), preferred_memory(device)
    arguments: list[RequestArgument | None] = [_in_place(a, pools, kinds) for a in given]
    moved = [at for at, argument in enumerate(arguments) if argument is None]
    hosts = [_host(given[at]) for at in moved]
    arrays = [host.array for host in hosts]
    places, size = lay_out([a.nbytes for a in arrays], preference)
    if not moved:
        return call_execute(prepared, _request(request, arguments, pools), config)
    with MemoryPool.anonymous(max(size, 1)) as pool:
        content = pool.view(np.uint8, (max(size, 1),))
        parts = zip(places, arrays, strict=True)
        staged = [content[start : start + array.nbytes] for (start, _), array in parts]
        for at, host, part, (offset, padding) in zip(moved, hosts, staged, places, strict=True):
            place = DataLocation(len(pools), offset, part.nbytes)
            is_input = at < len(request.inputs)
            if is_input:
                copying.copy(part, _bytes(host.array), operands[at], out=False)
            arguments[at] = PoolArgument(place, _shape(host) if is_input else (), padding)
        whole = _request(request, arguments, [*pools, pool.memory])
        result = call_execute(prepared, whole, config)
        for at, array, part in zip(moved, arrays, staged, strict=True):
            if at >= len(request.inputs):
                copying.copy(_bytes(array), part, operands[at], out=True)
        return result


def _in_place(
    argument: RequestArgument, pools: list[Memory], kinds: Sequence[str]
) -> RequestArgument | None:
    """*argument* in its own pool, added to *pools*, without a copy; None if it has none."""
    if not isinstance(argument, HostMemory):
        return argument
    array = argument.array
    place = pool_of(array)
    if place is None or place.memory.name not in kinds or place.offset % array.itemsize:
        return None
    if place.memory not in pools:
        pools.append(place.memory)
    location = DataLocation(pools.index(place.memory), place.offset, array.nbytes)
    return PoolArgument(location, _shape(argument))


def _host(argument: RequestArgument) -> HostMemory:
    if not isinstance(argument, HostMemory):
        raise GeneralFailure(f"a {type(argument).__name__} is no memory of the host")
    return argument


def _shape(argument: HostMemory) -> tuple[int, ...]:
    return argument.array.shape if argument.dimensions is None else argument.dimensions


def _request(
    request: Request, arguments: Sequence[RequestArgument | None], pools: Sequence[Memory]
) -> Request:
    every = [a for a in arguments if a is not None]
    reading = len(request.inputs)
    return Request(tuple(every[:reading]), tuple(every[reading:]), tuple(pools))


def _bytes(array: NDArray) -> NDArray:
    return array.reshape(-1).view(np.uint8)


MAX_ATTEMPTS: Final = 8
"""Most "too small" answers of one step, before the runtime raises an error."""

FIRST_GUESS: Final = 4096
"""Bytes for an output of unknown shape at the first attempt."""


def transfer(ports: Ports, prepared: PreparedStep, run: Run) -> ExecutionResult:
    """Executes a step once on any device: reads inputs from the values of *run*, puts outputs
    there.

    - A device that does not share host memory uses its own memory, with copies in both directions.
      A device that accepts only pools uses a pool, with the same copies.
    - An output of unknown shape is retried with more memory until it fits (NNAPI sections 4.6 and
      4.7).
    - An existing array of an output of known shape is written in place. If outputs are copied, it
      is written only after a success.
    - Bound memory is used without a copy if the device accepts it, else copied through the host. A
      bound output that the device wrote is not in the values.
    """
    values, config = run.values, run.config
    capabilities = prepared.device.capabilities
    in_pools = not capabilities.accepts_host_memory
    private = not capabilities.shares_host_memory and not in_pools
    copying = Copying(ports.step, prepared.device.name, run.copies)
    buffers = None if not run.bound else Buffers(ports, prepared, run, run.bound, copying)
    taken, bound = ({}, {}) if buffers is None else (buffers.inputs, buffers.outputs)
    inputs = tuple(
        taken[i] if i in taken else _input(i, o, values[i], copying, private)
        for i, o in ports.inputs
    )
    operands = tuple(operand for _, operand in ports.outputs)
    sizes = [FIRST_GUESS] * len(operands)
    for _ in range(MAX_ATTEMPTS):
        given = [
            None if i in bound else _memory(i, o, size, values, private)
            for (i, o), size in zip(ports.outputs, sizes, strict=True)
        ]
        outputs = tuple(
            bound[index] if array is None else HostMemory(array)
            for array, (index, _) in zip(given, ports.outputs, strict=True)
        )
        request = Request(inputs, outputs, () if buffers is None else tuple(buffers.pools))
        try:
            if in_pools:
                every = [i for i, _ in (*ports.inputs, *ports.outputs)]
                result = execute_in_pools(every, prepared, request, config, copying)
            elif run.relay is not None and buffers is not None:
                # A fallback device begins after the fences.
                relay, run.relay = run.relay, None
                result = relay.execute(prepared, request, config, buffers.at_launch)
                run.notes += relay.notes
            else:
                result = call_execute(prepared, request, config)
            check_result(result, operands, given)
        except OutputInsufficientSize as error:
            if buffers is not None:
                buffers.lose()
            sizes = grown_sizes(sizes, operands, error)
            continue
        except BaseException as error:
            if buffers is not None:
                buffers.lose()
                if isinstance(error, DeadObject):
                    buffers.report_lost(error)
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
                values[index] = copying.copy_of(value, index, out=True) if private else value
            elif private:
                copying.copy(target(index, operand, values), array, index, out=True)
        if buffers is not None:
            buffers.finish(result)
        return result
    raise GeneralFailure(f"device {prepared.device.name} said 'too small' {MAX_ATTEMPTS} times")


class Buffers:
    """The *bound* operands of one step: as arguments if the device accepts them, else copied."""

    def __init__(
        self,
        ports: Ports,
        prepared: PreparedStep,
        run: Run,
        bound: Mapping[int, BoundMemory],
        copying: Copying,
    ) -> None:
        values = run.values
        self.pools: list[Memory] = []
        self.inputs: dict[int, RequestArgument] = {}
        self.outputs: dict[int, RequestArgument] = {}
        self._ports, self._values, self._bound, self._copying = ports, values, bound, copying
        from penstock.execution.adapters import unwrapped

        device, model = prepared.device, unwrapped(prepared.prepared)
        for position, (index, _) in enumerate(ports.inputs):
            if index not in bound or index in values:
                continue
            found = bound[index].argument(StepUse(device, model, "input", position), self.pools)
            if found is None:
                if run.relay is not None:
                    run.relay.await_drivers(run.config)
                values[index] = copying.fetch(bound[index], index)
            else:
                self.inputs[index] = found
        for position, (index, operand) in enumerate(ports.outputs):
            if index not in bound:
                continue
            found = bound[index].argument(StepUse(device, model, "output", position), self.pools)
            if found is not None:
                self.outputs[index] = found
                # A value staged for a device that failed is invalid.
                values.pop(index, None)
            elif is_sized(operand):
                staged = bound[index].stage(static_shape(operand.shape) or (), operand)
                if staged is not None:
                    values[index] = staged

    def lose(self) -> None:
        """After a failed execution: marks its outputs as without a value."""
        for index in self.outputs:
            self._bound[index].lost()

    def report_lost(self, error: DeadObject) -> None:
        """Raises, from *error*, the loss of the first operand that was in the dead process."""
        for index in (*self.inputs, *self.outputs):
            if (gone := self._bound[index].gone()) is not None:
                gone.copies = error.copies
                raise gone from error

    @property
    def at_launch(self) -> Callable[[], None] | None:
        """Marks the outputs as written, before they are; None if some lie outside the device's own
        memory.
        """
        arguments = (self.outputs.get(i) for i, _ in self._ports.outputs)
        whole = all(isinstance(argument, TokenArgument) for argument in arguments)
        return partial(self.finish, DONE) if whole else None

    def finish(self, result: ExecutionResult) -> None:
        """After a successful execution: gives the outputs their values, also copied ones."""
        for place, (index, operand) in enumerate(self._ports.outputs):
            if index in self.outputs:
                reported = result.output_shapes[place].dimensions if result.output_shapes else None
                shape = static_shape(operand.shape) if reported is None else tuple(reported)
                self._bound[index].written(shape or ())
            elif index in self._bound:
                self._copying.put(self._bound[index], self._values[index], index)


def target(index: int, operand: Operand, values: dict[int, NDArray]) -> NDArray:
    """The array for an output of known shape: the one in *values*, or a new one put there."""
    array = values.get(index)
    if array is None:
        array = values[index] = allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
    return array


def _input(
    index: int, operand: Operand, value: NDArray, copying: Copying, private: bool
) -> HostMemory:
    if operand.dtype is DType.STRING:
        from penstock.ir.builder import pack_strings

        packed = copying.packed(lambda: pack_strings(value), index)
        return HostMemory(np.frombuffer(packed, np.uint8), value.shape)
    return HostMemory(lent(copying.copy_of(value, index, out=False) if private else value))


def _memory(
    index: int, operand: Operand, size: int, values: dict[int, NDArray], private: bool
) -> NDArray:
    if not is_sized(operand):
        return allocate((size,), np.dtype(np.uint8))
    if private:
        return allocate(static_shape(operand.shape) or (), operand.dtype.numpy)
    return target(index, operand, values)
