"""One run of an execution: from its arguments to a compiled model's, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.compilation.receipt import CopyReceipt, Receipt
from penstock.execution.outputs import Outputs
from penstock.ir import NDArray, Operand
from penstock.ir.types import static_shape
from penstock.nnapi.bindings import Binding
from penstock.nnapi.codes import ResultCode
from penstock.nnapi.failures import NnapiError, translated

Run: TypeAlias = "Callable[[list[Any], list[Any] | None], Outputs]"
"""Runs a compiled model on inputs in order, with places for its outputs, or None for each or all of them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a run: each output's shape, and whether there was room for it."""

    shapes: tuple[tuple[int, ...], ...]
    sufficient: tuple[bool, ...]
    receipt: Receipt


def carry_out(
    inputs: Sequence[Binding], outputs: Sequence[Binding], operands: Sequence[Operand], run: Run
) -> Answer:
    """Runs on *inputs*, those left out apart, and writes *outputs*, which *operands* describe as they were compiled.

    An output without enough room is not written. Raises `NnapiError`: OP_FAILED where an output has another shape than
    its argument says, or what the run answers.
    """
    copies: list[CopyReceipt] = []
    values = [_value(binding, copies) for binding in inputs if not binding.is_omitted]
    targets = [_target(b, o) for b, o in zip(outputs, operands, strict=True)]
    given = None if all(t is None for t in targets) else targets
    with translated():
        results = run(values, given)
        shapes = tuple(tuple(result.shape) for result in results)
        sufficient = tuple(
            target is not None or binding.is_omitted or _deliver(binding, result, copies)
            for binding, target, result in zip(outputs, targets, results, strict=True)
        )
        receipt = results.receipt
    if copies:
        receipt = replace(receipt, copies=(*receipt.copies, *copies))
    return Answer(shapes, sufficient, receipt)


def _value(binding: Binding, copies: list[CopyReceipt]) -> Any:
    if (place := binding.place()) is not None:
        return place
    if (array := binding.array()) is not None:
        return array
    began = time.perf_counter_ns()
    array = binding.value()
    spent = time.perf_counter_ns() - began
    reason = f"{binding.port} does not begin at a multiple of its elements' size"
    copies.append(
        CopyReceipt(array.nbytes, "caller", "host", reason, start_ns=began, wall_ns=spent)
    )
    return array


def _target(binding: Binding, operand: Operand) -> Any:
    """Where a run writes an output at once; None where its shape is not known, or its place is odd or too small."""
    if binding.is_omitted:
        return None
    if (place := binding.place()) is not None:
        return place
    compiled = static_shape(operand.shape)
    if compiled is None:
        return None
    if (asked := static_shape(binding.shape)) is not None:
        if asked != compiled:
            raise NnapiError(
                ResultCode.OP_FAILED, f"{binding.port} has shape {compiled}, not {asked}"
            )
        return binding.array()
    return binding.array_of(compiled)


def _deliver(binding: Binding, result: NDArray, copies: list[CopyReceipt]) -> bool:
    """Copies *result* to where it belongs; whether there was room."""
    room = binding.bytes()
    asked = static_shape(binding.shape)
    if asked is not None and asked != result.shape:
        raise NnapiError(
            ResultCode.OP_FAILED, f"{binding.port} has shape {result.shape}, not {asked}"
        )
    if result.nbytes > room.nbytes:
        return False
    began = time.perf_counter_ns()
    np.copyto(room[: result.nbytes], np.ascontiguousarray(result).reshape(-1).view(np.uint8))
    spent = time.perf_counter_ns() - began
    reason = f"{binding.port} has a shape that only the run told, or begins at an odd place"
    copies.append(
        CopyReceipt(result.nbytes, "host", "caller", reason, start_ns=began, wall_ns=spent)
    )
    return True
