"""Values that stay on a device between runs (feedback), and roles of a model's device memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import numpy as np
from msgspec.structs import replace

from penstock.arguments import check_kind
from penstock.compilation.prepared import Compilation, PreparedStep
from penstock.errors import InputError, InvalidArgument
from penstock.execution.arena import BufferedVariable, buffered_variables
from penstock.execution.cells import Cells, Loop, put
from penstock.execution.interface import Interface, find_name
from penstock.execution.variant import Variant
from penstock.hal import MemoryPreference
from penstock.hal.buffer import merged
from penstock.hal.device import preferred_memory
from penstock.ir import DType, NDArray, Operand, Shape
from penstock.ir.types import static_shape
from penstock.memory.allocation import InputRole, OutputRole, RoleUse, allocate
from penstock.memory.bound import BoundMemory, Kind, StepUse
from penstock.memory.buffer import BoundBuffer, DeviceBuffer
from penstock.memory.copies import CopyReceipt
from penstock.memory.layout import strictest

if TYPE_CHECKING:
    from penstock.execution.run import Run
    from penstock.execution.state import State


def preferences_of(
    operands: Iterable[int], steps: Sequence[PreparedStep]
) -> tuple[MemoryPreference, ...]:
    """The memory preference of each operand: the strictest of the devices that read or write it."""
    return tuple(
        strictest(
            preferred_memory(step.device)
            for step in steps
            if operand in step.step.inputs or operand in step.step.outputs
        )
        for operand in operands
    )


def role_use(
    compilation: Compilation, interface: Interface, kind: Kind, name: str | int, user: object
) -> RoleUse:
    """The use of the input or output *name* (or position) by *user*. Raises `InputError`."""
    inputs, entry = kind == "input", compilation.plan.model.entry
    if inputs:
        operands, positions = interface.inputs, interface.input_positions
        ports = entry.ordinary_inputs
    else:
        operands, positions = interface.outputs, interface.output_positions
        ports = entry.ordinary_outputs
    if isinstance(name, str):
        index = find_name(name, [o.name for o in operands], kind)
    elif type(name) is int and 0 <= name < len(operands):
        index = name
    else:
        raise InputError(f"there is no {kind} {name!r}; the model has {len(operands)}")
    uses = step_uses(compilation, ports[positions[index]], inputs=inputs)
    return RoleUse(user, positions[index], operands[index], uses)


def step_uses(compilation: Compilation, operand: int, *, inputs: bool) -> tuple[StepUse, ...]:
    """The steps that read or write *operand*: for an output, its writer and its readers."""
    found: list[StepUse] = []
    for prepared in compilation.steps:
        if prepared.branches:
            continue
        if not inputs:
            found += _uses(prepared, "output", operand, prepared.step.outputs)
        found += _uses(prepared, "input", operand, prepared.step.inputs)
    return tuple(found)


def needs_the_steps_of_its_roles(arrays: Sequence[Any], out: object) -> bool:
    """Whether a run uses device memory, which is tied to particular prepared models."""
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


AGAIN: Final = "reset() of the State, or of what bind_state gave, begins again"


class Feedback:
    """The fed-back values of one compiled model. *interface* has the other inputs and outputs."""

    def __init__(self, variant: Variant, interface: Interface, bindings: Mapping[str, str]) -> None:
        self._variant = variant
        self._loops = _loops(variant, interface, bindings)
        self._variables = _variables(variant)
        self._all = (*self._loops, *self._variables)
        inputs = {p.input_position for p in self._loops}
        outputs = {p.position for p in self._loops}
        keep = [k for k, p in enumerate(interface.input_positions) if p not in inputs]
        give = [k for k, p in enumerate(interface.output_positions) if p not in outputs]
        self.interface = Interface(
            tuple(interface.inputs[k] for k in keep),
            tuple(interface.outputs[k] for k in give),
            tuple(interface.input_positions[k] for k in keep),
            tuple(interface.output_positions[k] for k in give),
        )
        self._lock = threading.Lock()
        self._states: WeakSet[State] = WeakSet()
        self._taken = sorted(set(self.interface.input_positions))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fed-back inputs and variables; empty if there is no feedback."""
        return tuple(loop.name for loop in self._all)

    def run(
        self,
        run: Run,
        arrays: Sequence[NDArray],
        targets: Sequence[NDArray | None] | None,
        state: State,
    ) -> list[NDArray]:
        """As `Variant.run` on the other inputs; fed-back values in *state* change on success."""
        variant = self._variant
        inputs: list[Any] = [None] * len(variant.model.entry.ordinary_inputs)
        out: list[Any] = list(targets or [None] * len(variant.outputs))
        for position, array in zip(self._taken, arrays, strict=True):
            inputs[position] = array
        with state.held(run.config):
            if self._variables:
                variant.check_assigned(state)
            cells = state.cells(self, run.copies)
            for loop, (read, written) in zip(self._loops, cells.of(self._loops), strict=True):
                inputs[loop.input_position] = BoundBuffer(read, loop.name, read.value_shape())
                out[loop.position] = BoundBuffer(written, loop.name, None)
            bound = variant.bound(inputs, out)
            for loop, (read, written) in zip(
                self._variables, cells.of(self._variables), strict=True
            ):
                bound[loop.read] = BoundBuffer(read, loop.name, read.value_shape())
                bound[loop.written] = BoundBuffer(written, loop.name, None)
            run.bound = bound
            results = variant.run(run, inputs, out, None if self._variables else state)
            state.end_on_device()
            return results

    def make_cells(
        self, state: State, values: Sequence[NDArray], copies: list[CopyReceipt]
    ) -> Cells:
        """The device memory for *state*, whose variables have *values*; records *copies*."""
        made: dict[Loop, tuple[DeviceBuffer, DeviceBuffer]] = {}
        try:
            for loop in self._all:
                user = _User(self._variant, loop)
                both = InputRole(user, loop.name), OutputRole(user, loop.name)
                made[loop] = allocate(both), allocate(both)
                for buffer in made[loop]:
                    buffer.stored.remedy = AGAIN
                if loop.variable >= 0:
                    reason = f"{loop.name!r} begins with the value that the state has"
                    put(made[loop][0], values[loop.variable], loop, reason, copies)
                elif (shape := static_shape(loop.shape)) is not None:
                    zeros = np.zeros(shape, loop.input.dtype.numpy)
                    put(made[loop][0], zeros, loop, f"{loop.name!r} begins with zeros", copies)
        except BaseException:
            for pair in made.values():
                for buffer in pair:
                    buffer.close()
            raise
        with self._lock:
            self._states.add(state)
        return Cells(made)

    def close(self) -> None:
        """Frees the memory of every `State`."""
        with self._lock:
            states = list(self._states)
        for state in states:
            state.release(self)

    def find(self, name: str) -> Loop:
        """The feedback loop of the input or variable *name*. Raises `InputError`."""
        return self._all[find_name(name, self.names, "bound input")]


class _User:
    def __init__(self, variant: Variant, loop: Loop) -> None:
        self._variant, self._loop = variant, loop

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        loop, inputs = self._loop, kind == "input"
        operand, index = (loop.input, loop.read) if inputs else (loop.output, loop.written)
        uses = step_uses(self._variant.compilation, index, inputs=inputs)
        return RoleUse(self, 0, replace(operand, name=operand.name or loop.name), uses)


def _loops(variant: Variant, interface: Interface, bindings: Mapping[str, str]) -> tuple[Loop, ...]:
    check_kind(bindings, Mapping, "bind_state takes a mapping of outputs to inputs")
    entry = variant.model.entry
    found: list[Loop] = []
    for output_name, input_name in bindings.items():
        k = find_name(output_name, interface.output_names, "output")
        j = find_name(input_name, interface.input_names, "input")
        position, input_position = interface.output_positions[k], interface.input_positions[j]
        if any(p.position == position or p.input_position == input_position for p in found):
            raise InputError(f"{output_name!r} or {input_name!r} is bound twice")
        read, written = entry.ordinary_inputs[input_position], entry.ordinary_outputs[position]
        given, result = entry.operands[read], entry.operands[written]
        shape = _agreed(output_name, result, input_name, given)
        found.append(
            Loop(input_name, given, result, read, written, input_position, position, -1, shape)
        )
    return tuple(found)


def _agreed(output_name: str, result: Operand, input_name: str, given: Operand) -> Shape:
    output, other = f"output {output_name!r}", f"input {input_name!r}"
    if result.dtype is not given.dtype or result.quantization != given.quantization:
        types = f"{output} is {result.dtype.value} and {other} {given.dtype.value}"
        why = "or they are quantised differently: one cannot become the other"
        raise InputError(f"{types}, {why}")
    if result.dtype is DType.STRING:
        raise InputError(f"{output} holds strings, which no device buffer does")
    try:
        return merged(result.shape, given.shape, "")
    except InvalidArgument:
        text = f"{output} has shape {result.shape} and {other} {given.shape}"
        raise InputError(text) from None


def _variables(variant: Variant) -> tuple[Loop, ...]:
    """The network's own variables that are read once and written once and have a known size."""
    operands = variant.model.entry.operands
    ports: Sequence[BufferedVariable] = buffered_variables(variant.model)
    if any(p.input is None or p.output is None for p in ports):
        return ()
    found = []
    for port in ports:
        name = variant.model.variables[port.variable].name or f"variable {port.variable}"
        read, written = port.input or 0, port.output or 0
        ends = operands[read], operands[written]
        found.append(Loop(name, *ends, read, written, variable=port.variable))
    return tuple(found)
