"""LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM: the types of an operation select the cell; and the basic
kernel of LSTM, whose weights are one matrix, with NNAPI's QUANTIZED_16BIT_LSTM.

Gates of the basic kernel are in the order input, new values, forget, output: rows of the weights
[4 * cells, inputs + cells], whose columns are those of the input, then of the previous activation.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.lstm import real_lstm
from penstock.compiler.legalise.lstm_integer import integer_lstm, looked_up, table_16
from penstock.compiler.legalise.products import F32, product
from penstock.compiler.legalise.quantised import Finish, scale_of
from penstock.compiler.legalise.recurrent import stacked
from penstock.compiler.program import Access, Position, along
from penstock.driverkit import tables_16
from penstock.driverkit.fixed_point import power_of_two, quantize_multiplier
from penstock.driverkit.site import Site, require
from penstock.driverkit.tables_16 import GREATEST, LEAST
from penstock.ir import DType

U8, I16, I32 = DType.UINT8, DType.INT16, DType.INT32

STATE_BITS: Final = 4
"""Integer bits of the integer cell state."""

INPUT_ZERO: Final = 128
GATES: Final = 4


@legal("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(operation: Operation) -> None:
    """Float, hybrid or integer; a step or a sequence."""
    site = operation.site
    if site.attributes.get("kernel_type") == "BASIC":
        _basic(operation)
    elif site.input().dtype is DType.INT8:
        integer_lstm(operation)
    else:
        real_lstm(operation)


class Basic(Struct, frozen=True):
    """The operands of a basic cell: what is joined, [batch, inputs + cells], the gates, [batch, 4 *
    cells], and both states' tensors.
    """

    joined: int
    gates: int
    state: int
    activation: int
    after: int


def _basic(operation: Operation) -> None:
    """Inputs: data, activation, weights, bias, state. Outputs: activation, state, what is joined,
    gates; then the new states, if the model has them.
    """
    site = operation.site
    dtypes = [site.input(i).dtype for i in range(5)]
    real = all(dtype is F32 for dtype in dtypes)
    if not real and dtypes != [U8, U8, U8, I32, I16]:
        site.refuse_types()
    (batch, size), cells = site.shape(0), site.shape(1)[1]
    require(site.shape(2) == (GATES * cells, size + cells), "weights of another shape")
    build = operation.build
    cell = Basic(
        _output(operation, 2, (batch, size + cells), dtypes[0]),
        _output(operation, 3, (batch, GATES * cells), F32 if real else I16),
        operation.tensor(4),
        operation.target(0),
        operation.target(1),
    )
    _join(operation, [operation.tensor(0), operation.tensor(1)], cell.joined)
    weights, bias = operation.tensor(2), operation.tensor(3)
    if real:
        _real_gates(operation, cell, weights, bias)
        _real_step(operation, cell)
    else:
        scale = scale_of(site.output(1), "a state").scale
        require(power_of_two(scale) == STATE_BITS - 15, "a state of another scale than 2**-11")
        multiplier = 4096.0 * float(np.float32(scale_of(site.input(3), "a bias").scale))
        zero_point = scale_of(site.input(2), "weights").zero_point
        _integer_gates(operation, cell, weights, bias, zero_point, multiplier, up=True)
        _integer_step(operation, cell)
    for position, tensor in ((4, cell.activation), (5, cell.after)):
        if position < len(site.outputs):
            target, loops = operation.target(position), operation.shape(tensor)
            build.copy("state", operation.whole(tensor), operation.whole(target), loops)


def _output(operation: Operation, position: int, shape: tuple[int, ...], dtype: DType) -> int:
    """The output at *position*, or a tensor of the program if the operation does not have it."""
    if position < len(operation.site.outputs):
        return operation.target(position)
    return operation.build.tensor(dtype, shape)


def _join(operation: Operation, parts: Items[int], target: int) -> None:
    first = 0
    for part in parts:
        loops = operation.shape(part)
        write = Access(target, (*along(0), Position(first, ((1, 1),))))
        operation.build.copy("join", operation.whole(part), write, loops)
        first += loops[1]


def _product(
    operation: Operation, cell: Basic, weights: int, dtypes: tuple[DType, DType, DType],
    zeros: tuple[int | None, int | None], finish: Finish, value: Value,
) -> None:  # fmt: skip
    rows, depth = operation.shape(weights)
    operation.build.emit(
        "product",
        (operation.shape(cell.joined)[0], rows),
        [Access(cell.joined, along(0, 2)), Access(weights, along(1, 2))],
        product(*dtypes, zeros),
        Access(cell.gates, along(0, 1)),
        reduced=(depth,),
        combine="sum",
        sums=dtypes[2],
        finish=value.scope.finish(value),
        extras=finish.extras,
    )


def _real_gates(operation: Operation, cell: Basic, weights: int, bias: int) -> None:
    finish = Finish(operation, F32, along(1)[0])
    added = finish.read(bias)
    scope = finish.scope()
    value = scope.argument(0) + scope.argument(added)
    _product(operation, cell, weights, (F32, F32, F32), (None, None), finish, value)


def _gates_of(operation: Operation, cell: Basic, gates: Items[int]) -> list[Access]:
    cells = operation.shape(cell.state)[1]
    return [Access(cell.gates, (*along(0), Position(gate * cells, ((1, 1),)))) for gate in gates]


def _real_step(operation: Operation, cell: Basic) -> None:
    scope = Scope(*(F32,) * 4)
    admitted, new, forget, before = (scope.argument(i) for i in range(4))
    kept = forget.apply("logistic") * before
    after = admitted.apply("logistic") * new.apply("tanh") + kept
    last = Scope(F32, F32)
    shown = last.argument(0).apply("logistic") * last.argument(1).apply("tanh")
    _step(operation, cell, after, shown)


def _step(operation: Operation, cell: Basic, after: Value, shown: Value) -> None:
    """Adds the kernels of the state, of the first three gates and the state before, and of the
    activation, of the last gate and the new state.
    """
    build, shape = operation.build, operation.shape(cell.state)
    reads = [*_gates_of(operation, cell, (0, 1, 2)), operation.whole(cell.state)]
    build.emit("cell", shape, reads, after.scope.finish(after), operation.whole(cell.after))
    reads = [*_gates_of(operation, cell, (3,)), operation.whole(cell.after)]
    build.emit("output", shape, reads, shown.scope.finish(shown), operation.whole(cell.activation))


def _integer_gates(
    operation: Operation, cell: Basic, weights: int, bias: int, zero_point: int,
    multiplier: float, *, up: bool,
) -> None:  # fmt: skip
    """Gates in Q3. *up*: both roundings of the scaling are to the nearest, halves up, as in
    TFLite's matrix products.
    """
    finish = Finish(operation, I32, along(1)[0])
    added = finish.read(bias)
    scope = finish.scope()
    total = scope.argument(0) + scope.argument(added)
    mantissa, shift = quantize_multiplier(multiplier)
    if up:
        right = max(-shift, 0)
        value = total.apply("shift_left", max(shift, 0)).apply("high_product", mantissa)
        if right:
            value = (value + (1 << (right - 1))).apply("shift_right", right)
    else:
        factors = scope.constant(mantissa, I32), scope.constant(shift, I32)
        value = scope.add("rescale", total, *factors, dtype=I32)
    stored = value.clamp(LEAST, GREATEST).cast(I16)
    zeros = INPUT_ZERO, zero_point
    _product(operation, cell, weights, (U8, U8, I32), zeros, finish, stored)


def _times(a: Value, b: Value) -> Value:
    """The product of int16 values over 2**15 to the nearest, halves up; -1 times -1 saturates."""
    product = (a * b + (1 << 14)).apply("shift_right", 15)
    return product.apply("minimum", GREATEST)


def _integer_step(operation: Operation, cell: Basic) -> None:
    """The new int16 state and the uint8 activation."""
    logistic = table_16(operation, tables_16.logistic_q3())
    tanhs = [table_16(operation, tables_16.tanh_of(bits)) for bits in (3, STATE_BITS)]
    scope = Scope(*(I16,) * 4)
    admitted = looked_up(operation, logistic, scope.argument(0))
    new = looked_up(operation, tanhs[0], scope.argument(1))
    forget = looked_up(operation, logistic, scope.argument(2))
    added = _times(admitted, new).apply("divide_by_power", STATE_BITS)
    after = added + _times(forget, scope.argument(3).cast(I32))
    last = Scope(I16, I16)
    shown = looked_up(operation, logistic, last.argument(0))
    activation = _times(shown, looked_up(operation, tanhs[1], last.argument(1)))
    narrow = activation.apply("divide_by_power", 8).clamp(-128, 127) + INPUT_ZERO
    _step(operation, cell, after.clamp(LEAST, GREATEST).cast(I16), narrow.cast(U8))


@legal("QUANTIZED_16BIT_LSTM")
def quantized_16bit_lstm(operation: Operation) -> None:
    """The integer kernel with one matrix for each gate.

    NNAPI fixes scales and zero points: 1/128 and 128 for the activations, 2**-11 for the cell
    state, and the weights' scale over 128 for biases. It puts the recurrent weights before the
    input's, and the input before the previous output: the first columns of the joined weights
    multiply the input, whichever matrix they come from.
    """
    site, build = operation.site, operation.build
    wanted = [*[U8] * 9, *[I32] * 4, I16, U8]
    if [site.input(i).dtype for i in range(len(wanted))] != wanted:
        site.refuse_types()
    (batch, size), cells = site.shape(0), site.shape(13)[1]
    weights = _joined_weights(operation, cells)
    # NNAPI's gates are in the order input, forget, cell, output.
    bias = stacked(operation, [9, 11, 10, 12], I32)
    depth = operation.shape(weights)[1]
    require(size + site.shape(14)[1] == depth, "weights of another depth")
    cell = Basic(
        build.tensor(U8, (batch, depth)),
        build.tensor(I16, (batch, GATES * cells)),
        operation.tensor(13),
        operation.target(1),
        operation.target(0),
    )
    _join(operation, [operation.tensor(0), operation.tensor(14)], cell.joined)
    multiplier = 4096.0 * float(np.float32(_scale(site, 9)))
    zero_point = scale_of(site.input(1), "weights").zero_point
    _integer_gates(operation, cell, weights, bias, zero_point, multiplier, up=False)
    _integer_step(operation, cell)


def _scale(site: Site, position: int) -> float:
    return scale_of(site.input(position), "a bias").scale


def _joined_weights(operation: Operation, cells: int) -> int:
    """The weights of all gates as one matrix: kernels, which are folded if they are constant."""
    build = operation.build
    order = 0, 2, 1, 3
    shapes = [operation.site.shape(position) for position in (5, 1)]
    target = build.tensor(U8, (GATES * cells, shapes[0][1] + shapes[1][1]))
    for row, gate in enumerate(order):
        first = 0
        for position in (5 + gate, 1 + gate):
            source = operation.tensor(position)
            loops = operation.shape(source)
            write = Access(target, (Position(row * cells, ((0, 1),)), Position(first, ((1, 1),))))
            build.copy("stack", operation.whole(source), write, loops)
            first += loops[1]
    return target
