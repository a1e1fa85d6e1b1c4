"""Execution of a program of the lab device on one request."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeGuard

import numpy as np
from msgspec.structs import replace

from penstock import errors, hal
from penstock.driverkit.request_arrays import input_arrays, write_results
from penstock.hal.request import NO_TIMING
from penstock.ir import Lifetime, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.memory import Mapping, map_memory
from penstock.memory.hardware import map_image
from penstock.memory.mapping import HARDWARE_BUFFER
from penstock.testing.lab.machine import ROWS, LaidOut, Machine, Value
from penstock.testing.lab.program import Program

if TYPE_CHECKING:
    from penstock.memory.domain import Claim

IMAGE_RANK: Final = 4
"""Dimensions of a mapped image: layers, height, width, numbers per pixel. Other memory is flat."""


def execute(
    program: Program,
    request: hal.Request,
    config: hal.ExecutionConfig,
    machine: Machine,
    laid_out: LaidOut,
    claim: Claim,
) -> hal.ExecutionResult:
    """Runs *program* on a validated request. *claim* has the buffers that the request names."""
    begun = time.perf_counter_ns()
    clock: list[int] | None = [] if config.measure else None
    slots, operands = (
        [Operand(program.slots[n].dtype, program.slots[n].shape, kind) for n in numbers]
        for numbers, kind in (
            (program.inputs, Lifetime.SUBGRAPH_INPUT),
            (program.outputs, Lifetime.SUBGRAPH_OUTPUT),
        )
    )
    with ExitStack() as mapped:
        pools = [mapped.enter_context(_map(memory, machine)).array for memory in request.pools]
        inputs = tuple(map(partial(_input, pools), request.inputs, slots))
        given = input_arrays(replace(request, inputs=inputs), slots, pools, claim)
        outputs = list(request.outputs)
        images: dict[int, NDArray] = {}
        for at, argument in enumerate(request.outputs):
            if _is_image(argument, pools):
                images[at] = _fitting(pools[argument.location.pool], operands[at])
        try:
            results = run(program, given, config, clock, machine, laid_out)
            buffers = {
                at: machine.kept(results[at])
                for at, argument in enumerate(request.outputs)
                if isinstance(argument, hal.TokenArgument)
            }
        except MemoryError as error:
            raise errors.ResourceExhaustedTransient("no memory for a value") from error
        for at in (*buffers, *images):
            outputs[at] = hal.NO_VALUE_ARGUMENT
        rows = [
            np.broadcast_to(np.float32(0), r.shape)
            if outputs[at] is hal.NO_VALUE_ARGUMENT and at not in images
            else machine.rows(r)
            for at, r in enumerate(results)
        ]
        write_results(replace(request, outputs=tuple(outputs)), operands, rows, pools)
        for at, pixels in images.items():
            pixels[...] = rows[at].reshape(pixels.shape)
        for at, value in buffers.items():
            claim.put(at, value, value.shape)
    spent = time.perf_counter_ns() - begun
    timing = NO_TIMING if clock is None else hal.Timing(spent, spent, _timed(program, clock, begun))
    return hal.ExecutionResult(tuple(hal.OutputShape(r.shape) for r in results), timing)


def _timed(program: Program, clock: Sequence[int], begun: int) -> tuple[hal.OperationTiming, ...]:
    return tuple(
        hal.OperationTiming(one.operations, one.opcode, start - begun, end - start)
        for one, (start, end) in zip(program.instructions, pairwise(clock), strict=True)
    )


def run(
    program: Program,
    given: Sequence[Value],
    config: hal.ExecutionConfig,
    clock: list[int] | None = None,
    machine: Machine = ROWS,
    laid_out: LaidOut | None = None,
) -> list[Value]:
    """The outputs for inputs of the program's types and shapes, computed by *machine*.

    *clock* receives the start time of each instruction and the end of the last. *laid_out* caches
    constants in tiles.
    """
    laid_out = laid_out or LaidOut()
    values: dict[int, Value] = {
        n: program.constant(slot) for n, slot in enumerate(program.slots) if slot.offset is not None
    }
    values.update(zip(program.inputs, given, strict=True))
    with np.errstate(all="ignore"):
        for place, one in enumerate(program.instructions):
            if config.cancel is not None:
                config.cancel.check()
            if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
                raise errors.MissedDeadlineTransient(
                    f"the deadline passed before instruction {place}"
                )
            if clock is not None:
                clock.append(time.perf_counter_ns())
            inputs = [values[n] for n in one.inputs]
            values[one.output] = machine.compute(one, inputs, program, laid_out)
    if clock is not None:
        clock.append(time.perf_counter_ns())
    return [values[n] for n in program.outputs]


def _map(memory: hal.Memory, machine: Machine) -> Mapping:
    """The bytes of *memory*, flat, or the four-dimensional pixels of an image."""
    if memory.name == HARDWARE_BUFFER and memory.name in machine.kinds:
        return map_image(memory)
    return map_memory(memory, machine.kinds)


def _is_image(
    argument: hal.RequestArgument, pools: Sequence[NDArray]
) -> TypeGuard[hal.PoolArgument]:
    return (
        isinstance(argument, hal.PoolArgument) and pools[argument.location.pool].ndim == IMAGE_RANK
    )


def _input(
    pools: Sequence[NDArray], argument: hal.RequestArgument, operand: Operand
) -> hal.RequestArgument:
    """*argument*, or a copy of the image that it names."""
    if not _is_image(argument, pools):
        return argument
    pixels = np.array(_fitting(pools[argument.location.pool], operand))
    return hal.HostMemory(pixels.reshape(static_shape(operand.shape) or ()))


def _fitting(image: NDArray, operand: Operand) -> NDArray:
    """*image*; it must have as many numbers as a value of *operand*."""
    shape = static_shape(operand.shape)
    if shape is None or image.dtype != operand.dtype.numpy or image.size != math.prod(shape):
        raise errors.InvalidArgument(
            f"an image of {image.dtype}{list(image.shape)} is no {operand.dtype.value} "
            f"of shape {operand.shape}"
        )
    return image
