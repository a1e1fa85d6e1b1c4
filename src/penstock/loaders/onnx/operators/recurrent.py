"""LSTM, GRU and RNN: by the IR's sequence operations where these do the same, else as loops over
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.operators.common import (
    arithmetic,
    concatenate,
    expand,
    pair,
    sizes,
)
from penstock.loaders.onnx.operators.control import InBody, length, loop, picked, placed
from penstock.loaders.onnx.values import Value, constant

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

Cell = Callable[[Call, int, list[int]], list[int]]
"""One step: the projected input of this time and the states; the new states, the first of them the
output.
"""


class _Layer:
    """The inputs of a recurrent node, sorted out."""

    def __init__(self, call: Call, kind: str) -> None:
        self.call, self.kind = call, kind
        node = call.node
        self.hidden = node.integer("hidden_size", 0)
        self.direction = node.text("direction", "forward")
        if self.direction not in DIRECTIONS:
            raise node.invalid(f"the direction {self.direction!r}")
        self.count = DIRECTIONS[self.direction]
        self.batch_first = bool(node.integer("layout", 0))
        x = call.tensor(0)
        if x.rank != 3:
            raise call.mismatch(f"a sequence of shape {x.shape}")
        if x.dtype not in {DType.FLOAT32, DType.FLOAT16}:
            raise call.refuse(f"a recurrent layer of {x.dtype.value}")
        self.dtype = x.dtype
        self.x = call.get(x, (1, 0, 2) if self.batch_first else None)
        dims = call.shape(self.x) or (None,) * 3
        self.steps, self.batch, depth = dims
        weights, recurrent = call.tensor(1), call.tensor(2)
        rows = (recurrent.shape or (None, None, None))[2]
        self.hidden = self.hidden or rows or 0
        expected = (self.count, GATES[kind] * self.hidden)
        for value, columns in ((weights, depth), (recurrent, self.hidden)):
            shape = value.shape or ()
            if len(shape) != 3 or shape[:2] != expected or columns not in (None, shape[2]):
                raise call.mismatch(
                    f"weights of shape {shape} where ({expected}, {columns}) is needed"
                )
        if call.has(4):
            self._check_lengths()
        names = [n.decode("utf-8", "replace").lower() for n in node.strings("activations", ())]
        self.activations = tuple(names) or DEFAULTS[kind] * self.count
        if len(self.activations) != len(DEFAULTS[kind]) * self.count:
            raise node.invalid(f"the activations {self.activations}")
        if node.has("activation_alpha") or node.has("activation_beta"):
            raise call.refuse("activations with parameters of their own")
        self.clip = node.number("clip", 0.0) if node.has("clip") else None

    def _check_lengths(self) -> None:
        lengths = self.call.array(4)
        if lengths is None or self.steps is None or (lengths != self.steps).any():
            raise self.call.refuse("sequences of different length in one batch (sequence_lens)")

    def plain(self, at: int) -> bool:
        """Whether direction *at* has the default activations, unclipped."""
        wanted = DEFAULTS[self.kind]
        mine = self.activations[at * len(wanted) : (at + 1) * len(wanted)]
        return self.clip is None and mine == wanted

    def of_direction(self, index: int, at: int) -> Value | None:
        """Input *index* of one direction: its first dimension goes."""
        if not self.call.has(index):
            return None
        value = self.call.tensor(index)
        if value.array is not None:
            return constant(value.array[at])
        place = self.call.emitter.constant(np.array(at, np.int32))
        operand = self.call.emit("GATHER", [self.call.get(value), place], value.dtype, {"axis": 0})
        return self.call.wrap(operand)

    def state(self, index: int, at: int) -> int:
        """An initial state [batch, hidden] of one direction, zeros where there is none."""
        call = self.call
        if call.has(index):
            value = call.tensor(index)
            order = (1, 0, 2) if self.batch_first else None
            operand = call.get(value, order)
            place = call.emitter.constant(np.array(at, np.int32))
            return call.emit("GATHER", [operand, place], value.dtype, {"axis": 0})
        if self.batch is not None:
            call.body.lowering.budget.take(self.batch * self.hidden * 4, call.node.where)
            return call.emitter.constant(np.zeros((self.batch, self.hidden), self.dtype.numpy))
        begin, size = call.emitter.integers([1]), call.emitter.integers([1])
        rows = call.emit("SLICE", [sizes(call, self.x), begin, size], DType.INT64)
        both = concatenate(call, [rows, call.emitter.integers([self.hidden], np.int64)], 0)
        return call.emit("FILL", [both, call.scalar(0, self.dtype)], self.dtype)

    def reversed(self, at: int) -> bool:
        return self.direction == "reverse" or at == 1

    def sequence(self, at: int) -> int:
        return self.turned(self.x) if self.reversed(at) else self.x

    def turned(self, operand: int) -> int:
        return self.call.emit("REVERSE_V2", [operand, self.call.emitter.integers([0])], self.dtype)

    def rows(self, value: Value | None, gate: int, size: int | None = None) -> Value | None:
        """The rows of one gate."""
        if value is None:
            return None
        height = size or self.hidden
        if value.array is not None:
            return constant(value.array[gate * height : (gate + 1) * height])
        operand = self.call.get(value)
        rank = value.rank or 1
        begin = self.call.emitter.integers([gate * height] + [0] * (rank - 1))
        extent = self.call.emitter.integers([height] + [-1] * (rank - 1))
        return self.call.wrap(self.call.emit("SLICE", [operand, begin, extent], value.dtype))

    def results(self, outputs: Sequence[int], states: Sequence[Sequence[int]]) -> list[Value]:
        """Y and the last states of all directions, in the node's layout."""
        call = self.call
        every = [expand(call, o, 1) for o in outputs]
        y = concatenate(call, every, 1)
        values = [call.wrap(y, (1, 2, 0, 3) if self.batch_first else None)]
        if self.batch_first:
            # Y is [batch, time, direction, hidden]; what stands there is [time, direction, batch,
            # hidden].
            values[0] = call.wrap(y, (1, 2, 0, 3))
        for each in zip(*states, strict=True):
            joined = concatenate(call, [expand(call, s, 0) for s in each], 0)
            values.append(call.wrap(joined, (1, 0, 2) if self.batch_first else None))
        return values


@operator("LSTM")
def lstm(call: Call) -> list[Value]:
    layer = _Layer(call, "LSTM")
    outputs, states = [], []
    coupled = bool(call.node.integer("input_forget", 0))
    for at in range(layer.count):
        fast = layer.plain(at) and not coupled
        made = _sequence_lstm(layer, at) if fast else _looped_lstm(layer, at, coupled)
        outputs.append(layer.turned(made[0]) if layer.reversed(at) else made[0])
        states.append(made[1:])
    return layer.results(outputs, states)


def _sequence_lstm(layer: _Layer, at: int) -> list[int]:
    """ONNX orders gates input, output, forget, cell; TFLite input, forget, cell, output."""
    call = layer.call
    order = (0, 2, 3, 1)
    weights, recurrent = layer.of_direction(1, at), layer.of_direction(2, at)
    bias, peepholes = layer.of_direction(3, at), layer.of_direction(7, at)

    def get(value: Value | None) -> int | None:
        return None if value is None else call.get(value)

    inputs: list[int | None] = [layer.sequence(at)]
    inputs += [get(layer.rows(weights, g)) for g in order]
    inputs += [get(layer.rows(recurrent, g)) for g in order]
    inputs += [get(layer.rows(peepholes, g)) for g in (0, 2, 1)]
    if bias is None:
        bias = constant(np.zeros(8 * layer.hidden, layer.dtype.numpy))
    for gate in order:
        own, other = layer.rows(bias, gate), layer.rows(bias, gate + 4)
        if own is None or other is None:
            raise call.node.invalid("biases are missing")
        inputs.append(call.get(_sum(call, own, other)))
    inputs += [None, None, layer.state(5, at), layer.state(6, at), None, None, None, None]
    attributes: dict[str, str | bool] = {"fused_activation_function": "TANH", "time_major": True}
    return call.emitter.emit("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [layer.dtype] * 3, attributes)


def _sum(call: Call, a: Value, b: Value) -> Value:
    if a.array is not None and b.array is not None:
        return constant(a.array + b.array)
    return pair(call, "ADD", a, b)


def _projected(layer: _Layer, at: int, bias: Value | None) -> int:
    """The whole sequence times the input weights, plus a bias."""
    call = layer.call
    weights = layer.of_direction(1, at)
    if weights is None:
        raise call.node.invalid("weights are missing")
    inputs = [layer.sequence(at), call.get(weights)]
    if bias is not None:
        inputs.append(call.get(bias))
    return call.emit("FULLY_CONNECTED", inputs, layer.dtype, {"keep_num_dims": True})


def over_time(call: Call, sequence: int, states: list[int], hidden: int, cell: Cell) -> list[int]:
    """[outputs over time, last states ...] of a cell over the first dimension of *sequence*."""
    dtype = call.emitter.dtype(sequence)
    dims = call.shape(sequence) or (None,) * 3
    if None in dims[:2]:
        head = call.emit(
            "SLICE",
            [sizes(call, sequence), call.emitter.integers([0]), call.emitter.integers([2])],
            DType.INT64,
        )
        shape = concatenate(call, [head, call.emitter.integers([hidden], np.int64)], 0)
        buffer = call.emit("FILL", [shape, call.scalar(0, dtype)], dtype)
    else:
        whole = (dims[0] or 0, dims[1] or 0, hidden)
        call.body.lowering.budget.take(math.prod(whole) * 4, call.node.where)
        buffer = call.emitter.constant(np.zeros(whole, dtype.numpy))
    source = call.wrap(sequence)

    def step(emitter: Emitter, at: Value, values: list[Value]) -> tuple[list[int], int | None]:
        inner = InBody(call, emitter)
        counter = emitter.get(at)
        now = picked(inner, emitter.get(source), counter)
        made = cell(inner, now, [emitter.get(v) for v in values[1:]])
        return [placed(inner, emitter.get(values[0]), counter, made[0]), *made], None

    return loop(call, length(call, sequence, 0), [buffer, *states], step, along=(source, 0))


def _activated(call: Call, name: str, x: int, clip: float | None) -> int:
    dtype = call.emitter.dtype(x)
    if clip is not None:
        bound = call.scalar(clip, dtype), call.scalar(-clip, dtype)
        x = arithmetic(call, "MAXIMUM", arithmetic(call, "MINIMUM", x, bound[0]), bound[1])
    simple = {"sigmoid": "LOGISTIC", "tanh": "TANH", "relu": "RELU", "elu": "ELU"}
    if name in simple:
        return call.emit(simple[name], [x], dtype)
    if name == "softsign":
        size = arithmetic(call, "ADD", call.emit("ABS", [x], dtype), call.scalar(1, dtype))
        return arithmetic(call, "DIV", x, size)
    if name in {"hardsigmoid", "affine"}:
        low = arithmetic(call, "MUL", x, call.scalar(0.2 if name == "hardsigmoid" else 1, dtype))
        if name == "affine":
            return low
        line = arithmetic(call, "ADD", low, call.scalar(0.5, dtype))
        return call.emit("RELU_0_TO_1", [line], dtype)
    raise call.refuse(f"the activation {name!r}")


def _connected(call: Call, x: int, weights: Value, bias: Value | None = None) -> int:
    inputs = [x, call.emitter.get(weights)]
    if bias is not None:
        inputs.append(call.emitter.get(bias))
    return call.emit("FULLY_CONNECTED", inputs, call.emitter.dtype(x), {"keep_num_dims": True})


def _part(call: Call, x: int, at: int, size: int) -> int:
    """Columns of one gate of [batch, gates * size]."""
    begin, extent = call.emitter.integers([0, at * size]), call.emitter.integers([-1, size])
    return call.emit("SLICE", [x, begin, extent], call.emitter.dtype(x))


def _looped_lstm(layer: _Layer, at: int, coupled: bool) -> list[int]:
    call, hidden = layer.call, layer.hidden
    recurrent, bias = layer.of_direction(2, at), layer.of_direction(3, at)
    peepholes = layer.of_direction(7, at)
    names = layer.activations[3 * at : 3 * at + 3]
    if recurrent is None:
        raise call.node.invalid("weights are missing")
    both = None
    if bias is not None:
        halves = layer.rows(bias, 0, 4 * hidden), layer.rows(bias, 1, 4 * hidden)
        if halves[0] is not None and halves[1] is not None:
            both = _sum(call, halves[0], halves[1])

    def cell(inner: Call, now: int, states: list[int]) -> list[int]:
        h, c = states
        whole = arithmetic(inner, "ADD", now, _connected(inner, h, recurrent))
        i, o, f, g = (_part(inner, whole, gate, hidden) for gate in range(4))

        def peeped(gate: int, x: int, state: int) -> int:
            rows = layer.rows(peepholes, gate)
            if rows is None:
                return x
            seen = arithmetic(inner, "MUL", state, inner.emitter.get(rows))
            return arithmetic(inner, "ADD", x, seen)

        i = _activated(inner, names[0], peeped(0, i, c), layer.clip)
        if coupled:
            f = arithmetic(inner, "SUB", inner.scalar(1, layer.dtype), i)
        else:
            f = _activated(inner, names[0], peeped(2, f, c), layer.clip)
        g = _activated(inner, names[1], g, layer.clip)
        kept = arithmetic(inner, "MUL", f, c)
        c = arithmetic(inner, "ADD", kept, arithmetic(inner, "MUL", i, g))
        o = _activated(inner, names[0], peeped(1, o, c), layer.clip)
        h = arithmetic(inner, "MUL", o, _activated(inner, names[2], c, None))
        return [h, c]

    states = [layer.state(5, at), layer.state(6, at)]
    return over_time(call, _projected(layer, at, both), states, hidden, cell)


@operator("GRU")
def gru(call: Call) -> list[Value]:
    layer = _Layer(call, "GRU")
    outputs, states = [], []
    for at in range(layer.count):
        made = _gru(layer, at, bool(call.node.integer("linear_before_reset", 0)))
        outputs.append(layer.turned(made[0]) if layer.reversed(at) else made[0])
        states.append(made[1:])
    return layer.results(outputs, states)


def _gru(layer: _Layer, at: int, late: bool) -> list[int]:
    """Gates update, reset, hidden. *late*: the reset gate applies behind the recurrent product, its
    bias included.
    """
    call, hidden = layer.call, layer.hidden
    recurrent = layer.of_direction(2, at)
    bias = layer.of_direction(3, at) or constant(np.zeros(6 * hidden, layer.dtype.numpy))
    names = layer.activations[2 * at : 2 * at + 2]
    own, other = layer.rows(bias, 0, 3 * hidden), layer.rows(bias, 1, 3 * hidden)
    if recurrent is None or own is None or other is None:
        raise call.node.invalid("weights are missing")
    gates = layer.rows(recurrent, 0, 2 * hidden)
    last = layer.rows(recurrent, 2)
    gate_bias, last_bias = layer.rows(other, 0, 2 * hidden), layer.rows(other, 2)
    if gates is None or last is None:
        raise call.node.invalid("weights are missing")

    def cell(inner: Call, now: int, states: list[int]) -> list[int]:
        (h,) = states
        x = [_part(inner, now, g, hidden) for g in range(3)]
        both = _connected(inner, h, gates, gate_bias)
        z = arithmetic(inner, "ADD", x[0], _part(inner, both, 0, hidden))
        r = arithmetic(inner, "ADD", x[1], _part(inner, both, 1, hidden))
        z, r = (_activated(inner, names[0], g, layer.clip) for g in (z, r))
        if late:
            through = arithmetic(inner, "MUL", r, _connected(inner, h, last, last_bias))
        else:
            through = _connected(inner, arithmetic(inner, "MUL", r, h), last, last_bias)
        new = _activated(inner, names[1], arithmetic(inner, "ADD", x[2], through), layer.clip)
        rest = arithmetic(inner, "SUB", inner.scalar(1, layer.dtype), z)
        fresh = arithmetic(inner, "MUL", rest, new)
        return [arithmetic(inner, "ADD", fresh, arithmetic(inner, "MUL", z, h))]

    return over_time(call, _projected(layer, at, own), [layer.state(5, at)], hidden, cell)


@operator("RNN")
def rnn(call: Call) -> list[Value]:
    layer = _Layer(call, "RNN")
    outputs, states = [], []
    for at in range(layer.count):
        made = _rnn(layer, at)
        outputs.append(layer.turned(made[0]) if layer.reversed(at) else made[0])
        states.append(made[1:])
    return layer.results(outputs, states)


def _rnn(layer: _Layer, at: int) -> list[int]:
    call, hidden = layer.call, layer.hidden
    weights, recurrent = layer.of_direction(1, at), layer.of_direction(2, at)
    bias = layer.of_direction(3, at) or constant(np.zeros(2 * hidden, layer.dtype.numpy))
    own, other = layer.rows(bias, 0), layer.rows(bias, 1)
    if weights is None or recurrent is None or own is None or other is None:
        raise call.node.invalid("weights are missing")
    both, name = _sum(call, own, other), layer.activations[at]
    fused = {"tanh": "TANH", "relu": "RELU"}
    if layer.clip is None and name in fused and layer.dtype is DType.FLOAT32:
        inputs = [
            layer.sequence(at),
            *map(call.get, (weights, recurrent, both)),
            layer.state(5, at),
        ]
        attributes: dict[str, str | bool] = {
            "time_major": True,
            "fused_activation_function": fused[name],
        }
        return call.emitter.emit(
            "UNIDIRECTIONAL_SEQUENCE_RNN", inputs, [layer.dtype] * 2, attributes
        )

    def cell(inner: Call, now: int, states: list[int]) -> list[int]:
        whole = arithmetic(inner, "ADD", now, _connected(inner, states[0], recurrent))
        return [_activated(inner, name, whole, layer.clip)]

    return over_time(call, _projected(layer, at, both), [layer.state(5, at)], hidden, cell)
