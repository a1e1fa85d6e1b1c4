"""Inputs and outputs that are not plain arrays: `out=`, and bound memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import InputError, OutputInsufficientSize
from penstock.execution.inputs import arrange, is_bindable
from penstock.execution.interface import Interface, find_name, fits
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import is_masked
from penstock.memory.copies import CopyReceipt

if TYPE_CHECKING:
    from penstock.execution.run import Run
    from penstock.memory.bound import BoundMemory


def bind_targets(
    out: object,
    interface: Interface,
    outputs: Sequence[Operand],
    inputs: Sequence[Any],
    user: object = None,
) -> list[NDArray | None]:
    """One target, or None, for each of the model's ordinary *outputs*.

    A target is an array, or the stand-in of other memory. A mapping may name some outputs; a
    sequence has an array or None for every output. Arrays of other libraries are written through
    DLPack or the buffer protocol. *user* is the compiled model. Raises `InputError` for a target
    that does not fit, and for memory shared by two outputs, or by an output and an input.
    """
    if (ready := ready_targets(out, interface, outputs, inputs)) is not None:
        return ready
    names = interface.output_names
    if not isinstance(out, Mapping | Sequence) or isinstance(out, str | bytes):
        kind = type(out).__name__
        raise InputError(f"out must be a mapping by name or a sequence of arrays, not {kind}")
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
            name = repr(outputs[position].name)
            why = f"are for output {name}, which has several names: give one"
            raise InputError(f"two arrays of out= {why}")
        if is_bindable(value):
            value = value.bind_argument(user, "output", position, outputs[position])  # noqa: PLW2901  # what stands for it
            if not isinstance(value, np.ndarray):
                targets[position] = value
                continue
        targets[position] = _checked(value, outputs[position], position)
    _check_apart(inputs, targets)
    return targets


def ready_targets(
    out: object, interface: Interface, outputs: Sequence[Operand], inputs: Sequence[NDArray]
) -> list[NDArray | None] | None:
    """The fast path for *out*: disjoint arrays of full shapes for all outputs; else None."""
    if type(out) is not list or not len(out) == len(outputs) == len(interface.outputs):
        return None
    for position, (value, operand) in enumerate(zip(out, outputs, strict=True)):
        if (
            type(value) is not np.ndarray
            or value.shape != operand.shape
            or value.dtype != operand.dtype.numpy
            or operand.dtype is DType.STRING
            or interface.output_positions[position] != position
            or not (value.flags.c_contiguous and value.flags.writeable)
        ):
            return None
        for other in (*inputs, *out[:position]):
            if type(other) is not np.ndarray or np.may_share_memory(value, other):
                return None
    return [*out]


def check_room(
    outputs: Sequence[Operand], results: Sequence[NDArray], out: Sequence[NDArray | None]
) -> None:
    """Raises `OutputInsufficientSize`, with all shapes, if an array of *out* is too small."""
    enough = [
        not isinstance(target, np.ndarray) or target.nbytes >= result.nbytes
        for target, result in zip(out, results, strict=True)
    ]
    for operand, target, result, fits_in in zip(outputs, out, results, enough, strict=True):
        if not fits_in and target is not None:
            shapes = [(r.shape, e) for r, e in zip(results, enough, strict=True)]
            text = f"out for output {operand.name!r} has shape {target.shape}, the result "
            text += f"{result.shape}: {result.nbytes} bytes are needed, {target.nbytes} are there"
            raise OutputInsufficientSize(text, shapes)


def store(
    target: NDArray, result: NDArray, operand: Operand, copies: list[CopyReceipt], index: int
) -> NDArray:
    """Copies *result* into *target*. Raises `InputError` if the shapes differ."""
    if target.shape != result.shape:
        shapes = f"has shape {target.shape}, the result {result.shape}"
        raise InputError(f"out for output {operand.name!r} {shapes}")
    from penstock.execution.results import copy_over

    reason = f"output {operand.name!r} was not computed in the array of out="
    copy_over(target, result, copies, ("host", "caller"), reason, operand=index)
    return target


def _checked(given_value: object, operand: Operand, position: int) -> NDArray:
    label = f"out for output {position} ({operand.name})"
    if is_masked(given_value):
        remedy = "give its data, which is the array without its mask"
        raise InputError(f"{label} is a masked array, and no device heeds masks; {remedy}")
    from penstock.memory.storage import viewed

    value, given = viewed(given_value), ""
    if isinstance(value, np.ndarray):
        flags = value.flags
        fitting = value.dtype == operand.dtype.numpy and fits(value.shape, operand.shape)
        fitting = fitting and operand.dtype is not DType.STRING
        if fitting and flags.c_contiguous and flags.writeable:
            return value
        given = "" if flags.writeable else "read-only "
        given = given or ("" if flags.c_contiguous else "non-contiguous ")
        given += f"{value.dtype}{list(value.shape)}"
    raise InputError(
        f"{label} must be a writable C-contiguous {operand.dtype.value} array of shape "
        f"{operand.shape}, not {given or type(value).__name__}"
    )


def bound_operands(
    inputs: Sequence[int],
    given: Sequence[Any],
    outputs: Sequence[int],
    out: Sequence[Any] | None,
    not_computed: Container[int],
) -> dict[int, BoundMemory]:
    """The bound memory of a run, by operand: inputs *given* and outputs in *out*.

    Only outputs that a step computes are included. Raises `InputError` if the same memory is both
    an input and an output, or two outputs (NNAPI section 6.5), or if written memory overlaps other
    memory of the run.
    """
    from penstock.memory.bound import BoundMemory

    bound = {i: m for i, m in zip(inputs, given, strict=True) if isinstance(m, BoundMemory)}
    read = [m.owner for m in bound.values()]
    written: list[Any] = []
    for i, memory in zip(outputs, out or (), strict=out is not None):
        if not isinstance(memory, BoundMemory):
            continue
        if any(memory.owner is other for other in written):
            raise InputError(f"{memory.name} is given for two outputs of one run")
        if any(memory.owner is other for other in read):
            raise InputError(f"{memory.name} is given as an input and as an output of one run")
        written.append(memory.owner)
        if i not in not_computed:
            bound.setdefault(i, memory)
    mapped = [
        [m.array if isinstance(m, BoundMemory) else m for m in memory]
        for memory in (given, out or ())
    ]
    _check_apart(*mapped)
    return bound


def _check_apart(read: Sequence[Any], written: Sequence[Any]) -> None:
    """Raises `InputError` if an array that is written overlaps another array of the run."""
    targets = [a for a in written if isinstance(a, np.ndarray)]
    sources = [a for a in read if isinstance(a, np.ndarray)]
    if any(np.may_share_memory(a, b) for a, b in combinations(targets, 2)):
        raise InputError("two arrays of out= share memory")
    if any(np.may_share_memory(a, b) for a in targets for b in sources):
        raise InputError("an array of out= shares memory with an input")


def lose(outputs: Sequence[int], run: Run) -> None:
    """After *run* failed: marks the bound *outputs* that its steps wrote as without a value."""
    written = {operand for step in run.steps for operand in step.prepared.step.outputs}
    for operand in written.intersection(outputs):
        if run.bound is not None and operand in run.bound:
            run.bound[operand].lost()


def deliver(
    outputs: Sequence[int],
    constants: Mapping[int, NDArray],
    values: dict[int, NDArray],
    out: Sequence[Any] | None,
    bound: Mapping[int, BoundMemory],
    copies: list[CopyReceipt],
) -> dict[int, Any]:
    """The memory of the bound *outputs*, by position; copies there what no step wrote to it."""
    from penstock.execution.results import Copying
    from penstock.memory.bound import BoundMemory

    found: dict[int, BoundMemory] = {}
    copying = Copying(None, "the runtime", copies)
    for position, operand in enumerate(outputs):
        given = None if out is None else out[position]
        if isinstance(given, BoundMemory):
            found[position] = given
            if bound.get(operand) is given:
                continue
        if operand not in constants and operand not in values:
            values[operand] = copying.fetch(bound[operand], operand)
        if isinstance(given, BoundMemory):
            source = constants[operand] if operand in constants else values[operand]
            copying.put(given, source, operand)
    return {position: memory.result for position, memory in found.items()}
