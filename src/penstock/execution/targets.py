"""`out=`: the caller's arrays that outputs are written into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.errors import InputError, OutputInsufficientSize
from penstock.execution.copying import copy_over
from penstock.execution.inputs import arrange, fits, is_bindable
from penstock.execution.interface import Interface, find_name
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import is_masked
from penstock.memory.storage import viewed


def bind_targets(
    out: object,
    interface: Interface,
    outputs: Sequence[Operand],
    inputs: Sequence[Any],
    user: object = None,
) -> list[NDArray | None]:
    """One array, or None, for each of the model's ordinary *outputs*; what stands for memory that
    is no array.

    A mapping may name some of them, a sequence gives every one an array or None. Arrays of other
    libraries are written through DLPack or the buffer protocol. *user* is the compiled model.
    Raises `InputError` for what does not fit, and for memory that two outputs, or an output and an
    input, would share.
    """
    if (ready := ready_targets(out, interface, outputs, inputs)) is not None:
        return ready
    names = interface.output_names
    if not isinstance(out, Mapping | Sequence) or isinstance(out, str | bytes):
        raise InputError(
            f"out must be a mapping by name or a sequence of arrays, not {type(out).__name__}"
        )
    if isinstance(out, Mapping):
        values: list[Any] = [None] * len(names)
        for name, value in out.items():
            values[find_name(name, names, "output")] = value
    else:
        values = arrange(out, names, "output")
    targets: list[NDArray | None] = [None] * len(outputs)
    for position, value in zip(interface.output_positions, values, strict=True):
        if value is None:
            continue
        if targets[position] is not None:
            raise InputError(
                f"two arrays of out= are for output {outputs[position].name!r}, which has several names: give one"
            )
        if is_bindable(value):
            value = value.bind_argument(user, "output", position, outputs[position])  # noqa: PLW2901  # what stands for it
            if not isinstance(value, np.ndarray):
                targets[position] = value
                continue
        targets[position] = _checked(value, outputs[position], position)
    given = [t for t in targets if isinstance(t, np.ndarray)]
    if any(np.may_share_memory(a, b) for a, b in combinations(given, 2)):
        raise InputError("two arrays of out= share memory")
    read = [a for a in inputs if isinstance(a, np.ndarray)]
    if any(np.may_share_memory(a, b) for a in given for b in read):
        raise InputError("an array of out= shares memory with an input")
    return targets


def ready_targets(
    out: object, interface: Interface, outputs: Sequence[Operand], inputs: Sequence[NDArray]
) -> list[NDArray | None] | None:
    """*out* where nothing need be said about it: arrays of full shapes for all outputs in order,
    apart from each other and from *inputs*. None where it must be looked at more closely.
    """
    if type(out) is not list or not len(out) == len(outputs) == len(interface.outputs):
        return None
    for position, (value, operand) in enumerate(zip(out, outputs, strict=True)):
        if (
            type(value) is not np.ndarray
            or value.shape != operand.shape
            or value.dtype != operand.dtype.numpy
            or operand.dtype is DType.STRING
            or interface.output_positions[position] != position
        ):
            return None
        flags = value.flags
        if not (flags.c_contiguous and flags.writeable):
            return None
        for other in inputs:
            if type(other) is not np.ndarray or np.may_share_memory(value, other):
                return None
        for other in out[:position]:
            if np.may_share_memory(value, other):
                return None
    return [*out]


def check_room(
    outputs: Sequence[Operand], results: Sequence[NDArray], out: Sequence[NDArray | None]
) -> None:
    """Raises `OutputInsufficientSize`, with the shape of every one of *results*, where an array of
    *out* is too small for its own, whose shape only the run has told.
    """
    enough = [
        not isinstance(target, np.ndarray) or target.nbytes >= result.nbytes
        for target, result in zip(out, results, strict=True)
    ]
    for operand, target, result, fits_in in zip(outputs, out, results, enough, strict=True):
        if not fits_in and target is not None:
            shapes = [(r.shape, e) for r, e in zip(results, enough, strict=True)]
            raise OutputInsufficientSize(
                f"out for output {operand.name!r} has shape {target.shape}, the result {result.shape}: "
                f"{result.nbytes} bytes are needed, {target.nbytes} are there",
                shapes,
            )


def store(
    target: NDArray, result: NDArray, operand: Operand, copies: list[CopyReceipt], index: int
) -> NDArray:
    """Copies *result* into *target*; `InputError` where its shape, known only now, is another.
    *index* is the operand's.
    """
    if target.shape != result.shape:
        raise InputError(
            f"out for output {operand.name!r} has shape {target.shape}, the result {result.shape}"
        )
    reason = f"output {operand.name!r} was not computed in the array of out="
    copy_over(target, result, copies, ("host", "caller"), reason, operand=index)
    return target


def _checked(given_value: object, operand: Operand, position: int) -> NDArray:
    if is_masked(given_value):
        raise InputError(
            f"out for output {position} ({operand.name}) is a masked array, and no device heeds masks; "
            "give its data, which is the array without its mask"
        )
    value = viewed(given_value)
    if (
        isinstance(value, np.ndarray)
        and value.dtype == operand.dtype.numpy
        and fits(value.shape, operand.shape)
        and value.flags.c_contiguous
        and value.flags.writeable
        and operand.dtype is not DType.STRING
    ):
        return value
    given = (
        f"{value.dtype}{list(value.shape)}"
        if isinstance(value, np.ndarray)
        else type(value).__name__
    )
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        given = f"read-only {given}"
    elif isinstance(value, np.ndarray) and not value.flags.c_contiguous:
        given = f"non-contiguous {given}"
    raise InputError(
        f"out for output {position} ({operand.name}) must be a writable C-contiguous "
        f"{operand.dtype.value} array of shape {operand.shape}, not {given}"
    )
