"""Matrix products."""

from __future__ import annotations

import numpy as np

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.operators.common import (
    expand,
    pair,
    reshape,
    squeeze,
    transposed,
)
from penstock.loaders.onnx.operators.recipes import Layer, layer_recipe
from penstock.loaders.onnx.values import Value, constant, identity

LAYERS = frozenset({DType.FLOAT32, DType.FLOAT16})


def product(call: Call, a: Value, b: Value) -> int:
    """NumPy's matmul. Constant weights of a matrix make a FULLY_CONNECTED of it."""
    rank_a, rank_b = a.rank or 0, b.rank or 0
    if not rank_a or not rank_b:
        raise call.mismatch("a product of scalars")
    if a.dtype is not b.dtype:
        raise call.node.invalid(f"a product of {a.dtype.value} and {b.dtype.value}")
    depth = (a.shape or ())[-1], (b.shape or ())[-2 if rank_b > 1 else 0]
    if None not in depth and depth[0] != depth[1]:
        raise call.mismatch(f"inner dimensions {depth[0]} and {depth[1]} of a product")
    if b.array is not None and rank_b == 2 and rank_a >= 2 and a.dtype in LAYERS:
        return connected(call, call.get(a), b.array.T, None)
    left, right = call.get(a), call.get(b)
    if rank_a == 1:
        left = expand(call, left, 0)
    if rank_b == 1:
        right = expand(call, right, 1)
    if a.dtype in LAYERS | {DType.INT32, DType.INT64}:
        made = call.emit("BATCH_MATMUL", [left, right], a.dtype)
    else:
        made = _general(call, left, right)
    rank = len(call.shape(made) or ())
    gone = [rank - 2] if rank_a == 1 else []
    gone += [rank - 1] if rank_b == 1 else []
    return squeeze(call, made, gone) if gone else made


def _general(call: Call, left: int, right: int) -> int:
    """By StableHLO, for the types that TFLite's products lack."""
    a, b = call.shape(left) or (), call.shape(right) or ()
    rank = max(len(a), len(b))
    batch = np.broadcast_shapes(tuple(d or 0 for d in a[:-2]), tuple(d or 0 for d in b[:-2]))
    if None in a or None in b:
        raise call.refuse("a product of unknown shapes of this type")
    ready = []
    for operand, shape in ((left, a), (right, b)):
        target = (*batch, *shape[-2:])
        if shape == target:
            ready.append(operand)
            continue
        to = call.emitter.integers([d or 0 for d in target], np.int64)
        ready.append(call.emit("BROADCAST_TO", [operand, to], call.emitter.dtype(operand)))
    lead = tuple(range(rank - 2))
    attributes = {
        "lhs_batching_dimensions": lead,
        "rhs_batching_dimensions": lead,
        "lhs_contracting_dimensions": (rank - 1,),
        "rhs_contracting_dimensions": (rank - 2,),
    }
    return call.emit("STABLEHLO_DOT_GENERAL", ready, call.emitter.dtype(left), attributes)


def connected(call: Call, operand: int, weights: NDArray, bias: NDArray | None) -> int:
    """FULLY_CONNECTED with constant *weights* [units, depth]."""
    inputs = [operand, call.emitter.constant(weights)]
    if bias is not None:
        inputs.append(call.emitter.constant(bias))
    return call.emit(
        "FULLY_CONNECTED", inputs, call.emitter.dtype(operand), {"keep_num_dims": True}
    )


@operator("MatMul")
def matmul(call: Call) -> Value:
    return multiplied(call, call.tensor(0), call.tensor(1))


def multiplied(call: Call, a: Value, b: Value) -> Value:
    """`product` as a value, which knows how to be computed as integers."""
    made = call.wrap(product(call, a, b))
    if b.rank == 2 and (a.rank or 0) >= 2:
        made.recipe = layer_recipe(_integer_layer(a.rank or 2, transposed=False), a, b, None)
    return made


def _integer_layer(rank: int, *, transposed: bool) -> Layer:
    """A product with constant weights, of quantised values; *transposed* weights are as the
    operation has them.
    """
    return Layer(
        "FULLY_CONNECTED",
        None,
        (lambda array: array) if transposed else (lambda array: array.T),
        0 if transposed else 1,
        0,
        {"keep_num_dims": True},
        lambda _, operand: operand,
        lambda _, operand: (operand, identity(rank)),
    )


@operator("Gemm")
def gemm(call: Call) -> Value:
    """Alpha * A' B' + beta * C, either matrix transposed on demand."""
    a, b = call.tensor(0), call.tensor(1)
    c = call.tensor(2) if call.has(2) else None
    alpha, beta = call.node.number("alpha", 1.0), call.node.number("beta", 1.0)
    if a.rank != 2 or b.rank != 2:
        raise call.mismatch(f"a product of matrices {a.shape} and {b.shape}")
    left = call.get(a, (1, 0) if call.node.integer("transA", 0) else None)
    if b.array is not None and a.dtype in LAYERS:
        weights = b.array if call.node.integer("transB", 0) else b.array.T
        if alpha != 1.0:
            weights = weights * np.asarray(alpha, b.array.dtype)
        units = weights.shape[0]
        bias = None
        row = None if c is None else c.array
        if row is not None and row.size in {1, units} and (row.ndim < 2 or row.shape[0] == 1):
            bias = np.broadcast_to(row.reshape(-1), (units,))
            bias = np.ascontiguousarray(bias * np.asarray(beta, bias.dtype))
        made = call.wrap(connected(call, left, weights, bias))
        if bias is not None or c is None:
            if (
                alpha == beta == 1.0
                and not call.node.integer("transA", 0)
                and (c is None or c.rank == 1)
            ):
                layer = _integer_layer(2, transposed=bool(call.node.integer("transB", 0)))
                made.recipe = layer_recipe(layer, a, b, c)
            return made
    else:
        right = call.get(b, (1, 0) if call.node.integer("transB", 0) else None)
        if a.dtype in LAYERS | {DType.INT32, DType.INT64}:
            made = call.wrap(call.emit("BATCH_MATMUL", [left, right], a.dtype))
        else:
            made = call.wrap(_general(call, left, right))
        if alpha != 1.0:
            made = pair(call, "MUL", made, constant(np.array(alpha).astype(a.dtype.numpy)))
    if c is None:
        return made
    if beta != 1.0:
        c = pair(call, "MUL", c, constant(np.array(beta).astype(a.dtype.numpy)))
    return pair(call, "ADD", made, c)


@operator("Einsum")
def einsum(call: Call) -> Value:
    """One or two operands, each letter once in an operand, no ellipsis: transposed to a batch of
    products.
    """
    equation = call.node.text("equation").replace(" ", "")
    terms, _, result = equation.partition("->")
    inputs = terms.split(",")
    if "->" not in equation:
        letters = sorted(set(terms) - {","})
        result = "".join(x for x in letters if terms.count(x) == 1)
    if "." in equation or len(inputs) > 2 or any(len(set(t)) != len(t) for t in (*inputs, result)):
        raise call.refuse(f"the equation {equation!r}")
    if len(inputs) != len(call.inputs):
        raise call.node.invalid(f"{len(call.inputs)} operands for {equation!r}")
    if len(inputs) == 1:
        return _summed(call, call.tensor(0), inputs[0], result)
    a, b = _summed_away(call, inputs, result)
    left, right = inputs[0], inputs[1]
    left, right = "".join(x for x in left if x in a[1]), "".join(x for x in right if x in b[1])
    batch = [x for x in left if x in right and x in result]
    inner = [x for x in left if x in right and x not in result]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    size = _letter_sizes(call, a, b)
    one = transposed(call, call.get(a[0]), [left.index(x) for x in (*batch, *rows, *inner)])
    two = transposed(call, call.get(b[0]), [right.index(x) for x in (*batch, *inner, *columns)])
    one = reshape(call, one, _grouped(call, size, batch, rows, inner))
    two = reshape(call, two, _grouped(call, size, batch, inner, columns))
    if a[0].dtype in LAYERS | {DType.INT32, DType.INT64}:
        made = call.emit("BATCH_MATMUL", [one, two], a[0].dtype)
    else:
        made = _general(call, one, two)
    have = [*batch, *rows, *columns]
    made = reshape(call, made, [_size(call, size, x) for x in have])
    return call.wrap(transposed(call, made, [have.index(x) for x in result]))


Term = tuple[Value, str]


def _summed_away(call: Call, inputs: list[str], result: str) -> tuple[Term, Term]:
    """Both operands without the letters that stand nowhere else."""
    found = []
    for at in (0, 1):
        term, other = inputs[at], inputs[1 - at]
        kept = "".join(x for x in term if x in other or x in result)
        found.append((_summed(call, call.tensor(at), term, kept), kept))
    return found[0], found[1]


def _summed(call: Call, x: Value, term: str, kept: str) -> Value:
    if len(term) != (x.rank or 0):
        raise call.mismatch(f"{term!r} for an operand of shape {x.shape}")
    operand = call.get(x)
    gone = [i for i, letter in enumerate(term) if letter not in kept]
    if gone:
        operand = call.emit("SUM", [operand, call.emitter.integers(gone)], x.dtype)
    left = [letter for letter in term if letter in kept]
    return call.wrap(transposed(call, operand, [left.index(letter) for letter in kept]))


def _letter_sizes(call: Call, a: Term, b: Term) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for value, term in (a, b):
        for letter, size in zip(term, value.shape or (), strict=True):
            if found.setdefault(letter, size) is None:
                found[letter] = size
            elif size is not None and found[letter] != size:
                raise call.mismatch(f"{letter!r} is {found[letter]} and {size}")
    return found


def _size(call: Call, size: dict[str, int | None], letter: str) -> int:
    unknown = [x for x, s in size.items() if s is None]
    known = size[letter]
    if known is not None:
        return known
    if len(unknown) > 1:
        raise call.refuse("an equation over several unknown dimensions")
    return -1


def _grouped(call: Call, size: dict[str, int | None], *groups: list[str]) -> list[int]:
    """One dimension for each batch letter, and one for each of the other groups."""
    batch, *others = groups
    found = [_size(call, size, x) for x in batch]
    for group in others:
        parts = [_size(call, size, x) for x in group]
        found.append(-1 if -1 in parts else int(np.prod(parts, dtype=np.int64)))
    return found
