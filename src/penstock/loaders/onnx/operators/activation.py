"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Lower, operator
from penstock.loaders.onnx.operators.common import (
    axis_in,
    pair,
    unary,
)
from penstock.loaders.onnx.operators.elementwise import Formula, formula
from penstock.loaders.onnx.operators.recipes import with_activation
from penstock.loaders.onnx.values import Layout, Value, constant, identity


@operator("Relu")
def relu(call: Call) -> Value:
    x = call.value(0)
    if x.dtype in {DType.FLOAT32, DType.FLOAT16}:
        return with_activation(x, unary(call, "RELU", x), "RELU")
    return pair(call, "MAXIMUM", x, constant(np.zeros((), x.dtype.numpy)))


@operator("Sigmoid")
def sigmoid(call: Call) -> Value:
    x = call.value(0)
    return unary(call, "STABLEHLO_LOGISTIC" if x.dtype is DType.FLOAT64 else "LOGISTIC", x)


@operator("Tanh")
def tanh(call: Call) -> Value:
    x = call.value(0)
    return unary(call, "STABLEHLO_TANH" if x.dtype is DType.FLOAT64 else "TANH", x)


@operator("LeakyRelu")
def leaky_relu(call: Call) -> Value:
    return unary(call, "LEAKY_RELU", call.value(0), {"alpha": call.node.number("alpha", 0.01)})


@operator("PRelu")
def prelu(call: Call) -> Value:
    """The slope broadcasts from the last dimension; before opset 7 a vector is one a channel."""
    x, slope = call.tensor(0), call.tensor(1)
    rank = x.rank or 0
    if slope.rank == 1 and rank > 1:
        size, channels = (slope.shape or (None,))[0], (x.shape or (None, None))[1]
        last = (x.shape or (None,))[-1]
        if (
            slope.array is not None
            and size != 1
            and (call.version < 7 or (size == channels and size != last))
        ):
            slope = constant(slope.array.reshape((-1,) + (1,) * (rank - 2)))
    layout = call.emitter.layout_of([x], rank)
    sloped = call.get(call.emitter.ranked(slope, rank), layout)
    if x.dtype in {DType.FLOAT32, DType.FLOAT16}:
        return call.wrap(call.emit("PRELU", [call.get(x, layout), sloped], x.dtype), layout)
    zero = constant(np.zeros((), x.dtype.numpy))
    above, below = pair(call, "MAXIMUM", x, zero), pair(call, "MINIMUM", x, zero)
    return pair(call, "ADD", above, pair(call, "MUL", below, slope))


def _exponential(f: Formula, x: int, alpha: float, gamma: float = 1.0) -> int:
    """Gamma * (x where positive, else alpha * (exp(x) - 1))."""
    if alpha == 1.0:
        found = f.fn("ELU", x)
    else:
        low = f.fn("ELU", f.min(x, f.of(0)))
        found = f.add(f.max(x, f.of(0)), f.mul(low, f.of(alpha)))
    return found if gamma == 1.0 else f.mul(found, f.of(gamma))


def _with(default: dict[str, float], build: str) -> Lower:
    def lower(call: Call) -> Value:
        f = Formula(call, call.value(0))
        values = {name: call.node.number(name, value) for name, value in default.items()}
        return f.done(BUILDERS[build](f, values))

    return lower


def _elu(f: Formula, a: dict[str, float]) -> int:
    return _exponential(f, f.x, a["alpha"])


def _selu(f: Formula, a: dict[str, float]) -> int:
    return _exponential(f, f.x, a["alpha"], a["gamma"])


def _celu(f: Formula, a: dict[str, float]) -> int:
    low = f.fn("ELU", f.div(f.min(f.x, f.of(0)), f.of(a["alpha"])))
    return f.add(f.max(f.x, f.of(0)), f.mul(low, f.of(a["alpha"])))


def _thresholded(f: Formula, a: dict[str, float]) -> int:
    return f.where(f.test("GREATER", f.x, f.of(a["alpha"])), f.x, f.of(0))


def _hard_sigmoid(f: Formula, a: dict[str, float]) -> int:
    line = f.add(f.mul(f.x, f.of(a["alpha"])), f.of(a["beta"]))
    return f.max(f.min(line, f.of(1)), f.of(0))


def _shrink(f: Formula, a: dict[str, float]) -> int:
    """X moved by bias toward 0 outside -lambd..lambd, 0 inside."""
    below = f.test("LESS", f.x, f.of(-a["lambd"]))
    above = f.test("GREATER", f.x, f.of(a["lambd"]))
    inner = f.where(above, f.sub(f.x, f.of(a["bias"])), f.of(0))
    return f.where(below, f.add(f.x, f.of(a["bias"])), inner)


def _swish(f: Formula, a: dict[str, float]) -> int:
    return f.mul(f.x, f.fn("LOGISTIC", f.mul(f.x, f.of(a["alpha"]))))


BUILDERS = {
    "elu": _elu, "selu": _selu, "celu": _celu, "thresholded": _thresholded,
    "hard_sigmoid": _hard_sigmoid, "shrink": _shrink, "swish": _swish,
}  # fmt: skip
operator("Elu")(_with({"alpha": 1.0}, "elu"))
operator("Selu")(_with({"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}, "selu"))
operator("Celu")(_with({"alpha": 1.0}, "celu"))
operator("ThresholdedRelu")(_with({"alpha": 1.0}, "thresholded"))
operator("HardSigmoid")(_with({"alpha": 0.2, "beta": 0.5}, "hard_sigmoid"))
operator("Shrink")(_with({"lambd": 0.5, "bias": 0.0}, "shrink"))
operator("Swish")(_with({"alpha": 1.0}, "swish"))


@formula("HardSwish")
def hard_swish(f: Formula, x: int) -> int:
    return f.fn("HARD_SWISH", x)


def softplus(f: Formula, x: int) -> int:
    """log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|))."""
    small = f.fn("EXP", f.fn("NEG", f.fn("ABS", x)))
    return f.add(f.max(x, f.of(0)), f.fn("LOG", f.add(f.of(1), small)))


formula("Softplus")(softplus)


@formula("Mish")
def mish(f: Formula, x: int) -> int:
    return f.mul(x, f.fn("TANH", softplus(f, x)))


@formula("Softsign")
def softsign(f: Formula, x: int) -> int:
    return f.div(x, f.add(f.of(1), f.fn("ABS", x)))


@operator("Gelu")
def gelu(call: Call) -> Value:
    approximate = call.node.text("approximate", "none") == "tanh"
    return unary(call, "GELU", call.value(0), {"approximate": approximate})


@operator("Softmax")
def softmax(call: Call) -> Value:
    return _over_axis(call, "SOFTMAX", {"beta": 1.0})


@operator("LogSoftmax")
def log_softmax(call: Call) -> Value:
    return _over_axis(call, "LOG_SOFTMAX", {})


def _over_axis(call: Call, kind: str, attributes: dict[str, float]) -> Value:
    """Before opset 13 the dimensions from `axis` on are taken together."""
    x = call.tensor(0)
    rank = x.rank or 0
    if rank == 0:
        raise call.refuse(f"{kind} of a scalar")
    axis = call.axis(call.node.integer("axis", 1 if call.version < 13 else -1), rank)
    dims = x.shape or ()
    if call.version < 13:
        big = [i for i in range(axis, rank) if dims[i] != 1]
        if len(big) > 1:
            return _flattened(call, x, axis, kind, attributes)
        axis = big[0] if big else axis
    layout = call.emitter.layout_of([x], rank)
    if axis_in(layout, axis) != rank - 1:
        layout = _behind(axis, rank)
    return call.wrap(call.emit(kind, [call.get(x, layout)], x.dtype, attributes), layout)


def _behind(axis: int, rank: int) -> Layout:
    """ONNX's order but for *axis*, which comes last."""
    return (*(i for i in identity(rank) if i != axis), axis)


def _flattened(call: Call, x: Value, axis: int, kind: str, attributes: dict[str, float]) -> Value:
    dims = x.shape or ()
    operand = call.get(x)
    if None in dims[axis:]:
        raise call.refuse("dimensions taken together of which one is unknown")
    inner = math.prod(d or 0 for d in dims[axis:])
    flat = call.emit(
        "RESHAPE",
        [operand, call.emitter.integers([-1, inner])],
        x.dtype,
        {"new_shape": (-1, inner)},
    )
    made = call.emit(kind, [flat], x.dtype, attributes)
    if sum(d is None for d in dims) > 1:
        size = call.emit("SHAPE", [operand], DType.INT64, {"out_type": "INT64"})
        return call.wrap(call.emit("RESHAPE", [made, size], x.dtype))
    target = tuple(-1 if d is None else d for d in dims)
    back = call.emit(
        "RESHAPE", [made, call.emitter.integers(target)], x.dtype, {"new_shape": target}
    )
    return call.wrap(back)


@operator("Hardmax")
def hardmax(call: Call) -> Value:
    """1 at the first largest element along an axis, else 0."""
    x = call.tensor(0)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", 1 if call.version < 13 else -1), rank)
    dims = x.shape or ()
    if call.version < 13 and sum(d != 1 for d in dims[axis:]) > 1:
        raise call.refuse("a Hardmax before opset 13 over several dimensions")
    size = dims[axis]
    if size is None:
        raise call.refuse("a Hardmax over an unknown dimension")
    layout = _behind(axis, rank)
    operand = call.get(x, layout)
    at = call.emitter.constant(np.array(rank - 1, np.int32))
    best = call.emit("ARG_MAX", [operand, at], DType.INT64, {"output_type": "INT64"})
    depth = call.emitter.constant(np.array(size, np.int32))
    made = call.emit(
        "ONE_HOT",
        [best, depth, call.scalar(1, x.dtype), call.scalar(0, x.dtype)],
        x.dtype,
        {"axis": -1},
    )
    return call.wrap(made, layout)
