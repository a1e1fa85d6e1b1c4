"""Values that stay on a device between runs (feedback), and roles of a model's device memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compilation.prepared import Compilation, PreparedStep
from penstock.errors import InputError, InvalidArgument
from penstock.execution.arena import BufferedVariable, buffered_variables
from penstock.execution.interface import Interface, find_name
from penstock.execution.variant import Variant
from penstock.hal import MemoryPreference
from penstock.hal.buffer import merged
from penstock.hal.device import preferred_memory
from penstock.ir import DType, NDArray, Operand, Shape
from penstock.ir.types import static_shape
from penstock.memory.allocation import InputRole, OutputRole, RoleUse, allocate
from penstock.memory.bound import BoundMemory, Kind, StepUse
from penstock.memory.buffer import BoundBuffer, DeviceBuffer, fetch_value, put_value
from penstock.memory.copies import STAGED, CopyReceipt
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
    """The use of the input or output *name* (or position) by runs of *user*. Raises
    `InputError`.
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


def _position(index: object, names: Sequence[str], kind: str) -> int:
    if type(index) is not int or not 0 <= index < len(names):
        raise InputError(f"there is no {kind} {index!r}; the model has {len(names)}")
    return index


AGAIN: Final = "reset() of the State, or of what bind_state gave, begins again"


class Loop(Struct, frozen=True):
    """One fed-back value: the operand that a run reads, and the operand that it writes.

    *position* and *input_position* are those of the output and input among the model's ordinary
    ones. For a variable of the network, *variable* is its index instead.
    """

    name: str
    input: Operand
    output: Operand
    read: int
    written: int
    input_position: int = -1
    position: int = -1
    variable: int = -1
    shape: Shape = None


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
        """Runs like `Variant.run` on the remaining inputs.

        *state* has the fed-back values; they change only if the run succeeds.
        """
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
        """The device memory for *state*, whose variables have *values*; adds the copies to
        *copies*.
        """
        made: dict[Loop, tuple[DeviceBuffer, DeviceBuffer]] = {}
        try:
            for loop in self._all:
                user = _User(self._variant, loop)
                both: list[InputRole | OutputRole] = [
                    InputRole(user, loop.name),
                    OutputRole(user, loop.name),
                ]
                made[loop] = allocate(both), allocate(both)
                for buffer in made[loop]:
                    buffer.remedy = AGAIN
                if loop.variable >= 0:
                    reason = f"{loop.name!r} begins with the value that the state has"
                    _put(made[loop][0], values[loop.variable], loop, reason, copies)
                elif (shape := static_shape(loop.shape)) is not None:
                    zeros = np.zeros(shape, loop.input.dtype.numpy)
                    _put(made[loop][0], zeros, loop, f"{loop.name!r} begins with zeros", copies)
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


class Cells:
    """Double-buffered feedback: two device buffers for each value.

    A run reads the first buffer and writes the second; after a success they swap.
    """

    def __init__(self, made: dict[Loop, tuple[DeviceBuffer, DeviceBuffer]]) -> None:
        self._made = made
        self.variables = tuple(p.variable for p in made if p.variable >= 0)

    def of(self, loops: Sequence[Loop]) -> list[tuple[DeviceBuffer, DeviceBuffer]]:
        """For each of *loops*, the buffer to read and the buffer to write."""
        return [self._made[loop] for loop in loops]

    def turn(self) -> None:
        """Swaps the buffers: the next run reads what this run wrote."""
        self._made = {loop: (written, read) for loop, (read, written) in self._made.items()}

    def fetch_variables(self, copies: list[CopyReceipt]) -> dict[int, NDArray]:
        """Copies the present values of the variables to the host; records each copy in *copies*."""
        found = {}
        for loop, (read, _) in self._made.items():
            if loop.variable < 0:
                continue
            began = perf_counter_ns()
            value, count = fetch_value(read)
            spent = perf_counter_ns() - began
            route = (read.device or "pool", "host")
            reason = f"the state has its value of {loop.name!r} on the device of another model"
            copies.append(CopyReceipt(value.nbytes, *route, reason, None, None, began, spent))
            copies += _staged(value.nbytes, count - 1, None)
            found[loop.variable] = value
        return found

    def put_variables(self, values: Sequence[NDArray], copies: list[CopyReceipt]) -> None:
        """Replaces the values of the variables; records each copy in *copies*."""
        for loop, (read, _) in self._made.items():
            if loop.variable < 0:
                continue
            reason = f"the state has another value of {loop.name!r} than its device"
            _put(read, values[loop.variable], loop, reason, copies)

    def close(self) -> None:
        """Frees the buffers."""
        for pair in self._made.values():
            for buffer in pair:
                buffer.close()


class _User:
    """One fed-back value as a user of buffers."""

    def __init__(self, variant: Variant, loop: Loop) -> None:
        self._variant, self._loop = variant, loop

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        loop, inputs = self._loop, kind == "input"
        operand, index = (loop.input, loop.read) if inputs else (loop.output, loop.written)
        return RoleUse(
            self,
            0,
            replace(operand, name=operand.name or loop.name),
            step_uses(self._variant.compilation, index, inputs=inputs),
        )


def _put(
    buffer: DeviceBuffer, value: Any, loop: Loop, reason: str, copies: list[CopyReceipt]
) -> None:
    array, began = np.asarray(value), perf_counter_ns()
    count = put_value(buffer, array)
    spent = perf_counter_ns() - began
    route = ("host", buffer.device or "pool")
    copies.append(CopyReceipt(array.nbytes, *route, reason, None, loop.read, began, spent))
    copies += _staged(array.nbytes, count - 1, loop.read)


def _staged(nbytes: int, count: int, operand: int | None) -> list[CopyReceipt]:
    """Receipts of the intermediate copies; their time is part of the copy before."""
    return [CopyReceipt(nbytes, "host", "host", STAGED, None, operand) for _ in range(count)]


def _loops(variant: Variant, interface: Interface, bindings: Mapping[str, str]) -> tuple[Loop, ...]:
    if not isinstance(bindings, Mapping):
        raise InputError(
            f"bind_state takes a mapping of outputs to inputs, not {type(bindings).__name__}"
        )
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
    if result.dtype is not given.dtype or result.quantization != given.quantization:
        raise InputError(
            f"output {output_name!r} is {result.dtype.value} and input {input_name!r} "
            f"{given.dtype.value}, "
            "or they are quantised differently: one cannot become the other"
        )
    if result.dtype is DType.STRING:
        raise InputError(f"output {output_name!r} holds strings, which no device buffer does")
    try:
        return merged(result.shape, given.shape, "")
    except InvalidArgument:
        raise InputError(
            f"output {output_name!r} has shape {result.shape} and input {input_name!r} "
            f"{given.shape}"
        ) from None


def _variables(variant: Variant) -> tuple[Loop, ...]:
    """The network's own variables that are read once and written once and have a known size."""
    operands = variant.model.entry.operands
    ports: Sequence[BufferedVariable] = buffered_variables(variant.model)
    if any(p.input is None or p.output is None for p in ports):
        return ()
    return tuple(
        Loop(
            variant.model.variables[p.variable].name or f"variable {p.variable}",
            operands[p.input or 0],
            operands[p.output or 0],
            p.input or 0,
            p.output or 0,
            variable=p.variable,
        )
        for p in ports
    )
