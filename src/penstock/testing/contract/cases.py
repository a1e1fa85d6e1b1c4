"""Small models with known answers. Checks use those that a device supports.

Values are small integers, so every float format and every order of summation gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock import ir
from penstock.hal import Device
from penstock.ir.builder import SubgraphBuilder
from penstock.testing.contract.promise import NotCovered
from penstock.testing.contract.sharing import support_of

F32: Final = ir.DType.FLOAT32
UNIT: Final = ir.Quantization((1.0,), (0,))
UNHEARD_OF: Final = "penstock-contract-unheard-of"


class Case(Struct, frozen=True):
    """A model, one set of inputs, and the expected outputs."""

    name: str
    model: ir.Model
    inputs: tuple[ir.NDArray, ...]
    outputs: tuple[ir.NDArray, ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether an output's shape is known only after a run."""
        return any(
            s is None or None in s
            for s in (self.model.operands[i].shape for i in self.model.entry.outputs)
        )


def _numbers(*shape: int, start: int = -5) -> ir.NDArray:
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + start) % 13 - 6).astype(np.float32).reshape(shape)


def _single(
    name: str,
    kind: str,
    inputs: Sequence[ir.NDArray],
    answer: ir.NDArray,
    constants: Sequence[ir.NDArray | None] = (),
    attributes: Mapping[str, ir.AttributeValue] | None = None,
    quantization: ir.Quantization | None = None,
) -> Case:
    """One operation of *inputs*, followed by *constants* (None: omitted)."""
    b = ir.ModelBuilder()
    given: list[int | None] = [
        b.input(ir.DType(a.dtype.name), a.shape, name, quantization)
        for a, name in zip(inputs, "xy", strict=False)
    ]
    given += [None if k is None else b.constant(k, f"k{i}") for i, k in enumerate(constants)]
    output = (ir.DType(answer.dtype.name), answer.shape, quantization)
    model = b.build(b.operation(kind, given, [output], attributes))
    return Case(name, model, tuple(inputs), (answer,))


def _singles() -> Iterator[Case]:
    """Models of one operation."""
    u, v = _numbers(2, 3), _numbers(3, start=2)
    yield _single("add", "ADD", [u, v], u + v)
    # Larger than 128 bytes, so the constant is in a pool.
    u, v = _numbers(8, 16), _numbers(8, 16, start=1)
    yield _single("add_constant", "ADD", [u], u + v, [v])
    u, v = _numbers(9), _numbers(9, start=3)
    fused = {"fused_activation_function": "RELU6"}
    yield _single("add_activation", "ADD", [u, v], np.clip(u + v, 0, 6), (), fused)
    u = _numbers(5, 7)
    yield _single("relu", "RELU", [u], np.maximum(u, 0))
    u, v = np.array(3, np.float32), np.array(-5, np.float32)
    yield _single("scalar", "ADD", [u, v], np.array(-2, np.float32))
    u, v = _numbers(2, 1, 3), _numbers(4, 1, start=0)
    yield _single("multiply", "MUL", [u, v], u * v)
    layer = "FULLY_CONNECTED"
    x, w, k = _numbers(2, 6), _numbers(5, 6, start=3), _numbers(5)
    yield _single("fully_connected", layer, [x], x @ w.T + k, [w, k])
    x, w = _numbers(3, 4), _numbers(2, 4, start=3)
    yield _single("fully_connected_without_bias", layer, [x], x @ w.T, [w, None])
    # The input becomes rows of the weights' depth, which is not the input's last dimension.
    x, w, k = _numbers(2, 3, 2, 2), _numbers(5, 12, start=3), _numbers(5)
    answer = x.reshape(2, 12) @ w.T + k
    yield _single("fully_connected_of_pictures", layer, [x], answer, [w, k])
    x, w = _numbers(2, 3, 4), _numbers(5, 4, start=3)
    keep = {"keep_num_dims": True}
    yield _single("fully_connected_keeping_dimensions", layer, [x], x @ w.T, [w, None], keep)
    # A 1x1 convolution: a matrix product at every pixel.
    x, w, k = _numbers(1, 4, 5, 3), _numbers(6, 1, 1, 3, start=2), _numbers(6)
    answer = np.einsum("bhwi,oi->bhwo", x, w[:, 0, 0]) + k
    steps: dict[str, ir.AttributeValue] = {"stride_w": 1, "stride_h": 1, "padding": "VALID"}
    yield _single("conv_2d", "CONV_2D", [x], answer.astype(np.float32), [w, k], steps)
    # The probabilities are powers of two, exact in every engine. Values far below the largest have
    # probability 0.
    x = np.array([[0, 0, 0, 0], [700, 0, 700, 0], [-500, -900, -900, -900]], np.float32)
    answer = np.array([[0.25] * 4, [0.5, 0, 0.5, 0], [1, 0, 0, 0]], np.float32)
    yield _single("softmax", "SOFTMAX", [x], answer, (), {"beta": 1.0})
    # The saturated sum at scale 1. Unsigned values are 128 higher.
    u, v = np.array([100, -100, 3, 0], np.int8), np.array([100, -100, -5, 0], np.int8)
    answer = np.array([127, -128, -2, 0], np.int8)
    yield _single("add_int8", "ADD", [u, v], answer, (), None, UNIT)
    u, v, answer = ((a.astype(np.int16) + 128).astype(np.uint8) for a in (u, v, answer))
    yield _single("add_uint8", "ADD", [u, v], answer, (), None, ir.Quantization((1.0,), (128,)))
    u = np.array([[1, -2], [70000, 4]], np.int32)
    yield _single("add_int32", "ADD", [u, u], u * 2)


def chain() -> Case:
    b = ir.ModelBuilder()
    x = b.input(F32, (4, 4), "x")
    for index in range(6):
        (x,) = b.operation("RELU" if index % 2 else "ADD", [x] * (2 - index % 2), [(F32, (4, 4))])
    u = _numbers(4, 4)
    return Case("chain", b.build([x]), (u,), (np.maximum(u, 0) * 8,))


def diamond() -> Case:
    """A model with two outputs; the model itself also reads one of them."""
    b = ir.ModelBuilder()
    x = b.input(F32, (3, 4), "x")
    (r,) = b.operation("RELU", [x], [(F32, (3, 4))])
    (s,) = b.operation("ADD", [r, x], [(F32, (3, 4))])
    (t,) = b.operation("ADD", [s, r], [(F32, (3, 4))])
    v = _numbers(3, 4)
    r_, s_ = np.maximum(v, 0), np.maximum(v, 0) + v
    return Case("diamond", b.build([s, t]), (v,), (s_, s_ + r_))


def passthrough() -> Case:
    """A model whose outputs include an input and a constant."""
    b = ir.ModelBuilder()
    x, k = b.input(F32, (3,), "x"), b.constant(_numbers(3, start=4), "k")
    (y,) = b.operation("ADD", [x, k], [(F32, (3,))])
    v, c = _numbers(3), _numbers(3, start=4)
    return Case("passthrough", b.build([y, x, k]), (v,), (v + c, v, c))


def state() -> Case:
    """A counter: the state input plus the input is output and state output."""
    b = ir.ModelBuilder()
    x = b.input(F32, (2,), "x")
    before = b.operand(ir.Operand(F32, (2,), ir.Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (2,))])
    (shown,) = b.operation("RELU", [after], [(F32, (2,))])
    b.state(b.variable("count", F32, (2,)), before, after)
    u, v = np.array([-3, 3], np.float32), np.array([1, 2], np.float32)
    return Case("state", b.build([shown]), (u, v), (np.maximum(u + v, 0), u + v))


def dynamic() -> Case:
    """The number of rows is known only at run time."""
    b = ir.ModelBuilder()
    shape: ir.Shape = (None, 3)
    x = b.input(F32, shape, "x")
    (y,) = b.operation("ADD", [x, x], [(F32, shape)])
    (z,) = b.operation("RELU", [y], [(F32, shape)])
    u = _numbers(4, 3)
    return Case("dynamic", b.build([y, z]), (u,), (u + u, np.maximum(u + u, 0)))


def branch() -> Case:
    """IF: the sum of x and x, or RELU of x."""
    x = _numbers(3)
    inputs = np.array(False), x
    return Case("branch", branching(ir.ModelBuilder(), "RELU"), inputs, (np.maximum(x, 0),))


def loop() -> Case:
    """WHILE a counter is below 5: doubles x."""
    x = _numbers(2, 2)
    inputs = np.zeros(1, np.float32), x
    return Case("loop", looping(step=1.0), inputs, (np.array([5], np.float32), x * 32))


def endless() -> Case:
    """The same loop without an end; its answers are those of `loop`."""
    return replace(loop(), model=looping(step=0.0))


def counted() -> Case:
    """The same loop with a static number of iterations: the counter starts at a constant."""
    x = _numbers(2, 2)
    return Case("counted", looping(step=1.0, start=2.0), (x,), (x * 8,))


def branching(b: ir.ModelBuilder, otherwise: str) -> ir.Model:
    """IF: x + x, or one operation *otherwise* (RELU, or CUSTOM with an unknown code) of x."""
    attributes = {"custom_code": UNHEARD_OF} if otherwise == "CUSTOM" else None
    return choosing(
        b,
        (3,),
        lambda inner, i: inner.operation("ADD", [i, i], [(F32, (3,))]),
        lambda inner, i: inner.operation(otherwise, [i], [(F32, (3,))], attributes),
    )


def choosing(
    b: ir.ModelBuilder,
    shape: tuple[int, ...],
    *branches: Callable[[SubgraphBuilder, int], Sequence[int]],
) -> ir.Model:
    """IF on float32 values of *shape*; each branch adds the operations on its input."""
    chosen, x = b.input(ir.DType.BOOL, (), "chosen"), b.input(F32, shape, "x")
    targets = []
    for name, branch in zip(("then", "else"), branches, strict=True):
        inner = b.subgraph(name)
        targets.append(b.add_subgraph(inner.finish(branch(inner, inner.input(F32, shape, "i")))))
    references = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    return b.build(b.operation("IF", [chosen, x], [(F32, shape)], references))


def looping(step: float, start: float | None = None) -> ir.Model:
    """WHILE a counter, incremented by *step*, is below 5: x + x. With step 0 it never ends.

    The counter is an input and an output. With *start* it starts at that constant instead.
    """
    b = ir.ModelBuilder()
    if start is None:
        counter = b.input(F32, (1,), "counter")
    else:
        counter = b.constant(np.array([start], np.float32), "counter")
    x = b.input(F32, (2, 2), "x")
    condition = b.subgraph("condition")
    i, _ = condition.input(F32, (1,), "i"), condition.input(F32, (2, 2), "x")
    limit = condition.constant(np.array([5], np.float32))
    at_limit = condition.operation("LESS", [i, limit], [(ir.DType.BOOL, (1,))])
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


def unheard_of() -> ir.Model:
    """A model of one custom operation that no driver implements."""
    b = ir.ModelBuilder()
    x = b.input(F32, (2,), "x")
    return b.build(b.operation("CUSTOM", [x], [(F32, (2,))], {"custom_code": UNHEARD_OF}))


def empty() -> Case:
    """Tensors with no rows."""
    b = ir.ModelBuilder()
    x, k = b.input(F32, (0, 3), "x"), b.constant(_numbers(3), "k")
    (y,) = b.operation("ADD", [x, k], [(F32, (0, 3))])
    out = b.operation("RELU", [y], [(F32, (0, 3))])
    nothing = np.zeros((0, 3), np.float32)
    return Case("empty", b.build(out), (nothing,), (nothing,))


@cache
def every_case() -> tuple[Case, ...]:
    """The cases that every check chooses from."""
    singles = list(_singles())
    chained = (chain(), diamond(), passthrough())
    return (*singles[:4], *chained, *singles[4:], state(), dynamic(), branch(), loop())


def case_named(name: str) -> Case:
    """The case of `every_case` with that name."""
    return next(case for case in every_case() if case.name == name)


def supported_cases(device: Device) -> list[Case]:
    """The cases that *device* supports completely; raises `NotCovered` if there are none."""
    found = [case for case in every_case() if is_supported(device, case)]
    if not found:
        raise NotCovered("it supports none of the models of this suite")
    return found


def is_supported(device: Device, case: Case) -> bool:
    """Whether *device* supports every operation of *case*, and its outputs."""
    answers = support_of(device, case.model)
    return all(answer.supported for answer in answers) and (
        device.capabilities.dynamic_outputs or not case.is_dynamic
    )


def if_supported(device: Device, case: Case, what: str) -> Case:
    """*case*; raises `NotCovered` if *device* does not support it, which is *what*."""
    if not is_supported(device, case):
        raise NotCovered(f"it does not support {what}")
    return case


def first_case(device: Device, fits: Callable[[Case], bool], what: str) -> Case:
    """The first of `static_cases` that *fits*; raises `NotCovered` if there is none, *what*."""
    return _some([case for case in static_cases(device) if fits(case)], what)[0]


def static_cases(device: Device) -> list[Case]:
    """`supported_cases` whose outputs all have known shapes."""
    return _some(
        [c for c in supported_cases(device) if not c.is_dynamic], "with known output shapes"
    )


def dynamic_cases(device: Device) -> list[Case]:
    """`supported_cases` with an output of unknown shape."""
    return _some([c for c in supported_cases(device) if c.is_dynamic], "with unknown output shapes")


def one_case(device: Device) -> Case:
    """The first of `static_cases`. Asks *device* about no more models than that takes."""
    for case in every_case():
        if not case.is_dynamic and is_supported(device, case):
            return case
    return static_cases(device)[0]


def with_other_inputs(case: Case, seed: int) -> tuple[ir.NDArray, ...]:
    """Inputs for *case* of the same shapes, with other values.

    They are rolled by *seed*; an odd seed also negates signed ones.
    """
    rolled = (np.roll(a.reshape(-1), seed).reshape(a.shape) for a in case.inputs)
    return tuple(-a if seed % 2 and a.dtype.kind in "fi" else a for a in rolled)


def renamed(model: ir.Model, prefix: str) -> ir.Model:
    """*model* with other operand names: equal, but a different object."""
    entry = model.entry
    operands = tuple(replace(o, name=prefix + o.name) for o in entry.operands)
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(entry, operands=operands)
    return replace(model, subgraphs=tuple(subgraphs))


def _some(cases: list[Case], what: str) -> list[Case]:
    if not cases:
        raise NotCovered(f"it supports no model of this suite {what}")
    return cases
