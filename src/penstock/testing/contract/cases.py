"""Small models with known answers, for the checks to choose from what a device supports.

Values are small integers, so that every float format and every order of summation gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import UnknownOperator
from penstock.hal import Device
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand, Quantization, Shape
from penstock.testing.contract.promise import NotCovered

F32: Final = DType.FLOAT32
UNIT: Final = Quantization((1.0,), (0,))
UNHEARD_OF: Final = "penstock-contract-unheard-of"


class Case(Struct, frozen=True):
    """A model, one set of inputs, and the outputs it must give."""

    name: str
    model: Model
    inputs: tuple[NDArray, ...]
    outputs: tuple[NDArray, ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether an output's shape is known only after a run."""
        return any(
            s is None or None in s
            for s in (self.model.operands[i].shape for i in self.model.entry.outputs)
        )


Maker: TypeAlias = Callable[[], Case]


def _numbers(*shape: int, start: int = -5) -> NDArray:
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + start) % 13 - 6).astype(np.float32).reshape(shape)


def _case(
    builder: ModelBuilder,
    outputs: Sequence[int],
    inputs: Sequence[NDArray],
    answers: Sequence[NDArray],
    name: str,
) -> Case:
    return Case(name, builder.build(outputs), tuple(inputs), tuple(answers))


def add() -> Case:
    b = ModelBuilder()
    x, y = b.input(F32, (2, 3), "x"), b.input(F32, (3,), "y")
    out = b.operation("ADD", [x, y], [(F32, (2, 3))])
    u, v = _numbers(2, 3), _numbers(3, start=2)
    return _case(b, out, [u, v], [u + v], "add")


def add_constant() -> Case:
    """The constant is larger than 128 bytes and lies in a pool."""
    b = ModelBuilder()
    x, k = b.input(F32, (8, 16), "x"), _numbers(8, 16, start=1)
    out = b.operation("ADD", [x, b.constant(k, "k")], [(F32, (8, 16))])
    return _case(b, out, [_numbers(8, 16)], [_numbers(8, 16) + k], "add_constant")


def add_activation() -> Case:
    b = ModelBuilder()
    x, y = b.input(F32, (9,), "x"), b.input(F32, (9,), "y")
    out = b.operation("ADD", [x, y], [(F32, (9,))], {"fused_activation_function": "RELU6"})
    u, v = _numbers(9), _numbers(9, start=3)
    return _case(b, out, [u, v], [np.clip(u + v, 0, 6)], "add_activation")


def relu() -> Case:
    b = ModelBuilder()
    out = b.operation("RELU", [b.input(F32, (5, 7), "x")], [(F32, (5, 7))])
    return _case(b, out, [_numbers(5, 7)], [np.maximum(_numbers(5, 7), 0)], "relu")


def chain() -> Case:
    b = ModelBuilder()
    x = b.input(F32, (4, 4), "x")
    for index in range(6):
        (x,) = b.operation("RELU" if index % 2 else "ADD", [x] * (2 - index % 2), [(F32, (4, 4))])
    return _case(b, [x], [_numbers(4, 4)], [np.maximum(_numbers(4, 4), 0) * 8], "chain")


def diamond() -> Case:
    """Two outputs, one of them also read inside."""
    b = ModelBuilder()
    x = b.input(F32, (3, 4), "x")
    (r,) = b.operation("RELU", [x], [(F32, (3, 4))])
    (s,) = b.operation("ADD", [r, x], [(F32, (3, 4))])
    (t,) = b.operation("ADD", [s, r], [(F32, (3, 4))])
    v = _numbers(3, 4)
    r_, s_ = np.maximum(v, 0), np.maximum(v, 0) + v
    return _case(b, [s, t], [v], [s_, s_ + r_], "diamond")


def passthrough() -> Case:
    """An input and a constant are outputs, too."""
    b = ModelBuilder()
    x, k = b.input(F32, (3,), "x"), b.constant(_numbers(3, start=4), "k")
    (y,) = b.operation("ADD", [x, k], [(F32, (3,))])
    v, c = _numbers(3), _numbers(3, start=4)
    return _case(b, [y, x, k], [v], [v + c, v, c], "passthrough")


def scalar() -> Case:
    """Operands of rank 0."""
    b = ModelBuilder()
    x, y = b.input(F32, (), "x"), b.input(F32, (), "y")
    out = b.operation("ADD", [x, y], [(F32, ())])
    u, v = np.array(3, np.float32), np.array(-5, np.float32)
    return _case(b, out, [u, v], [np.array(-2, np.float32)], "scalar")


def multiply() -> Case:
    b = ModelBuilder()
    x, y = b.input(F32, (2, 1, 3), "x"), b.input(F32, (4, 1), "y")
    out = b.operation("MUL", [x, y], [(F32, (2, 4, 3))])
    u, v = _numbers(2, 1, 3), _numbers(4, 1, start=0)
    return _case(b, out, [u, v], [u * v], "multiply")


def fully_connected() -> Case:
    b = ModelBuilder()
    x, w, k = _numbers(2, 6), _numbers(5, 6, start=3), _numbers(5)
    given = [b.input(F32, (2, 6), "x"), b.constant(w, "weights"), b.constant(k, "bias")]
    out = b.operation("FULLY_CONNECTED", given, [(F32, (2, 5))])
    return _case(b, out, [x], [x @ w.T + k], "fully_connected")


def fully_connected_without_bias() -> Case:
    b = ModelBuilder()
    x, w = _numbers(3, 4), _numbers(2, 4, start=3)
    given = [b.input(F32, (3, 4), "x"), b.constant(w, "weights"), None]
    out = b.operation("FULLY_CONNECTED", given, [(F32, (3, 2))])
    return _case(b, out, [x], [x @ w.T], "fully_connected_without_bias")


def fully_connected_of_pictures() -> Case:
    """The input has more than two dimensions: it is taken as rows of the weights' depth, which are
    not its last dimension.
    """
    b = ModelBuilder()
    x, w, k = _numbers(2, 3, 2, 2), _numbers(5, 12, start=3), _numbers(5)
    given = [b.input(F32, x.shape, "x"), b.constant(w, "weights"), b.constant(k, "bias")]
    out = b.operation("FULLY_CONNECTED", given, [(F32, (2, 5))])
    return _case(b, out, [x], [x.reshape(2, 12) @ w.T + k], "fully_connected_of_pictures")


def fully_connected_keeping_dimensions() -> Case:
    b = ModelBuilder()
    x, w = _numbers(2, 3, 4), _numbers(5, 4, start=3)
    given = [b.input(F32, x.shape, "x"), b.constant(w, "weights"), None]
    out = b.operation("FULLY_CONNECTED", given, [(F32, (2, 3, 5))], {"keep_num_dims": True})
    return _case(b, out, [x], [x @ w.T], "fully_connected_keeping_dimensions")


def conv_2d() -> Case:
    """A 1x1 convolution: a matrix product at every pixel."""
    b = ModelBuilder()
    x, w, k = _numbers(1, 4, 5, 3), _numbers(6, 1, 1, 3, start=2), _numbers(6)
    given = [b.input(F32, x.shape, "x"), b.constant(w, "filter"), b.constant(k, "bias")]
    out = b.operation(
        "CONV_2D", given, [(F32, (1, 4, 5, 6))], {"stride_w": 1, "stride_h": 1, "padding": "VALID"}
    )
    answer = np.einsum("bhwi,oi->bhwo", x, w[:, 0, 0]) + k
    return _case(b, out, [x], [answer.astype(np.float32)], "conv_2d")


def softmax() -> Case:
    """Shares that are powers of two, so that every engine has them to the bit; what is far below
    the largest has none.
    """
    b = ModelBuilder()
    x = np.array([[0, 0, 0, 0], [700, 0, 700, 0], [-500, -900, -900, -900]], np.float32)
    given = b.input(F32, x.shape, "x")
    out = b.operation("SOFTMAX", [given], [(F32, x.shape)], {"beta": 1.0})
    answer = np.array([[0.25] * 4, [0.5, 0, 0.5, 0], [1, 0, 0, 0]], np.float32)
    return _case(b, out, [x], [answer], "softmax")


def add_int8() -> Case:
    """All scales are 1 and zero points 0: the sum, saturated."""
    b = ModelBuilder()
    kind = DType.INT8
    x, y = b.input(kind, (4,), "x", UNIT), b.input(kind, (4,), "y", UNIT)
    out = b.operation("ADD", [x, y], [(kind, (4,), UNIT)])
    u, v = np.array([100, -100, 3, 0], np.int8), np.array([100, -100, -5, 0], np.int8)
    return _case(b, out, [u, v], [np.array([127, -128, -2, 0], np.int8)], "add_int8")


def add_uint8() -> Case:
    """As `add_int8`, everything 128 higher."""
    b = ModelBuilder()
    kind, unit = DType.UINT8, Quantization((1.0,), (128,))
    x, y = b.input(kind, (4,), "x", unit), b.input(kind, (4,), "y", unit)
    out = b.operation("ADD", [x, y], [(kind, (4,), unit)])
    u, v = np.array([228, 28, 131, 128], np.uint8), np.array([228, 28, 123, 128], np.uint8)
    return _case(b, out, [u, v], [np.array([255, 0, 126, 128], np.uint8)], "add_uint8")


def add_int32() -> Case:
    b = ModelBuilder()
    x, y = b.input(DType.INT32, (2, 2), "x"), b.input(DType.INT32, (2, 2), "y")
    out = b.operation("ADD", [x, y], [(DType.INT32, (2, 2))])
    u = np.array([[1, -2], [70000, 4]], np.int32)
    return _case(b, out, [u, u], [u * 2], "add_int32")


def state() -> Case:
    """A counter: the state input plus the input is output and state output."""
    b = ModelBuilder()
    x = b.input(F32, (2,), "x")
    before = b.operand(Operand(F32, (2,), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (2,))])
    (shown,) = b.operation("RELU", [after], [(F32, (2,))])
    b.state(b.variable("count", F32, (2,)), before, after)
    u, v = np.array([-3, 3], np.float32), np.array([1, 2], np.float32)
    return _case(b, [shown], [u, v], [np.maximum(u + v, 0), u + v], "state")


def dynamic() -> Case:
    """The number of rows is known only when it runs."""
    b = ModelBuilder()
    shape: Shape = (None, 3)
    x = b.input(F32, shape, "x")
    (y,) = b.operation("ADD", [x, x], [(F32, shape)])
    (z,) = b.operation("RELU", [y], [(F32, shape)])
    u = _numbers(4, 3)
    return _case(b, [y, z], [u], [u + u, np.maximum(u + u, 0)], "dynamic")


def branch() -> Case:
    """IF: the sum of x and x, or RELU of x."""
    b = ModelBuilder()
    model = branching(b, "RELU")
    x = _numbers(3)
    return Case("branch", model, (np.array(False), x), (np.maximum(x, 0),))


def loop() -> Case:
    """WHILE a counter is below 5: x is doubled."""
    model = looping(step=1.0)
    x = _numbers(2, 2)
    counted = np.array([5], np.float32)
    return Case("loop", model, (np.zeros(1, np.float32), x), (counted, x * 32))


def counted() -> Case:
    """The same of rounds that are known before it runs: the counter begins at a constant."""
    x = _numbers(2, 2)
    return Case("counted", looping(step=1.0, start=2.0), (x,), (x * 8,))


def branching(b: ModelBuilder, otherwise: str) -> Model:
    """IF whose else-branch is one operation *otherwise* (RELU, or CUSTOM of no known code)."""
    chosen, x = b.input(DType.BOOL, (), "chosen"), b.input(F32, (3,), "x")
    targets = []
    for kind, count in (("ADD", 2), (otherwise, 1)):
        inner = b.subgraph(kind.lower())
        i = inner.input(F32, (3,), "i")
        attributes = {"custom_code": UNHEARD_OF} if kind == "CUSTOM" else None
        targets.append(
            b.add_subgraph(
                inner.finish(inner.operation(kind, [i] * count, [(F32, (3,))], attributes))
            )
        )
    references = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    return b.build(b.operation("IF", [chosen, x], [(F32, (3,))], references))


def looping(step: float, start: float | None = None) -> Model:
    """WHILE a counter, raised by *step* each time, is below 5: x + x. With step 0 it never ends.
    The counter is an input and an output, but where it begins at the constant *start*.
    """
    b = ModelBuilder()
    if start is None:
        counter = b.input(F32, (1,), "counter")
    else:
        counter = b.constant(np.array([start], np.float32), "counter")
    x = b.input(F32, (2, 2), "x")
    condition = b.subgraph("condition")
    i, _ = condition.input(F32, (1,), "i"), condition.input(F32, (2, 2), "x")
    limit = condition.constant(np.array([5], np.float32))
    at_limit = condition.operation("LESS", [i, limit], [(DType.BOOL, (1,))])
    body = b.subgraph("body")
    i, y = body.input(F32, (1,), "i"), body.input(F32, (2, 2), "x")
    raised = body.operation("ADD", [i, body.constant(np.array([step], np.float32))], [(F32, (1,))])
    doubled = body.operation("ADD", [y, y], [(F32, (2, 2))])
    references = {
        "cond_subgraph_index": b.add_subgraph(condition.finish(at_limit)),
        "body_subgraph_index": b.add_subgraph(body.finish([*raised, *doubled])),
    }
    shapes = [(F32, (1,)), (F32, (2, 2))]
    made = b.operation("WHILE", [counter, x], shapes, references)
    return b.build(made if start is None else made[1:])


def unheard_of() -> Model:
    """A model of one custom operation that nobody implements."""
    b = ModelBuilder()
    x = b.input(F32, (2,), "x")
    return b.build(b.operation("CUSTOM", [x], [(F32, (2,))], {"custom_code": UNHEARD_OF}))


def empty() -> Case:
    """No rows at all."""
    b = ModelBuilder()
    x, k = b.input(F32, (0, 3), "x"), b.constant(_numbers(3), "k")
    (y,) = b.operation("ADD", [x, k], [(F32, (0, 3))])
    out = b.operation("RELU", [y], [(F32, (0, 3))])
    nothing = np.zeros((0, 3), np.float32)
    return _case(b, out, [nothing], [nothing], "empty")


MAKERS: Final[tuple[Maker, ...]] = (
    add,
    add_constant,
    add_activation,
    relu,
    chain,
    diamond,
    passthrough,
    scalar,
    multiply,
    fully_connected,
    fully_connected_without_bias,
    fully_connected_of_pictures,
    fully_connected_keeping_dimensions,
    conv_2d,
    softmax,
    add_int8,
    add_uint8,
    add_int32,
    state,
    dynamic,
    branch,
    loop,
)
"""Makers of the cases that every check chooses from."""


@cache
def every_case() -> tuple[Case, ...]:
    """The cases whose operations are in the vocabulary."""
    found = []
    for make in MAKERS:
        try:
            found.append(make())
        except UnknownOperator:
            continue
    return tuple(found)


def supported_cases(device: Device) -> list[Case]:
    """The cases that *device* says it can run whole; raises `NotCovered` when there is none."""
    found = [case for case in every_case() if is_supported(device, case)]
    if not found:
        raise NotCovered("it supports none of the models of this suite")
    return found


def is_supported(device: Device, case: Case) -> bool:
    """Whether *device* answers yes for every operation of *case*, and takes its outputs."""
    answers = device.supported_operations(case.model)
    return all(answer.supported for answer in answers) and (
        device.capabilities.dynamic_outputs or not case.is_dynamic
    )


def static_cases(device: Device) -> list[Case]:
    """`supported_cases` whose every output has a known shape."""
    return _some(
        [c for c in supported_cases(device) if not c.is_dynamic], "with known output shapes"
    )


def dynamic_cases(device: Device) -> list[Case]:
    """`supported_cases` with an output of unknown shape."""
    return _some([c for c in supported_cases(device) if c.is_dynamic], "with unknown output shapes")


def one_case(device: Device) -> Case:
    """The first of `static_cases`."""
    return static_cases(device)[0]


def with_other_inputs(case: Case, seed: int) -> tuple[NDArray, ...]:
    """Inputs for *case*, other than its own, of the same shapes: rolled by *seed*, and signed ones
    negated by odd ones.
    """
    rolled = (np.roll(a.reshape(-1), seed).reshape(a.shape) for a in case.inputs)
    return tuple(-a if seed % 2 and a.dtype.kind in "fi" else a for a in rolled)


def renamed(model: Model, prefix: str) -> Model:
    """*model* with other operand names: equal to it, and not the same object."""
    entry = model.entry
    operands = tuple(replace(o, name=prefix + o.name) for o in entry.operands)
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(entry, operands=operands)
    return replace(model, subgraphs=tuple(subgraphs))


def _some(cases: list[Case], what: str) -> list[Case]:
    if not cases:
        raise NotCovered(f"it supports no model of this suite {what}")
    return cases
