"""Checks of drivers' results (NNAPI section 4.7), and copies made by the runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.compilation.prepared import PreparedStep
from penstock.errors import FOREIGN, Cancelled, DriverError, GeneralFailure, OutputInsufficientSize
from penstock.execution.arena import allocate, is_sized, lent
from penstock.execution.interface import fits
from penstock.hal import Device, ExecutionConfig, ExecutionResult, OutputShape, Request, Timing
from penstock.ir import DType, NDArray, Operand
from penstock.ir.subgraph import unpack_strings
from penstock.memory.copies import STAGED, CopyReceipt

if TYPE_CHECKING:
    from penstock.memory.bound import BoundMemory


def call_execute(
    prepared: PreparedStep, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    """Calls `execute`. An exception that the HAL does not allow becomes a `GeneralFailure`."""
    try:
        return prepared.prepared.execute(request, config)
    except (DriverError, Cancelled):
        raise
    except FOREIGN as error:
        raise breach_of(prepared.device, error) from error


def breach_of(device: Device, error: BaseException) -> GeneralFailure:
    """The `GeneralFailure` for an exception that a driver must not raise."""
    return GeneralFailure(f"device {device.name} failed in execute: {error!r}")


def check_result(
    result: object, operands: Sequence[Operand], targets: Sequence[NDArray | None]
) -> None:
    """Checks the shapes of a successful execution against *targets* (None: of any size)."""
    timing: object = getattr(result, "timing", None)
    if not isinstance(result, ExecutionResult) or not isinstance(timing, Timing):
        raise GeneralFailure(f"execute returned {type(result).__name__}, not an ExecutionResult")
    shapes: object = result.output_shapes
    if not isinstance(shapes, tuple | list) or len(shapes) not in (0, len(operands)):
        raise GeneralFailure(f"the driver reported shapes for other than {len(operands)} outputs")
    if not shapes and not all(map(is_sized, operands)):
        raise GeneralFailure("the driver did not report the shape of an output of unknown shape")
    for shape, operand, target in zip(shapes, operands, targets, strict=False):
        name = repr(operand.name)
        if not isinstance(shape, OutputShape) or shape.is_sufficient is not True:
            raise GeneralFailure(f"output {name}: the driver succeeded and says it did not fit")
        _check_dimensions(shape.dimensions, operand)
        if is_sized(operand) or target is None or operand.dtype is DType.STRING:
            continue
        if _nbytes(shape.dimensions, operand) > target.nbytes:
            words = f"of shape {shape.dimensions} does not fit the memory it was given"
            raise GeneralFailure(f"output {name} {words}")


def grown_sizes(
    sizes: Sequence[int], operands: Sequence[Operand], error: OutputInsufficientSize
) -> list[int]:
    """The bytes to try for each output after *error*: by its reported shape, at least doubled."""
    shapes: tuple[object, ...] = error.output_shapes
    if len(shapes) != len(sizes) or not all(isinstance(s, tuple) and len(s) == 2 for s in shapes):
        raise GeneralFailure("the driver said 'too small' without saying which output") from error
    answers = error.output_shapes
    if all(enough for _, enough in answers):
        raise GeneralFailure("the driver said 'too small', but every output is enough") from error
    grown = list(sizes)
    for k, (operand, (dimensions, enough)) in enumerate(zip(operands, answers, strict=True)):
        if enough:
            continue
        if is_sized(operand):
            name = operand.name
            raise GeneralFailure(f"output {name!r} has the size the model declares") from error
        _check_dimensions(dimensions, operand)
        grown[k] = max(_nbytes(dimensions, operand), 2 * sizes[k])
    return grown


def shaped(flat: NDArray, operand: Operand, shape: tuple[int, ...]) -> NDArray:
    """A copy of the value at the start of *flat*, whose *shape* passed `check_result`."""
    if operand.dtype is DType.STRING:
        return unpack_strings(flat.data.toreadonly(), shape)
    return flat[: _nbytes(shape, operand)].view(operand.dtype.numpy).reshape(shape)


def _check_dimensions(dimensions: object, operand: Operand) -> None:
    name = repr(operand.name)
    given = tuple(dimensions) if isinstance(dimensions, tuple | list) else (None,)
    if any(type(d) is not int or d < 0 for d in given):
        raise GeneralFailure(f"the driver reported {dimensions!r} as shape of output {name}")
    if not fits(given, operand.shape):
        raise GeneralFailure(
            f"the driver reported shape {given} for output {name} of shape {operand.shape}"
        )


def _nbytes(dimensions: Sequence[int], operand: Operand) -> int:
    return operand.dtype.numpy.itemsize * math.prod(dimensions)


def copied(
    value: NDArray,
    copies: list[CopyReceipt],
    route: tuple[str, str],
    reason: str,
    *,
    step: int | None = None,
    operand: int | None = None,
) -> NDArray:
    """A copy of *value*, recorded as `copy_over` does."""
    kept = np.empty_like(value, subok=False)
    copy_over(kept, value, copies, route, reason, step=step, operand=operand)
    return kept


def copy_over(
    target: NDArray,
    value: NDArray,
    copies: list[CopyReceipt],
    route: tuple[str, str],
    reason: str,
    *,
    step: int | None = None,
    operand: int | None = None,
) -> None:
    """Copies *value* over *target*, recorded in *copies* with *route* (source and destination)."""
    began = perf_counter_ns()
    np.copyto(target, value)
    spent = perf_counter_ns() - began
    copies.append(CopyReceipt(value.nbytes, *route, reason, step, operand, began, spent))


STRINGS: Final = "strings travel in TFLite's string-tensor layout"


class Copying:
    """Copies at the boundary of a step or of the run, each recorded in *copies*."""

    def __init__(self, step: int | None, device: str, copies: list[CopyReceipt]) -> None:
        self._step, self._device, self._copies = step, device, copies
        self.reason = f"device {device} shares no host memory"

    def copy(self, destination: NDArray, source: NDArray, operand: int, *, out: bool) -> None:
        """Copies *source* to *destination*: to the host if *out*, else to the device."""
        route = (self._device, "host") if out else ("host", self._device)
        step, reason = self._step, self.reason
        copy_over(destination, source, self._copies, route, reason, step=step, operand=operand)

    def fetch(self, memory: BoundMemory, operand: int) -> NDArray:
        """The value of *memory*, which the device did not take: mapped if possible, else read."""
        if (array := memory.array) is not None:
            return lent(array)
        began = perf_counter_ns()
        value = memory.read()
        self._moved(memory, value.nbytes, (memory.name, "host"), operand, began)
        return value

    def put(self, memory: BoundMemory, value: NDArray, operand: int) -> None:
        """Writes *value* to *memory*, which the device did not take."""
        began = perf_counter_ns()
        memory.write(value)
        self._moved(memory, value.nbytes, ("host", memory.name), operand, began)

    def _moved(
        self, memory: BoundMemory, nbytes: int, route: tuple[str, str], operand: int, began: int
    ) -> None:
        self._record(nbytes, route, f"{self._device} does not take it as it is", operand, began)
        # The time of the intermediate copies is part of the copy before.
        for _ in range(memory.staged):
            self._copies.append(CopyReceipt(nbytes, "host", "host", STAGED, self._step, operand))

    def _record(
        self, nbytes: int, route: tuple[str, str], reason: str, operand: int, began: int
    ) -> None:
        spent = perf_counter_ns() - began
        self._copies.append(CopyReceipt(nbytes, *route, reason, self._step, operand, began, spent))

    def packed(self, pack: Callable[[], bytes], operand: int) -> bytes:
        """Serialises strings for the device with *pack*."""
        began = perf_counter_ns()
        content = pack()
        self._record(len(content), ("host", self._device), STRINGS, operand, began)
        return content

    def unpacked(self, flat: NDArray, operand: Operand, shape: tuple[int, ...], i: int) -> NDArray:
        """Deserialises the strings that the device wrote at the start of *flat*."""
        began = perf_counter_ns()
        value = shaped(flat, operand, shape)
        self._record(sum(map(len, value.flat)), (self._device, "host"), STRINGS, i, began)
        return value

    def copy_of(self, value: NDArray, operand: int, *, out: bool) -> NDArray:
        """A new array with the content of *value*, copied as by `copy`."""
        kept = allocate(value.shape, value.dtype)
        self.copy(kept, value, operand, out=out)
        return kept
