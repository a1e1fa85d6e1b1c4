"""Running a program of the lab device on one request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np

from penstock.errors import (
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
)
from penstock.hal import (
    NO_TIMING,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    NoValue,
    OperationTiming,
    OutputShape,
    PoolArgument,
    Request,
    RequestArgument,
    Timing,
)
from penstock.ir import NDArray
from penstock.memory import map_memory
from penstock.testing.lab.kernels import OPCODES, activate
from penstock.testing.lab.program import Program, Slot


def execute(program: Program, request: Request, config: ExecutionConfig) -> ExecutionResult:
    """Runs *program* on a request that was checked against its interface."""
    begun = time.perf_counter_ns()
    with ExitStack() as mapped:
        pools = [mapped.enter_context(map_memory(memory)).array for memory in request.pools]
        slots = program.slots
        given = [
            _input(slots[n], argument, pools)
            for n, argument in zip(program.inputs, request.inputs, strict=True)
        ]
        places = [
            _output(slots[n], argument, pools)
            for n, argument in zip(program.outputs, request.outputs, strict=True)
        ]
        try:
            clock: list[int] | None = [] if config.measure else None
            results = run(program, given, config, clock)
        except MemoryError as error:
            raise ResourceExhaustedTransient("no memory for a value") from error
        for place, result in zip(places, results, strict=True):
            if place is not None:
                np.copyto(place, result)
    spent = time.perf_counter_ns() - begun
    timing = NO_TIMING if clock is None else Timing(spent, spent, _timed(program, clock, begun))
    return ExecutionResult(tuple(OutputShape(r.shape) for r in results), timing)


def _timed(program: Program, clock: Sequence[int], begun: int) -> tuple[OperationTiming, ...]:
    return tuple(
        OperationTiming(one.operations, one.opcode, start - begun, end - start)
        for one, (start, end) in zip(program.instructions, pairwise(clock), strict=True)
    )


def run(
    program: Program,
    given: Sequence[NDArray],
    config: ExecutionConfig,
    clock: list[int] | None = None,
) -> list[NDArray]:
    """The outputs for inputs of the program's types and shapes. *clock* is given the time at which each instruction
    begins and the last one ends.
    """
    values = {
        n: program.constant(slot) for n, slot in enumerate(program.slots) if slot.offset is not None
    }
    values.update(zip(program.inputs, given, strict=True))
    with np.errstate(all="ignore"):
        for place, one in enumerate(program.instructions):
            if config.cancel is not None:
                config.cancel.check()
            if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
                raise MissedDeadlineTransient(f"the deadline passed before instruction {place}")
            if clock is not None:
                clock.append(time.perf_counter_ns())
            inputs = [values[n] for n in one.inputs]
            result = OPCODES[one.opcode].run(one, inputs, program.slots[one.output].shape)
            values[one.output] = activate(one.activation, result)
    if clock is not None:
        clock.append(time.perf_counter_ns())
    return [values[n] for n in program.outputs]


def _input(slot: Slot, argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray:
    match argument:
        case HostMemory(array=array):
            return array
        case PoolArgument():
            return _view(slot, argument, pools)
    raise InvalidArgument(f"the lab device takes no {type(argument).__name__} for an input")


def _output(slot: Slot, argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray | None:
    """Where a result goes; None for one that nobody wants."""
    match argument:
        case HostMemory(array=array):
            return array
        case NoValue():
            return None
        case PoolArgument():
            place = _view(slot, argument, pools)
            if not place.flags.writeable:
                raise GeneralFailure("an output lies in a pool that cannot be written")
            return place
    raise InvalidArgument(f"the lab device takes no {type(argument).__name__} for an output")


def _view(slot: Slot, argument: PoolArgument, pools: Sequence[NDArray]) -> NDArray:
    place = argument.location
    content = pools[place.pool][place.offset : place.offset + slot.nbytes]
    view: NDArray = content.view(slot.dtype.numpy).reshape(slot.shape)
    return view
