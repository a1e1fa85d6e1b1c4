"""A prepared model of the lab device: one execution, and the three times at which it may
compile.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard

import numpy as np
from msgspec.structs import replace

from penstock import errors, hal
from penstock.driverkit.postponed_write import PostponedWrite
from penstock.driverkit.request_arrays import input_arrays, unknown_memory, write_results
from penstock.hal.request import NO_TIMING
from penstock.ir import Lifetime, Model, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.memory import Mapping, map_memory
from penstock.memory.domain import has_tokens
from penstock.memory.hardware import map_image
from penstock.memory.mapping import HARDWARE_BUFFER
from penstock.testing.lab.compiler import interface
from penstock.testing.lab.machine import ROWS, LabDomain, LaidOut, Machine, Tiled, Value
from penstock.testing.lab.program import Artefact, Bytes, Compiled, Program

if TYPE_CHECKING:
    from penstock.memory.domain import Claim
    from penstock.sealed.late import LateWriter


IMAGE_RANK: Final = 4
"""Dimensions of a mapped image: layers, height, width, numbers per pixel. Other memory is flat."""


def execute(
    program: Program,
    request: hal.Request,
    config: hal.ExecutionConfig,
    machine: Machine,
    laid_out: LaidOut,
    claim: Claim | None = None,
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
        images = {
            at: _fitting(pools[argument.location.pool], operand)
            for at, (argument, operand) in enumerate(zip(request.outputs, operands, strict=True))
            if _is_image(argument, pools)
        }
        try:
            results = run(program, given, config, clock, machine, laid_out)
            buffers = {
                at: _own(results[at], machine)
                for at, argument in enumerate(request.outputs)
                if isinstance(argument, hal.TokenArgument)
            }
        except MemoryError as error:
            raise errors.ResourceExhaustedTransient("no memory for a value") from error
        if buffers and claim is None:
            raise unknown_memory(request.outputs[min(buffers)])
        outputs = list(request.outputs)
        for at in (*buffers, *images):
            outputs[at] = hal.NO_VALUE_ARGUMENT
        unwanted = np.float32(0)
        rows = [
            np.broadcast_to(unwanted, r.shape)
            if outputs[at] is hal.NO_VALUE_ARGUMENT and at not in images
            else machine.rows(r)
            for at, r in enumerate(results)
        ]
        write_results(replace(request, outputs=tuple(outputs)), operands, rows, pools)
        for at, pixels in images.items():
            pixels[...] = rows[at].reshape(pixels.shape)
        for at, value in buffers.items():
            if claim is not None:
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


def _own(result: Value, machine: Machine) -> Value:
    """*result* for a buffer to keep. A value in tiles is immutable, so it is not copied."""
    if isinstance(result, Tiled) and machine.tiled:
        return result
    return machine.kept(result)


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


class Engine(Protocol):
    """The device, as its prepared models see it."""

    uses: int
    machine: Machine
    domain: LabDomain | None

    def compile(self, model: Model, form: Artefact) -> Compiled: ...
    def improve(self, baseline: Program) -> Compiled: ...
    def deserialise(self, model: Sequence[Bytes], data: Sequence[Bytes]) -> Program: ...
    def engine(self, act: str) -> None: ...
    def count(self, what: str) -> None: ...


class LabPreparedModel(hal.PreparedModelBase):
    """Executes *program*, which was deserialised from the payloads of an entry.

    Without a program, the first run reads or compiles *model*. An *improving* model does the same
    for the optimised form after enough runs. Both write through *writer*, if given, at the end of
    that run or a later one, and then close the handles.
    """

    def __init__(
        self,
        device: Engine,
        report: hal.CacheReport,
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

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        program = self._program or self._first()
        self._device.engine("execute")
        result = self._run(program, request, config)
        if self._uses_left:
            self._count_use()
        if (write := self._write) is not None:
            self._attempt(write, config)
        return result

    @property
    def device(self) -> Engine:
        """The device that prepared this model."""
        return self._device

    def _run(
        self, program: Program, request: hal.Request, config: hal.ExecutionConfig
    ) -> hal.ExecutionResult:
        laid_out = self._laid_out
        if laid_out[0] is not program:
            laid_out = self._laid_out = program, LaidOut()
        machine, domain = self._device.machine, self._device.domain
        if domain is None or not has_tokens(request):
            return execute(program, request, config, machine, laid_out[1])
        with domain.claim(self, request) as claim:
            return execute(program, request, config, machine, laid_out[1], claim)

    @property
    def cache_report(self) -> hal.CacheReport:  # type: ignore[override]  # a late write changes it
        return self._report if self._write is None else self._write.report

    def close(self) -> None:
        with self._changing:
            for part in (self._writer, self._write):
                if part is not None:
                    part.close()

    def _first(self) -> Program:
        """The program. It is compiled just in time unless another process has written it
        meanwhile.
        """
        with self._changing:
            if self._program is None:
                self._program = self._written() or self._late(
                    lambda: self._device.compile(self.model, "optimised")
                )
            return self._program

    def _count_use(self) -> None:
        """Changes to the optimised form at the last use. Other threads continue with the old
        form.
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
        """The optimised form, if the entry contains it by now."""
        writer = self._writer
        if writer is None:
            return None
        try:
            loaded = writer.load()
            program = self._device.deserialise(loaded.model, loaded.data)
        except (errors.CacheError, errors.ClosedError, errors.GeneralFailure):
            return None
        if program.artefact != "optimised":
            return None
        self._device.count("loads")
        self._report = hal.CacheReport(artefact=program.artefact)
        writer.close()
        return program

    def _late(self, compile_now: Callable[[], Compiled]) -> Program:
        """Compiles. Runs write the program to the entry as soon as they can without waiting."""
        began = time.monotonic_ns()
        compiled = compile_now()
        spent = time.monotonic_ns() - began
        form = compiled.program.artefact
        self._report = hal.CacheReport(artefact=form)
        if self._writer is not None:
            self._write = PostponedWrite(
                self._writer, lambda: (compiled.model, compiled.data), form, spent
            )
        return compiled.program

    def _attempt(self, write: PostponedWrite, config: hal.ExecutionConfig) -> None:
        if write.attempt(config.deadline_ns) and write.report.save == "saved":
            self._device.count("saves")
