"""LSTM, GRU and RNN: sequence operations of the IR if they compute the same, otherwise loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.control import length, loop, placed
from penstock.loaders.onnx.operators.matmul import connected
from penstock.loaders.onnx.values import Value, constant

GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS: Final = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}
DIRECTIONS: Final = {"forward": 1, "reverse": 1, "bidirectional": 2}

Cell: TypeAlias = Callable[[Tensor, list[Tensor]], list[Tensor]]
"""A cell's step: projected input and states to new states. The first is the output."""


class _Layer:
    """A recurrent node: its checked attributes, and its inputs by direction and gate."""

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
        self.steps, self.batch, depth = self.x.dims
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
            lengths = call.array(4)
            if lengths is None or self.steps is None or (lengths != self.steps).any():
                raise call.refuse("sequences of different length in one batch (sequence_lens)")
        names = [n.decode("utf-8", "replace").lower() for n in node.strings("activations", ())]
        self.activations = tuple(names) or DEFAULTS[kind] * self.count
        if len(self.activations) != len(DEFAULTS[kind]) * self.count:
            raise node.invalid(f"the activations {self.activations}")
        if node.has("activation_alpha") or node.has("activation_beta"):
            raise call.refuse("activations with parameters of their own")
        self.clip = node.number("clip", 0.0) if node.has("clip") else None

    def plain(self, at: int) -> bool:
        """Whether direction *at* has the default activations, unclipped."""
        wanted = DEFAULTS[self.kind]
        mine = self.activations[at * len(wanted) : (at + 1) * len(wanted)]
        return self.clip is None and mine == wanted

    def of_direction(self, index: int, at: int) -> Value | None:
        """Input *index* of one direction, without its first dimension."""
        if not self.call.has(index):
            return None
        value = self.call.tensor(index)
        if value.array is not None:
            return constant(value.array[at])
        return self.call.get(value).gather(self.call.place(at), 0).value()

    def required(self, index: int, at: int) -> Value:
        value = self.of_direction(index, at)
        if value is None:
            raise self.call.node.invalid(f"input {index} is missing")
        return value

    def state(self, index: int, at: int) -> Tensor:
        """An initial state [batch, hidden] of one direction; zeros if the node has none."""
        call = self.call
        if call.has(index):
            order = (1, 0, 2) if self.batch_first else None
            return call.get(call.tensor(index), order).gather(call.place(at), 0)
        if self.batch is not None:
            call.charge(self.batch * self.hidden * 4)
            return call.literal(np.zeros((self.batch, self.hidden), self.dtype.numpy))
        rows = self.x.sizes().part([1], [1])
        both = call.concatenate([rows, call.vector([self.hidden], np.int64)], 0)
        return call.emit("FILL", [both, call.scalar(0, self.dtype)], self.dtype)

    def turned(self, x: Tensor, at: int) -> Tensor:
        """*x*, with time reversed if direction *at* runs backward."""
        if self.direction != "reverse" and at != 1:
            return x
        return self.call.emit("REVERSE_V2", [x, self.call.vector([0])])

    def gate(self, value: Value, gate: int, size: int | None = None) -> Value:
        height = size or self.hidden
        if value.array is not None:
            return constant(value.array[gate * height : (gate + 1) * height])
        rest = (value.rank or 1) - 1
        operand = self.call.get(value)
        return operand.part([gate * height] + [0] * rest, [height] + [-1] * rest).value()

    def halves(self, at: int, gates: int) -> tuple[Value, Value]:
        """The biases of the input and of the recurrent state; zeros if the node has none."""
        size = gates * self.hidden
        bias = self.of_direction(3, at) or constant(np.zeros(2 * size, self.dtype.numpy))
        return self.gate(bias, 0, size), self.gate(bias, 1, size)

    def projected(self, at: int, bias: Value | None) -> Tensor:
        """The whole sequence times the input weights, plus a bias."""
        weights = self.required(1, at)
        return connected(self.turned(self.x, at), weights, bias)

    def results(self, run: Callable[[_Layer, int], list[Tensor]]) -> list[Value]:
        """Y and the last states of all directions, in the node's layout; *run* computes one."""
        call, outputs, states = self.call, [], []
        for at in range(self.count):
            output, *last = run(self, at)
            outputs.append(self.turned(output, at))
            states.append(last)
        # Y is [time, direction, batch, hidden], or [batch, time, direction, hidden] in the file.
        y = call.concatenate([o.expand(1) for o in outputs], 1)
        values = [y.value((1, 2, 0, 3) if self.batch_first else None)]
        for each in zip(*states, strict=True):
            joined = call.concatenate([s.expand(0) for s in each], 0)
            values.append(joined.value((1, 0, 2) if self.batch_first else None))
        return values


operator("LSTM")(lambda call: _Layer(call, "LSTM").results(_lstm))
operator("GRU")(lambda call: _Layer(call, "GRU").results(_gru))
operator("RNN")(lambda call: _Layer(call, "RNN").results(_rnn))


def _lstm(layer: _Layer, at: int) -> list[Tensor]:
    """ONNX orders gates input, output, forget, cell; TFLite input, forget, cell, output."""
    call, order = layer.call, (0, 2, 3, 1)
    if not layer.plain(at) or call.node.integer("input_forget", 0):
        return _looped_lstm(layer, at)
    weights, recurrent = layer.required(1, at), layer.required(2, at)
    bias, peepholes = layer.of_direction(3, at), layer.of_direction(7, at)
    inputs: list[Tensor | None] = [layer.turned(layer.x, at)]
    inputs += [call.get(layer.gate(weights, g)) for g in order]
    inputs += [call.get(layer.gate(recurrent, g)) for g in order]
    inputs += [None if peepholes is None else call.get(layer.gate(peepholes, g)) for g in (0, 2, 1)]
    if bias is None:
        bias = constant(np.zeros(8 * layer.hidden, layer.dtype.numpy))
    inputs += [
        call.get(_sum(call, layer.gate(bias, gate), layer.gate(bias, gate + 4))) for gate in order
    ]
    inputs += [None, None, layer.state(5, at), layer.state(6, at), None, None, None, None]
    kind, fused = "UNIDIRECTIONAL_SEQUENCE_LSTM", "TANH"
    types = [layer.dtype] * 3
    return call.emit_all(kind, inputs, types, fused_activation_function=fused, time_major=True)


def _sum(call: Call, a: Value, b: Value) -> Value:
    if a.array is not None and b.array is not None:
        return constant(a.array + b.array)
    return call.pair("ADD", a, b)


def over_time(sequence: Tensor, states: list[Tensor], hidden: int, cell: Cell) -> list[Tensor]:
    """[outputs over time, last states ...] of a cell over the first dimension of *sequence*."""
    call, dtype = sequence.call, sequence.dtype
    steps, batch, *_ = sequence.dims or (None,) * 3
    if steps is None or batch is None:
        head = sequence.sizes().part([0], [2])
        shape = call.concatenate([head, call.vector([hidden], np.int64)], 0)
        buffer = call.emit("FILL", [shape, call.scalar(0, dtype)], dtype)
    else:
        call.charge(math.prod((steps, batch, hidden)) * 4)
        buffer = call.literal(np.zeros((steps, batch, hidden), dtype.numpy))
    source = sequence.value()

    def step(inner: Call, at: Value, values: list[Value]) -> tuple[list[Tensor], Tensor | None]:
        counter = inner.get(at)
        now = inner.get(source).gather(counter, 0)
        made = cell(now, [inner.get(v) for v in values[1:]])
        return [placed(inner.get(values[0]), counter, made[0]), *made], None

    return loop(call, length(sequence, 0), [buffer, *states], step, along=(source, 0))


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "sigmoid": lambda x: x.fn("LOGISTIC"),
    "tanh": lambda x: x.fn("TANH"),
    "relu": lambda x: x.fn("RELU"),
    "elu": lambda x: x.fn("ELU"),
    "softsign": lambda x: x / (abs(x) + 1),
    "hardsigmoid": lambda x: (x * 0.2 + 0.5).fn("RELU_0_TO_1"),
    "affine": lambda x: x * 1,
}


def _activated(name: str, x: Tensor, clip: float | None) -> Tensor:
    if clip is not None:
        x = x.minimum(clip).maximum(-clip)
    if name not in ACTIVATIONS:
        raise x.call.refuse(f"the activation {name!r}")
    return ACTIVATIONS[name](x)


def _part(x: Tensor, at: int, size: int) -> Tensor:
    """Columns of one gate of [batch, gates * size]."""
    return x.part([0, at * size], [-1, size])


def _looped_lstm(layer: _Layer, at: int) -> list[Tensor]:
    call, hidden, clip = layer.call, layer.hidden, layer.clip
    coupled = bool(call.node.integer("input_forget", 0))
    recurrent, peepholes = layer.required(2, at), layer.of_direction(7, at)
    names = layer.activations[3 * at : 3 * at + 3]
    both = None if layer.of_direction(3, at) is None else _sum(call, *layer.halves(at, 4))

    def cell(now: Tensor, states: list[Tensor]) -> list[Tensor]:
        h, c = states
        whole = now + connected(h, recurrent)
        i, o, f, g = (_part(whole, gate, hidden) for gate in range(4))

        def peeped(gate: int, x: Tensor, state: Tensor) -> Tensor:
            if peepholes is None:
                return x
            return x + state * x.call.get(layer.gate(peepholes, gate))

        i = _activated(names[0], peeped(0, i, c), clip)
        f = 1 - i if coupled else _activated(names[0], peeped(2, f, c), clip)
        g = _activated(names[1], g, clip)
        c = f * c + i * g
        o = _activated(names[0], peeped(1, o, c), clip)
        return [o * _activated(names[2], c, None), c]

    states = [layer.state(5, at), layer.state(6, at)]
    return over_time(layer.projected(at, both), states, hidden, cell)


def _gru(layer: _Layer, at: int) -> list[Tensor]:
    """Gates update, reset, hidden. `linear_before_reset` resets after the recurrent product."""
    hidden, clip = layer.hidden, layer.clip
    late = bool(layer.call.node.integer("linear_before_reset", 0))
    recurrent = layer.required(2, at)
    names = layer.activations[2 * at : 2 * at + 2]
    own, other = layer.halves(at, 3)
    gates, last = layer.gate(recurrent, 0, 2 * hidden), layer.gate(recurrent, 2)
    gate_bias, last_bias = layer.gate(other, 0, 2 * hidden), layer.gate(other, 2)

    def cell(now: Tensor, states: list[Tensor]) -> list[Tensor]:
        (h,) = states
        x = [_part(now, g, hidden) for g in range(3)]
        both = connected(h, gates, gate_bias)
        z = x[0] + _part(both, 0, hidden)
        r = x[1] + _part(both, 1, hidden)
        z, r = (_activated(names[0], g, clip) for g in (z, r))
        given = h if late else r * h
        through = connected(given, last, last_bias)
        if late:
            through = r * through
        new = _activated(names[1], x[2] + through, clip)
        return [(1 - z) * new + z * h]

    return over_time(layer.projected(at, own), [layer.state(5, at)], hidden, cell)


def _rnn(layer: _Layer, at: int) -> list[Tensor]:
    call, name = layer.call, layer.activations[at]
    weights, recurrent = layer.required(1, at), layer.required(2, at)
    both = _sum(call, *layer.halves(at, 1))
    fused = {"tanh": "TANH", "relu": "RELU"}.get(name)
    if layer.clip is None and fused is not None and layer.dtype is DType.FLOAT32:
        inputs = [layer.turned(layer.x, at), *map(call.get, (weights, recurrent, both))]
        inputs.append(layer.state(5, at))
        kind, types = "UNIDIRECTIONAL_SEQUENCE_RNN", [layer.dtype] * 2
        return call.emit_all(kind, inputs, types, fused_activation_function=fused, time_major=True)

    def cell(now: Tensor, states: list[Tensor]) -> list[Tensor]:
        return [_activated(name, now + connected(states[0], recurrent), layer.clip)]

    return over_time(layer.projected(at, both), [layer.state(5, at)], layer.hidden, cell)
