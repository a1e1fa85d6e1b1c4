"""Models of one operation, and the shapes that Penstock and LiteRT find for its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import ir
from penstock.export.tflite.fields import TFLITE
from penstock.ir.operand import Lifetime, Origin
from penstock.ir.operation import AttributeValue

FLOAT: Final = ir.DType.FLOAT32
INT: Final = ir.DType.INT32


@dataclass(frozen=True)
class Input:
    """An input given at run time."""

    shape: ir.Shape
    dtype: ir.DType = FLOAT
    quantization: ir.Quantization | None = None


@dataclass(frozen=True)
class StateInput:
    """A state input of a recurrent operation; it adds a new-state output."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A constant with quantisation; plain arrays stand for those without."""

    value: ir.NDArray
    quantization: ir.Quantization | None = None


@dataclass(frozen=True)
class Output:
    """An output whose shape or quantisation the model declares."""

    dtype: ir.DType = FLOAT
    shape: ir.Shape = None
    quantization: ir.Quantization | None = None


Given: TypeAlias = "Input | StateInput | Constant | ir.NDArray | None"
Wanted: TypeAlias = "ir.DType | Output"


def x(*shape: int | None, dtype: ir.DType = FLOAT, q: ir.Quantization | None = None) -> Input:
    return Input(shape, dtype, q)


def ints(*values: Any, dtype: Any = np.int32) -> ir.NDArray:
    """A vector of integers (or, of nested lists, a matrix)."""
    return np.array(values, dtype)


def scalar(value: float, dtype: Any = np.int32) -> ir.NDArray:
    return np.array(value, dtype)


def zeros(*shape: int, dtype: Any = np.float32) -> ir.NDArray:
    return np.zeros(shape, dtype)


def q(scale: float, zero_point: int = 0) -> ir.Quantization:
    return ir.Quantization((float(np.float32(scale)),), (zero_point,))


def q_channels(scale: float, count: int, dimension: int) -> ir.Quantization:
    return ir.Quantization((float(np.float32(scale)),) * count, (0,) * count, dimension)


def single(
    kind: str,
    inputs: Sequence[Given],
    outputs: Sequence[Wanted] = (FLOAT,),
    attributes: Mapping[str, AttributeValue] | None = None,
) -> ir.Model:
    """A model of one operation; raises what validation raises."""
    builder = ir.ModelBuilder()
    indexes: list[int | None] = []
    states: list[tuple[int, StateInput]] = []
    for position, given in enumerate(inputs):
        if given is None:
            indexes.append(None)
        elif isinstance(given, StateInput):
            operand = ir.Operand(FLOAT, given.shape, Lifetime.SUBGRAPH_INPUT, f"state{position}")
            indexes.append(builder.operand(operand))
            states.append((position, given))
        elif isinstance(given, Input):
            indexes.append(
                builder.input(given.dtype, given.shape, f"in{position}", given.quantization)
            )
        elif isinstance(given, Constant):
            indexes.append(builder.constant(given.value, f"in{position}", given.quantization))
        else:
            indexes.append(builder.constant(given, f"in{position}"))
    wanted = [o if isinstance(o, Output) else Output(o) for o in outputs]
    wanted += [Output()] * len(states)
    made = builder.operation(
        kind, indexes, [(o.dtype, o.shape, o.quantization) for o in wanted], attributes or {}
    )
    for (position, state), output in zip(states, made[len(outputs) :], strict=True):
        variable = builder.variable(f"state{position}", FLOAT, state.shape)
        builder.state(variable, indexes[position], output)
    return builder.build(made[: len(outputs)])


def inferred(model: ir.Model) -> list[ir.Shape]:
    """Shapes of the outputs by the operation table."""
    entry = ir.infer_shapes(model).entry
    return [entry.operands[i].shape for i in entry.ordinary_outputs]


def shapes(
    kind: str,
    inputs: Sequence[Given],
    outputs: Sequence[Wanted] = (FLOAT,),
    attributes: Mapping[str, AttributeValue] | None = None,
) -> list[ir.Shape]:
    """Inferred shapes of the outputs of one operation."""
    return inferred(single(kind, inputs, outputs, attributes))


def shape(
    kind: str, *inputs: Given, dtype: ir.DType = FLOAT, **attributes: AttributeValue
) -> ir.Shape:
    """Inferred shape of the output of an operation that has one."""
    (found,) = shapes(kind, inputs, (dtype,), attributes)
    return found


FIRST_VERSIONS: Final = {"BROADCAST_TO": 2}
"""Operators whose kernels do not know version 1."""


def litert_shapes(model: ir.Model) -> list[ir.Shape] | str:
    """Output shapes as LiteRT has them after a run on zeros, or why it refuses."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    from penstock.export.tflite import write

    try:
        interpreter = Interpreter(
            model_content=write(_versioned(model)),
            num_threads=1,
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        interpreter.allocate_tensors()
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
        interpreter.invoke()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return [tuple(int(d) for d in detail["shape"]) for detail in interpreter.get_output_details()]


def _versioned(model: ir.Model) -> ir.Model:
    (operation,) = model.operations
    if operation.type not in FIRST_VERSIONS:
        return model
    code = TFLITE.number("BuiltinOperator", operation.type)
    origin = Origin(0, 0, code, FIRST_VERSIONS[operation.type])
    entry = replace(model.entry, operations=(replace(operation, origin=origin),))
    return replace(model, subgraphs=(entry,))
