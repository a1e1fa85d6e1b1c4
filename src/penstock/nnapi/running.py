"""One run of an execution: converts its arguments, runs a compiled model, delivers the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.arguments import deadline_of
from penstock.compilation.receipt import Receipt
from penstock.execution.compiled import CompiledModel
from penstock.execution.interface import Outputs
from penstock.execution.results import copied, copy_over
from penstock.hal import ExecutionConfig, Fence
from penstock.hal.fence import remaining_ns
from penstock.ir import NDArray, Operand
from penstock.ir.operand import plain_dimensions
from penstock.ir.types import is_static, static_shape
from penstock.memory import DeviceBuffer, HardwareBuffer
from penstock.memory.buffer import fetch_value, put_value
from penstock.memory.copies import STAGED, CopyReceipt
from penstock.nnapi.codes import NnapiError, ResultCode, translated
from penstock.nnapi.values import Binding

Run: TypeAlias = "Callable[[list[Any], list[Any] | None], Outputs]"
"""Runs a compiled model on inputs in order, with preallocated outputs or None."""


LEFT_OUT: Final = "memory of a device serves the model with all of its inputs, and one is left out"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a run: each output's shape, and whether it fitted."""

    shapes: tuple[tuple[int, ...], ...]
    sufficient: tuple[bool, ...]
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Waiting:
    """The fences that a run waits for, and its timeout after the wait in nanoseconds (0: none)."""

    fences: tuple[Fence, ...]
    after_ns: int

    def run(
        self,
        compiled: CompiledModel,
        values: list[Any],
        out: list[Any] | None,
        settings: dict[str, Any],
    ) -> Outputs:
        """Runs *compiled* with *settings*. If all shapes are known, drivers wait for fences."""
        from penstock.execution.fenced import run_fenced
        from penstock.hal.prepared import await_fences

        after = self.after_ns / 1e9 or None
        if all(is_static(operand.shape) for operand in compiled.model.outputs):
            return run_fenced(
                compiled.executable,
                values,
                self.fences,
                out=out,
                timeout_after_fence=after,
                **settings,
            )
        deadline_ns = deadline_of(settings["timeout"], time.monotonic_ns())
        await_fences(self.fences, ExecutionConfig(deadline_ns=deadline_ns))
        times = [remaining_ns(deadline_ns), self.after_ns or None]
        left = min((t / 1e9 for t in times if t is not None), default=None)
        return compiled.run(values, out=out, **{**settings, "timeout": left})


def carry_out(
    inputs: Sequence[Binding], outputs: Sequence[Binding], operands: Sequence[Operand], run: Run
) -> Answer:
    """Runs on the *inputs* that are not omitted and writes *outputs*.

    *operands* describe them as compiled. With an omitted input, device memory is copied, because it
    belongs to the model with all inputs. An output that does not fit is not written. Raises
    `NnapiError`: OP_FAILED if an output has another shape than its argument, or the run's result
    code.
    """
    copies: list[CopyReceipt] = []
    direct = not any(binding.is_omitted for binding in inputs)
    with ExitStack() as stack, translated():
        for binding in (*inputs, *outputs):
            stack.enter_context(binding.used())
        values = [_value(b, copies, direct) for b in inputs if not b.is_omitted]
        targets = [_target(b, o, direct) for b, o in zip(outputs, operands, strict=True)]
        results = run(values, None if all(t is None for t in targets) else targets)
        shapes = tuple(map(_shape_of, results, operands))
        sufficient = tuple(
            target is not None or binding.is_omitted or _deliver(binding, result, copies, shape)
            for binding, target, result, shape in zip(
                outputs, targets, results, shapes, strict=True
            )
        )
        receipt = results.receipt
    if copies:
        receipt = replace(receipt, copies=(*receipt.copies, *copies))
    return Answer(shapes, sufficient, receipt)


def _shape_of(result: Any, operand: Operand) -> tuple[int, ...]:
    """The dimensions of a run's output. An image has no dimensions of its own."""
    if isinstance(result, HardwareBuffer):
        return static_shape(plain_dimensions(operand)) or ()
    return tuple(result.shape if operand.extension is None else result.shape[:-1])


def _value(binding: Binding, copies: list[CopyReceipt], direct: bool) -> Any:
    place = binding.place()
    if place is not None and (direct or not isinstance(place, DeviceBuffer)):
        return place
    if place is not None:
        fetched, count = fetch_value(place)
        _record(copies, fetched.nbytes, (place.device or "pool", "host"), count)
        return fetched
    array = binding.array()
    return binding.value(copies) if array is None else array


def _target(binding: Binding, operand: Operand, direct: bool) -> Any:
    """The array that a run writes an output to directly; None if that is not possible."""
    if binding.is_omitted:
        return None
    if (place := binding.place()) is not None:
        return place if direct or not isinstance(place, DeviceBuffer) else None
    compiled = static_shape(plain_dimensions(operand))
    if compiled is None:
        return None
    _check_shape(binding, compiled)
    return binding.array_of(compiled)


def _deliver(
    binding: Binding, result: NDArray, copies: list[CopyReceipt], shape: tuple[int, ...]
) -> bool:
    """Copies *result* of this shape to the caller's memory. Returns whether it fitted."""
    if (place := binding.place()) is not None:
        count = put_value(place, _contiguous(result, copies))
        _record(copies, result.nbytes, ("host", place.device or "pool"), count)
        return True
    room = binding.bytes()
    _check_shape(binding, shape)
    if result.nbytes > room.nbytes:
        return False
    content = _contiguous(result, copies).reshape(-1).view(np.uint8)
    reason = f"{binding.port} has a shape known only from the run, or is not aligned"
    copy_over(room[: result.nbytes], content, copies, ("host", "caller"), reason)
    return True


def _check_shape(binding: Binding, shape: tuple[int, ...]) -> None:
    """Raises OP_FAILED if the argument states another shape."""
    wanted = static_shape(binding.shape)
    if wanted is not None and wanted != shape:
        raise NnapiError(ResultCode.OP_FAILED, f"{binding.port} has shape {shape}, not {wanted}")


def _contiguous(result: NDArray, copies: list[CopyReceipt]) -> NDArray:
    if result.flags.c_contiguous:
        return result
    return copied(result, copies, ("host", "host"), "an output is not C-contiguous")


def _record(copies: list[CopyReceipt], nbytes: int, route: tuple[str, str], count: int) -> None:
    """Records *count* copies of a value of device memory, all but one by way of the host."""
    copies.append(CopyReceipt(nbytes, *route, LEFT_OUT))
    copies += [CopyReceipt(nbytes, "host", "host", STAGED) for _ in range(count - 1)]
