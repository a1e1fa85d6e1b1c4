"""What the inputs and outputs of a compiled model come down to: the steps that read and write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.compilation.prepared import Compilation, PreparedStep
from penstock.errors import InputError
from penstock.execution.interface import Interface, find_name
from penstock.memory.allocation import RoleUse
from penstock.memory.bound import BoundMemory, Kind
from penstock.memory.buffer import DeviceBuffer
from penstock.memory.storage import StepUse


def role_use(
    compilation: Compilation, interface: Interface, kind: Kind, name: str | int, user: object
) -> RoleUse:
    """The caller's input or output *name*, or position, of *compilation*, for runs of *user*.
    Raises `InputError` where there is none.
    """
    inputs = kind == "input"
    names = interface.input_names if inputs else interface.output_names
    index = find_name(name, names, kind) if isinstance(name, str) else _position(name, names, kind)
    positions = interface.input_positions if inputs else interface.output_positions
    entry = compilation.plan.model.entry
    ports = entry.ordinary_inputs if inputs else entry.ordinary_outputs
    operand = (interface.inputs if inputs else interface.outputs)[index]
    position = positions[index]
    return RoleUse(user, position, operand, step_uses(compilation, ports[position], inputs=inputs))


def step_uses(compilation: Compilation, operand: int, *, inputs: bool) -> tuple[StepUse, ...]:
    """The steps on devices that read or write *operand*, as far as one that is to hold an input, or
    an output, must know: an output is written by a step, and perhaps read by others.
    """
    found: list[StepUse] = []
    for prepared in compilation.steps:
        if prepared.branches:
            continue
        if not inputs:
            found += _uses(prepared, "output", operand, prepared.step.outputs)
        found += _uses(prepared, "input", operand, prepared.step.inputs)
    return tuple(found)


def needs_the_steps_of_its_roles(arrays: Sequence[Any], out: object) -> bool:
    """Whether a run uses memory of a device, which only the prepared models that it was allocated
    for can name.
    """
    values = out.values() if isinstance(out, Mapping) else out if isinstance(out, Sequence) else ()
    given = [*(a.owner for a in arrays if isinstance(a, BoundMemory)), *values]
    return any(isinstance(v, DeviceBuffer) and v.device is not None for v in given)


def _uses(
    prepared: PreparedStep, kind: Kind, operand: int, operands: Sequence[int]
) -> list[StepUse]:
    return [
        StepUse(prepared.device, prepared.prepared, kind, position)
        for position, index in enumerate(operands)
        if index == operand
    ]


def _position(index: object, names: Sequence[str], kind: str) -> int:
    if type(index) is not int or not 0 <= index < len(names):
        raise InputError(f"there is no {kind} {index!r}; the model has {len(names)}")
    return index
