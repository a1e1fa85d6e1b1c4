"""The instructions of the lab device in float32: which shapes fit, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from penstock.ir import NDArray

Dimensions: TypeAlias = tuple[int, ...]


class Arguments(Protocol):
    """The part of an instruction that a kernel reads."""

    @property
    def axis(self) -> int: ...
    @property
    def beta(self) -> float: ...


class Opcode(NamedTuple):
    """One kernel.

    *fits* says whether inputs of these shapes give an output of that shape; only then *run* is
    called. *arity* is the number of inputs if their shapes may be unknown before a run; 0 if they
    must be known.
    """

    fits: Callable[[Arguments, Sequence[Dimensions], Dimensions], bool]
    run: Callable[[Arguments, Sequence[NDArray], Dimensions], NDArray]
    arity: int = 0


BOUNDS: Final = {
    "NONE": None,
    "RELU": (np.float32(0), None),
    "RELU6": (np.float32(0), np.float32(6)),
    "RELU_N1_TO_1": (np.float32(-1), np.float32(1)),
}
ACTIVATIONS: Final = tuple(BOUNDS)
"""The fused activations."""


def activate(activation: str, x: NDArray) -> NDArray:
    """*x* clamped by the fused activation."""
    bounds = BOUNDS[activation]
    return x if bounds is None else np.clip(x, *bounds)


def _broadcast(_: Arguments, shapes: Sequence[Dimensions], output: Dimensions) -> bool:
    if len(shapes) != 2:
        return False
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    sizes = zip(*padded, strict=True)
    return len(output) == rank and all(
        d == (b if a == 1 else a) and (a == b or 1 in {a, b})
        for (a, b), d in zip(sizes, output, strict=True)
    )


def _same(_: Arguments, shapes: Sequence[Dimensions], output: Dimensions) -> bool:
    return list(shapes) == [output]


def _rows(arguments: Arguments, shapes: Sequence[Dimensions], output: Dimensions) -> bool:
    return _same(arguments, shapes, output) and len(output) > 0 and output[-1] > 0


def _as_many(_: Arguments, shapes: Sequence[Dimensions], output: Dimensions) -> bool:
    return len(shapes) == 1 and math.prod(shapes[0]) == math.prod(output)


def _connected(
    _: Arguments, shapes: Sequence[Dimensions], output: Dimensions, *, turned: bool
) -> bool:
    if not 2 <= len(shapes) <= 3 or len(shapes[1]) != 2:
        return False
    units, depth = reversed(shapes[1]) if turned else shapes[1]
    elements = math.prod(shapes[0])
    return (
        depth > 0
        and elements % depth == 0
        and len(output) > 0
        and output[-1] == units
        and math.prod(output) == elements // depth * units
        and all(bias == (units,) for bias in shapes[2:])
    )


def _joined(arguments: Arguments, shapes: Sequence[Dimensions], output: Dimensions) -> bool:
    axis = arguments.axis
    if not shapes or not 0 <= axis < len(output):
        return False
    others = {s[:axis] + s[axis + 1 :] for s in (*shapes, output)}
    same_rank = all(len(s) == len(output) for s in shapes)
    return same_rank and len(others) == 1 and sum(s[axis] for s in shapes) == output[axis]


def _fully_connected(
    _: Arguments, inputs: Sequence[NDArray], shape: Dimensions, *, turned: bool
) -> NDArray:
    x, weights, *bias = inputs
    weights = weights if turned else weights.T
    product = x.reshape(-1, weights.shape[0]) @ weights
    return (product + bias[0] if bias else product).reshape(shape)


def _layer(*, turned: bool) -> Opcode:
    return Opcode(partial(_connected, turned=turned), partial(_fully_connected, turned=turned))


def _logistic(_: Arguments, inputs: Sequence[NDArray], __: Dimensions) -> NDArray:
    one = np.float32(1)
    array: NDArray = one / (one + np.exp(-inputs[0]))
    return array


def _softmax(arguments: Arguments, inputs: Sequence[NDArray], _: Dimensions) -> NDArray:
    x = inputs[0]
    powers = np.exp((x - x.max(axis=-1, keepdims=True)) * np.float32(arguments.beta))
    array: NDArray = powers / powers.sum(axis=-1, keepdims=True)
    return array


OPCODES: Final[dict[str, Opcode]] = {
    "ADD": Opcode(_broadcast, lambda _, x, __: np.add(*x), 2),
    "SUB": Opcode(_broadcast, lambda _, x, __: np.subtract(*x), 2),
    "MUL": Opcode(_broadcast, lambda _, x, __: np.multiply(*x), 2),
    "RELU": Opcode(_same, lambda _, x, __: np.maximum(x[0], np.float32(0)), 1),
    "TANH": Opcode(_same, lambda _, x, __: np.tanh(x[0]), 1),
    "LOGISTIC": Opcode(_same, _logistic, 1),
    "SOFTMAX": Opcode(_rows, _softmax),
    "RESHAPE": Opcode(_as_many, lambda _, x, shape: x[0].reshape(shape)),
    "CONCATENATION": Opcode(_joined, lambda a, x, _: np.concatenate(x, a.axis)),
    "FULLY_CONNECTED": _layer(turned=False),
    "FULLY_CONNECTED_TURNED": _layer(turned=True),
}
"""The kernels by name, in the order of their numbers in a program.

FULLY_CONNECTED has weights [units, depth], its transposed variant [depth, units].
"""
