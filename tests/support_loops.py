"""Loops and branches for the tests of engines: drawn bodies, and rounds that are known or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.ir.builder import SubgraphBuilder

F32 = DType.FLOAT32
I8 = DType.INT8
I64 = DType.INT64
SHAPE = (2, 3)
KINDS = ("ADD", "SUB", "MUL", "TANH", "RELU", "MAXIMUM", "LOGISTIC")
OTHERS = ("computed", "handed", "constant", "same")
STEPS = (0.03125, 0.1, 0.25, 1.0)


def drawn_floats(
    b: SubgraphBuilder, rng: np.random.Generator, values: list[int], *, grids: bool = True
) -> int:
    """A few operations on float32 values of `SHAPE`: the last result. *grids*: also roundings to 8
    bits.
    """
    known = list(values)
    for _ in range(int(rng.integers(1, 6))):
        x, y = (int(rng.choice(known)) for _ in range(2))
        kind = str(rng.choice([*KINDS, "grid"] if grids else KINDS))
        if kind == "grid":
            known.append(on_grid(b, x, float(rng.choice(STEPS))))
            continue
        given = [x] if kind in {"TANH", "RELU", "LOGISTIC"} else [x, y]
        known += b.operation(kind, given, [(F32, SHAPE)])
    # What grows from round to round would leave float32.
    return b.operation("TANH", [known[-1]], [(F32, SHAPE)])[0]


def on_grid(b: SubgraphBuilder, x: int, step: float, shape: tuple[int, ...] = SHAPE) -> int:
    """*x* rounded to int8 in steps, and back, as ONNX's quantisation is written out."""
    width = b.constant(np.array(step, np.float32))
    low, high = (b.constant(np.array(v, np.float32)) for v in (-128, 127))
    (y,) = b.operation("DIV", [x, width], [(F32, shape)])
    (y,) = b.operation("ROUND", [y], [(F32, shape)])
    (y,) = b.operation("MAXIMUM", [y, low], [(F32, shape)])
    (y,) = b.operation("MINIMUM", [y, high], [(F32, shape)])
    there = {"in_data_type": "FLOAT32", "out_data_type": "INT8"}
    (y,) = b.operation("CAST", [y], [(I8, shape)], there)
    back = {"in_data_type": "INT8", "out_data_type": "FLOAT32"}
    (y,) = b.operation("CAST", [y], [(F32, shape)], back)
    return b.operation("MUL", [y, width], [(F32, shape)])[0]


def scanning(rounds: int, seed: int, *, grids: bool = True) -> Model:
    """A scan of *rounds* rounds with a drawn body: each reads a part of the second input, and adds
    a part to what is gathered. Outputs: the last state, and what was gathered.
    """
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    parts = (rounds, *SHAPE)
    shapes = [(I64, ()), (F32, SHAPE), (F32, parts), (F32, parts)]
    state, sequence = b.input(F32, SHAPE, "state"), b.input(F32, parts, "sequence")
    room = b.constant(np.zeros(parts, np.float32))
    condition = b.subgraph("condition")
    given = [condition.input(*shape) for shape in shapes]
    (every,) = condition.operation("SHAPE", [given[3]], [(I64, (3,))], {"out_type": "INT64"})
    first = condition.constant(np.array(0, np.int32))
    (limit,) = condition.operation("GATHER", [every, first], [(I64, ())], {"axis": 0})
    less = condition.operation("LESS", [given[0], limit], [(DType.BOOL, ())])
    body = b.subgraph("body")
    counter, held, gathered, read = (body.input(*shape) for shape in shapes)
    (now,) = body.operation("GATHER", [read, counter], [(F32, SHAPE)], {"axis": 0})
    made = drawn_floats(body, rng, [held, now], grids=grids)
    axis = body.constant(np.array(0, np.int32))
    (part,) = body.operation("EXPAND_DIMS", [made, axis], [(F32, (1, *SHAPE))])
    one = body.constant(np.array([1], np.int32))
    (at,) = body.operation("RESHAPE", [counter, one], [(I64, (1,))], {"new_shape": (1,)})
    rest = body.constant(np.zeros(2, np.int64))
    (place,) = body.operation("CONCATENATION", [at, rest], [(I64, (3,))], {"axis": 0})
    (grown,) = body.operation("DYNAMIC_UPDATE_SLICE", [gathered, part, place], [(F32, parts)])
    (following,) = body.operation(
        "ADD", [counter, body.constant(np.array(1, np.int64))], [(I64, ())]
    )
    references = {
        "cond_subgraph_index": b.add_subgraph(condition.finish(less)),
        "body_subgraph_index": b.add_subgraph(body.finish([following, made, grown, read])),
    }
    start = b.constant(np.array(0, np.int64))
    _, last, all_parts, _ = b.operation("WHILE", [start, state, room, sequence], shapes, references)
    return b.build([last, all_parts])


def branching(seed: int, depth: int = 1, others: Sequence[str] = OTHERS) -> Model:
    """An IF with drawn branches of two values: what they give may be computed, handed through,
    constant, or the same twice. With *depth* a branch may have an IF of its own.
    """
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    chosen = b.input(DType.BOOL, (), "chosen")
    given = [b.input(F32, SHAPE, name) for name in "xy"]
    (x,) = b.operation("MUL", [given[0], given[1]], [(F32, SHAPE)])
    made = _either(b, b, rng, chosen, [x, given[1]], depth, others)
    (last,) = b.operation("SUB", made, [(F32, SHAPE)])
    return b.build([last, made[0]])


def _either(
    b: ModelBuilder,
    around: SubgraphBuilder,
    rng: np.random.Generator,
    chosen: int,
    values: list[int],
    depth: int,
    others: Sequence[str],
) -> list[int]:
    targets = []
    for name in ("then", "else"):
        inner = b.subgraph(name)
        truth = inner.input(DType.BOOL, ())
        own = [inner.input(F32, SHAPE) for _ in values]
        if depth and rng.random() < 0.5:
            own += _either(b, inner, rng, truth, own[:2], depth - 1, others)
        first = drawn_floats(inner, rng, own, grids=False)
        other = rng.choice(list(others))
        if other == "computed":
            second = drawn_floats(inner, rng, own, grids=False)
        elif other == "handed":
            second = own[1]
        elif other == "constant":
            second = inner.constant(rng.standard_normal(SHAPE).astype(np.float32))
        else:
            second = first
        targets.append(b.add_subgraph(inner.finish([first, second])))
    references = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    return around.operation("IF", [chosen, chosen, *values], [(F32, SHAPE)] * 2, references)


def given_to(model: Model, seed: int) -> list[NDArray]:
    """Inputs of a model of float32 and truth values."""
    rng = np.random.default_rng(seed)
    found: list[NDArray] = []
    for operand in model.inputs:
        shape = [d or 0 for d in operand.shape or ()]
        if operand.dtype is DType.BOOL:
            found.append(rng.integers(0, 2, shape).astype(np.bool_))
        else:
            found.append(rng.standard_normal(shape).astype(np.float32))
    return found
