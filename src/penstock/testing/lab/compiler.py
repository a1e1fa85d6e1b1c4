"""The lab device's compiler: supported operations, the baseline program, and the optimised one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.errors import GeneralFailure
from penstock.hal import SUPPORTED, Support
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Operation
from penstock.ir.types import is_static, static_shape
from penstock.testing.lab.kernels import ACTIVATIONS, OPCODES
from penstock.testing.lab.program import (
    ALIGNMENT,
    DTYPES,
    MOST_BYTES,
    MOST_RANK,
    Instruction,
    Program,
    Slot,
)

MOST_OF_A_DIMENSION: Final = (1 << 32) - 1

INTERFACE: str = "penstock.lab"
"""The custom code of the operation that stands for a program in `interface`."""

Progress = Callable[[int, int], None]
"""Progress: called with the number of operations done, and their total."""


def support(model: Model, operation: Operation) -> Support:
    """Whether there is an instruction for *operation*, or the reason why not."""
    reason = _refusal(model, operation)
    return Support(supported=False, reason=reason) if reason else SUPPORTED


def _refusal(model: Model, operation: Operation) -> str:
    if operation.type not in OPCODES or operation.type == "FULLY_CONNECTED_TURNED":
        return f"the lab device has no {operation.type}"
    if len(operation.outputs) != 1:
        return f"{len(operation.outputs)} outputs; one is possible"
    read = _read(model, operation)
    used = (*read, operation.outputs[0])
    for index in used:
        if reason := _odd(model.operands[index], index):
            return reason
    attributes = operation.attributes
    activation = attributes.get("fused_activation_function", "NONE")
    if activation not in ACTIVATIONS:
        return f"no fused activation {activation!r}"
    if attributes.get("weights_format", "DEFAULT") != "DEFAULT":
        return "shuffled weights are not read"
    if operation.type == "FULLY_CONNECTED" and not model.operands[read[1]].is_constant:
        return "its weights must be constant"
    if len(read) > 255:
        return f"{len(read)} inputs; 255 are possible"
    opcode = OPCODES[operation.type]
    if not all(is_static(model.operands[i].shape) for i in used):
        knows = opcode.arity == len(read)
        return "" if knows else f"{operation.type} of values whose shapes are not known"
    *shapes, output = (static_shape(model.operands[i].shape) or () for i in used)
    if not opcode.fits(_instruction(model, operation), shapes, output):
        return f"inputs of shapes {shapes} do not give {output}"
    return ""


def _odd(operand: Operand, index: int) -> str:
    name = operand.name or f"operand {index}"
    if not operand.has_value:
        return "an input is left out"
    if operand.dtype is not DType.FLOAT32:
        return f"{name} is {operand.dtype.value}, not float32"
    shape = [d or 0 for d in operand.shape or ()]
    if len(shape) > MOST_RANK or max(shape, default=0) >= MOST_OF_A_DIMENSION:
        return f"{name} has shape {operand.shape}"
    if (size := 4 * math.prod(shape)) > MOST_BYTES:
        return f"{name} has {size} bytes"
    return ""


def _read(model: Model, operation: Operation) -> tuple[int, ...]:
    """The inputs that the instruction reads: not RESHAPE's shape, nor an omitted bias."""
    match operation.type:
        case "RESHAPE":
            return operation.inputs[:1]
        case "FULLY_CONNECTED":
            optional = (i for i in operation.inputs[2:] if model.operands[i].has_value)
            return (*operation.inputs[:2], *optional)
    return operation.inputs


def _instruction(model: Model, operation: Operation) -> Instruction:
    """The instruction of a supported operation, by operand numbers."""
    attributes = operation.attributes
    axis = int(attributes.integer("axis")) if operation.type == "CONCATENATION" else 0
    if axis < 0:
        axis += len(model.operands[operation.outputs[0]].shape or ())
    return Instruction(
        operation.type,
        _read(model, operation),
        operation.outputs[0],
        str(attributes.get("fused_activation_function", "NONE")),
        axis,
        float(attributes.number("beta")) if operation.type == "SOFTMAX" else 1.0,
    )


def compile_model(model: Model, progress: Progress) -> Program:
    """The baseline program of a supported model.

    Raises `GeneralFailure` if an input or output that no operation uses has an unknown shape or
    size.
    """
    operations = model.operations
    instructions = []
    for index, operation in enumerate(operations):
        instructions.append(replace(_instruction(model, operation), operations=(index,)))
        progress(index + 1, len(operations))
    entry = model.entry
    computed = {n for one in instructions for n in (*one.inputs, one.output)}
    used = sorted({*entry.inputs, *entry.outputs} | computed)
    weights = _Weights()
    slots = [_slot(model, index, weights) for index in used]
    place = {index: n for n, index in enumerate(used)}
    return Program(
        "baseline",
        tuple(slots),
        tuple(place[i] for i in entry.inputs),
        tuple(place[i] for i in entry.outputs),
        tuple(
            replace(one, inputs=tuple(place[i] for i in one.inputs), output=place[one.output])
            for one in instructions
        ),
        weights.view(),
    )


def _slot(model: Model, index: int, weights: _Weights) -> Slot:
    operand = model.operands[index]
    shape = operand.shape
    large = max((d or 0 for d in shape or ()), default=0) >= MOST_OF_A_DIMENSION
    if large or operand.dtype not in DTYPES or operand.quantization is not None:
        name = operand.name or f"operand {index}"
        raise GeneralFailure(
            f"{name} is {operand.dtype.value} of shape {operand.shape}, which passes through no "
            "program of the lab device"
        )
    offset = weights.add(model.constant(operand)) if operand.is_constant else None
    return Slot(operand.dtype, shape, offset)


class _Weights:
    """Collects constants."""

    def __init__(self) -> None:
        self._content = bytearray()

    def add(self, value: NDArray) -> int:
        self._content += bytes(-len(self._content) % ALIGNMENT)
        offset = len(self._content)
        self._content += np.ascontiguousarray(value).tobytes()
        return offset

    def view(self) -> memoryview:
        return memoryview(bytes(self._content))


def optimise(program: Program) -> Program:
    """*program* with fused RELU, and layer weights transposed to [depth, units]."""
    fused = _fuse(program)
    weights = _Weights()
    slots = list(program.slots)
    turned = _turnable(program, fused)
    for number, slot in enumerate(slots):
        if slot.offset is None:
            continue
        value = program.constant(slot)
        value = value.T if number in turned else value
        slots[number] = replace(slot, shape=value.shape, offset=weights.add(value))
    instructions = [
        replace(one, opcode="FULLY_CONNECTED_TURNED")
        if one.opcode == "FULLY_CONNECTED" and one.inputs[1] in turned
        else one
        for one in fused
    ]
    return replace(
        program,
        artefact="optimised",
        slots=tuple(slots),
        instructions=tuple(instructions),
        weights=weights.view(),
    )


def _fuse(program: Program) -> list[Instruction]:
    """The instructions. If RELU is the only reader of a result, it becomes its activation."""
    reads = Counter(n for one in program.instructions for n in one.inputs)
    reads.update(program.outputs)
    writer: dict[int, int] = {}
    fused: list[Instruction] = []
    for one in program.instructions:
        source = writer.get(one.inputs[0]) if one.opcode == "RELU" else None
        if source is not None and reads[one.inputs[0]] == 1 and fused[source].activation == "NONE":
            before = fused[source]
            fused[source] = replace(
                before,
                output=one.output,
                activation="RELU",
                operations=before.operations + one.operations,
            )
            writer[one.output] = source
        else:
            writer[one.output] = len(fused)
            fused.append(one)
    return fused


def _turnable(program: Program, instructions: Sequence[Instruction]) -> set[int]:
    """The constants that are only used as weights of layers."""
    layers = {one.inputs[1] for one in instructions if one.opcode == "FULLY_CONNECTED"}
    others = set(program.outputs)
    for one in instructions:
        is_layer = one.opcode == "FULLY_CONNECTED"
        others.update(one.inputs[:1] + one.inputs[2:] if is_layer else one.inputs)
    return layers - others


def interface(program: Program) -> Model:
    """A model with the inputs and outputs of *program* and one opaque operation: to check
    requests.
    """
    builder = ModelBuilder()
    inputs = [builder.input(program.slots[n].dtype, program.slots[n].shape) for n in program.inputs]
    results = [(program.slots[n].dtype, program.slots[n].shape) for n in program.outputs]
    if not results:
        return builder.build([])
    return builder.build(builder.operation("CUSTOM", inputs, results, {"custom_code": INTERFACE}))
