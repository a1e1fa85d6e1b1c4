"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.elementwise import HALVES, exp, formula
from penstock.loaders.onnx.operators.recipes import with_activation
from penstock.loaders.onnx.values import Layout, Value, constant, identity


@operator("Relu")
def relu(call: Call) -> Value:
    x = call.value(0)
    if x.dtype in HALVES:
        return with_activation(x, call.unary("RELU", x), "RELU")
    return call.pair("MAXIMUM", x, constant(np.zeros((), x.dtype.numpy)))


@operator("PRelu")
def prelu(call: Call) -> Value:
    """The slope broadcasts from the last dimension; before opset 7 a vector is by channel."""
    x, slope = call.tensor(0), call.tensor(1)
    rank = x.rank or 0
    if slope.rank == 1 and rank > 1 and slope.array is not None:
        dims, size = x.shape or (None, None), slope.array.shape[0]
        by_channel = call.version < 7 or (size == dims[1] and size != dims[-1])
        if size != 1 and by_channel:
            slope = constant(slope.array.reshape((-1,) + (1,) * (rank - 2)))
    layout = call.emitter.layout_of([x], rank)
    sloped = call.get(call.emitter.ranked(slope, rank), layout)
    if x.dtype in HALVES:
        return call.emit("PRELU", [call.get(x, layout), sloped]).value(layout)
    zero = constant(np.zeros((), x.dtype.numpy))
    above, below = call.pair("MAXIMUM", x, zero), call.pair("MINIMUM", x, zero)
    return call.pair("ADD", above, call.pair("MUL", below, slope))


def _exponential(x: Tensor, alpha: float, gamma: float = 1.0) -> Tensor:
    """Gamma * (x if positive, otherwise alpha * (exp(x) - 1))."""
    found = x.fn("ELU") if alpha == 1.0 else x.maximum(0) + x.minimum(0).fn("ELU") * alpha
    return found if gamma == 1.0 else found * gamma


formula("Elu")(lambda x: _exponential(x, x.call.node.number("alpha", 1.0)))


@formula("Selu")
def selu(x: Tensor) -> Tensor:
    number = x.call.node.number
    alpha, gamma = number("alpha", 1.6732632423543772), number("gamma", 1.0507009873554805)
    return _exponential(x, alpha, gamma)


@formula("Celu")  # ONNX's own function gives a vector for a scalar, and takes float32 only
def celu(x: Tensor) -> Tensor:
    alpha = x.call.node.number("alpha", 1.0)
    return x.maximum(0) + (x.minimum(0) / alpha).fn("ELU") * alpha


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|))."""
    return x.maximum(0) + (x.like(1) + exp(-abs(x))).fn("LOG")


formula("HardSwish")(lambda x: x.fn("HARD_SWISH"))
formula("Softplus")(softplus)
operator("LeakyRelu")(
    lambda call: call.unary("LEAKY_RELU", call.value(0), alpha=call.node.number("alpha", 0.01))
)


@operator("Gelu")
def gelu(call: Call) -> Value:
    approximate = call.node.text("approximate", "none") == "tanh"
    return call.unary("GELU", call.value(0), approximate=approximate)


@operator("Softmax", "LogSoftmax")
def softmax(call: Call) -> Value:
    """Before opset 13 the dimensions from `axis` on count as one."""
    x = call.tensor(0)
    kind = "SOFTMAX" if call.node.op == "Softmax" else "LOG_SOFTMAX"
    attributes = {"beta": 1.0} if kind == "SOFTMAX" else {}
    rank, dims = x.rank or 0, x.shape or ()
    if rank == 0:
        raise call.refuse(f"{kind} of a scalar")
    axis = call.own_axis(x, 1 if call.version < 13 else -1)
    if call.version < 13:
        big = [i for i in range(axis, rank) if dims[i] != 1]
        if len(big) > 1:
            if None in dims[axis:]:
                raise call.refuse("dimensions taken together of which one is unknown")
            operand, size = call.get(x), math.prod(d or 0 for d in dims[axis:])
            made = operand.reshape([-1, size]).fn(kind, **attributes)
            if dims.count(None) > 1:
                return call.emit("RESHAPE", [made, operand.sizes()]).value()
            return made.reshape([-1 if d is None else d for d in dims]).value()
        axis = big[0] if big else axis
    layout = call.emitter.layout_of([x], rank)
    if layout.index(axis) != rank - 1:
        layout = last_axis(axis, rank)
    return call.get(x, layout).fn(kind, **attributes).value(layout)


def last_axis(axis: int, rank: int) -> Layout:
    """ONNX's order of dimensions, with *axis* moved to the end."""
    return (*(i for i in identity(rank) if i != axis), axis)


@operator("Hardmax")
def hardmax(call: Call) -> Value:
    """1 at the first largest element along an axis, otherwise 0."""
    x = call.tensor(0)
    rank, dims = x.rank or 0, x.shape or ()
    axis = call.own_axis(x, 1 if call.version < 13 else -1)
    if call.version < 13 and sum(d != 1 for d in dims[axis:]) > 1:
        raise call.refuse("a Hardmax before opset 13 over several dimensions")
    size = dims[axis]
    if size is None:
        raise call.refuse("a Hardmax over an unknown dimension")
    layout = last_axis(axis, rank)
    best = call.get(x, layout).best("ARG_MAX", rank - 1)
    inputs = [best, call.place(size), call.scalar(1, x.dtype), call.scalar(0, x.dtype)]
    return call.emit("ONE_HOT", inputs, x.dtype, axis=-1).value(layout)
