"""Running a program of the lab device on one request."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.driverkit.postponed_write import PostponedWrite
from penstock.errors import (
    CacheError,
    ClosedError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
from penstock.hal import (
    CacheReport,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    Memory,
    NoValue,
    OperationTiming,
    OutputShape,
    PoolArgument,
    PreparedModelBase,
    Request,
    RequestArgument,
    Timing,
    TokenArgument,
    validate_request,
)
from penstock.hal.request import NO_TIMING
from penstock.ir import Model, NDArray
from penstock.ir.types import is_static
from penstock.memory import Mapping, map_memory
from penstock.memory.domain import has_tokens
from penstock.memory.images import map_image
from penstock.memory.mapping import HARDWARE_BUFFER
from penstock.testing.lab.compiler import interface
from penstock.testing.lab.machine import ROWS, LaidOut, Machine, Tiled, Value
from penstock.testing.lab.program import Program, Slot

if TYPE_CHECKING:
    from penstock.memory.domain import Claim
    from penstock.sealed.late import LateWriter
    from penstock.testing.lab.device import Compiled, LabDevice


IMAGE_RANK: Final = 4
"""Dimensions of a mapped image: layers, height, width, numbers a pixel. Other memory is flat."""


def execute(
    program: Program,
    request: Request,
    config: ExecutionConfig,
    machine: Machine,
    laid_out: LaidOut,
    claim: Claim | None = None,
) -> ExecutionResult:
    """Runs *program* on a request that was checked against its interface; *claim* has the buffers
    that it names.
    """
    begun = time.perf_counter_ns()
    with ExitStack() as mapped:
        pools = [mapped.enter_context(_map(memory, machine)).array for memory in request.pools]
        slots = program.slots
        given: list[Value] = [
            claim.inputs[at].content
            if claim is not None and at in claim.inputs
            else _input(slots[program.inputs[at]], argument, pools)
            for at, argument in enumerate(request.inputs)
        ]
        places = [
            _output(slots[n], argument, pools)
            for n, argument in zip(program.outputs, request.outputs, strict=True)
        ]
        try:
            clock: list[int] | None = [] if config.measure else None
            results = run(program, given, config, clock, machine, laid_out)
            _check_room(places, results, slots, program)
            for at, argument in enumerate(request.outputs):
                if isinstance(argument, TokenArgument):
                    if claim is None:
                        raise InvalidArgument(
                            f"no buffer of this device has token {argument.token}"
                        )
                    result = results[at]
                    claim.put(at, _own(result, machine), result.shape)
        except MemoryError as error:
            raise ResourceExhaustedTransient("no memory for a value") from error
        for place, result in zip(places, results, strict=True):
            if place is not None:
                _write(place, machine.rows(result))
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
    given: Sequence[Value],
    config: ExecutionConfig,
    clock: list[int] | None = None,
    machine: Machine = ROWS,
    laid_out: LaidOut | None = None,
) -> list[Value]:
    """The outputs for inputs of the program's types and shapes, as *machine* computes them. *clock*
    is given the time at which each instruction begins and the last one ends; *laid_out* keeps the
    program's constants in tiles.
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
                raise MissedDeadlineTransient(f"the deadline passed before instruction {place}")
            if clock is not None:
                clock.append(time.perf_counter_ns())
            inputs = [values[n] for n in one.inputs]
            values[one.output] = machine.compute(one, inputs, program, laid_out)
    if clock is not None:
        clock.append(time.perf_counter_ns())
    return [values[n] for n in program.outputs]


def _own(result: Value, machine: Machine) -> Value:
    """*result* as a buffer keeps it; a value in tiles is never changed, so that a buffer may have
    the very same.
    """
    if isinstance(result, Tiled) and machine.tiled:
        return result
    return machine.kept(result)


def _check_room(
    places: Sequence[NDArray | None],
    results: Sequence[Value],
    slots: Sequence[Slot],
    program: Program,
) -> None:
    """Raises `OutputInsufficientSize`, before anything is written, where a result of unknown size
    does not fit.
    """
    enough = []
    for number, place, result in zip(program.outputs, places, results, strict=True):
        nbytes = math.prod(result.shape) * slots[number].dtype.numpy.itemsize
        enough.append(place is None or nbytes <= place.nbytes)
    if not all(enough):
        shapes = [(r.shape, fits) for r, fits in zip(results, enough, strict=True)]
        raise OutputInsufficientSize("an output does not fit the memory it was given", shapes)


def _map(memory: Memory, machine: Machine) -> Mapping:
    """The bytes of *memory*, flat; of an image its pixels, which are of four dimensions."""
    if memory.name == HARDWARE_BUFFER and memory.name in machine.kinds:
        return map_image(memory)
    return map_memory(memory, machine.kinds)


def _write(place: NDArray, result: NDArray) -> None:
    if place.size == result.size and place.dtype == result.dtype:
        place[...] = result.reshape(place.shape)
        return
    content = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
    place.reshape(-1).view(np.uint8)[: content.nbytes] = content


def _input(slot: Slot, argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray:
    match argument:
        case HostMemory(array=array):
            return array
        case PoolArgument():
            shape = argument.dimensions or slot.shape
            if shape is None or not is_static(shape):
                raise InvalidArgument("an input has no complete shape")
            region = _region(argument, pools)
            if region.ndim == IMAGE_RANK:
                return np.array(_fitting(region, slot)).reshape([d or 0 for d in shape])
            view = region.view(slot.dtype.numpy)
            return view.reshape([d or 0 for d in shape])
    raise InvalidArgument(f"the lab device takes no {type(argument).__name__} for an input")


def _output(slot: Slot, argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray | None:
    """Where a result goes; None for one that nobody wants, or that a buffer takes."""
    match argument:
        case HostMemory(array=array):
            return array
        case NoValue() | TokenArgument():
            return None
        case PoolArgument():
            place = _region(argument, pools)
            if place.ndim == IMAGE_RANK:
                place = _fitting(place, slot)
            elif slot.is_static:
                place = place[: slot.nbytes].view(slot.dtype.numpy).reshape(slot.known_shape)
            if not place.flags.writeable:
                raise GeneralFailure("an output lies in a pool that cannot be written")
            return place
    raise InvalidArgument(f"the lab device takes no {type(argument).__name__} for an output")


def _fitting(image: NDArray, slot: Slot) -> NDArray:
    """*image*, which must have the numbers of a value of *slot*."""
    if (
        not slot.is_static
        or image.dtype != slot.dtype.numpy
        or image.size != math.prod(slot.known_shape)
    ):
        raise InvalidArgument(
            f"an image of {image.dtype}{list(image.shape)} is no {slot.dtype.value} of shape {slot.shape}"
        )
    return image


def _region(argument: PoolArgument, pools: Sequence[NDArray]) -> NDArray:
    place = argument.location
    if pools[place.pool].ndim == IMAGE_RANK:
        return pools[place.pool]
    return pools[place.pool][place.offset : place.offset + place.length]


class LabPreparedModel(PreparedModelBase):
    """Executes *program*, which was deserialised from the three payloads of an entry.

    Without one yet, it reads or compiles *model* at its first run. One that is *improving* does the
    same for the optimised form once it has run often enough. Both write through *writer*, where
    they have one, at the end of that run or of a later one, and then let go of the handles.
    """

    def __init__(
        self,
        device: LabDevice,
        report: CacheReport,
        *,
        program: Program | None = None,
        model: Model | None = None,
        writer: LateWriter | None = None,
        improving: bool = False,
    ) -> None:
        if program is not None:
            model = interface(program)
        assert model is not None
        self._device, self.model, self._report = device, model, report
        self._program, self._writer = program, writer
        self._write: PostponedWrite | None = None
        self._uses_left = device.uses if improving else 0
        self._changing = threading.Lock()
        self._laid_out: tuple[Program | None, LaidOut] = None, LaidOut()

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        validate_request(self.model, request, config)
        program = self._program or self._first()
        self._device.engine("execute")
        result = self._run(program, request, config)
        if self._uses_left:
            self._count_use()
        if (write := self._write) is not None:
            self._attempt(write, config)
        return result

    @property
    def device(self) -> LabDevice:
        """Whose it is."""
        return self._device

    def _run(self, program: Program, request: Request, config: ExecutionConfig) -> ExecutionResult:
        laid_out = self._laid_out
        if laid_out[0] is not program:
            laid_out = self._laid_out = program, LaidOut()
        machine, domain = self._device.machine, self._device.domain
        if domain is None or not has_tokens(request):
            return execute(program, request, config, machine, laid_out[1])
        with domain.claim(self, request) as claim:
            return execute(program, request, config, machine, laid_out[1], claim)

    @property
    def cache_report(self) -> CacheReport:  # type: ignore[override]  # it changes with what becomes of a late write
        return self._report if self._write is None else self._write.report

    def close(self) -> None:
        with self._changing:
            for part in (self._writer, self._write):
                if part is not None:
                    part.close()

    def _first(self) -> Program:
        """The program, compiled just in time unless another process has written it meanwhile."""
        with self._changing:
            if self._program is None:
                self._program = self._written() or self._late(
                    lambda: self._device.compile(self.model, "optimised")
                )
            return self._program

    def _count_use(self) -> None:
        """Goes on to the optimised form at the last use; runs of other threads go on with the old
        one.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._uses_left = max(0, self._uses_left - 1)
            if not self._uses_left and (baseline := self._program) is not None:
                self._program = self._written() or self._late(
                    lambda: self._device.improve(baseline)
                )
        finally:
            self._changing.release()

    def _written(self) -> Program | None:
        """The optimised form, where the entry has it by now."""
        writer = self._writer
        if writer is None:
            return None
        try:
            loaded = writer.load()
            program = self._device.deserialise(loaded.model, loaded.data)
        except (CacheError, ClosedError, GeneralFailure):
            return None
        if program.artefact != "optimised":
            return None
        self._device.count("loads")
        self._report = CacheReport(artefact=program.artefact)
        writer.close()
        return program

    def _late(self, compile_now: Callable[[], Compiled]) -> Program:
        """The program; runs write it to the entry as soon as they can without waiting."""
        began = time.monotonic_ns()
        compiled = compile_now()
        spent = time.monotonic_ns() - began
        form = compiled.program.artefact
        self._report = CacheReport(artefact=form)
        if self._writer is not None:
            self._write = PostponedWrite(
                self._writer, lambda: (compiled.model, compiled.data), form, spent
            )
        return compiled.program

    def _attempt(self, write: PostponedWrite, config: ExecutionConfig) -> None:
        if write.attempt(config.deadline_ns) and write.report.save == "saved":
            self._device.count("saves")
