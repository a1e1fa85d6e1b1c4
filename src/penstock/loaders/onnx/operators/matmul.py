"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.recipes import Layer, layer_recipe
from penstock.loaders.onnx.values import Value, constant, identity

LAYERS: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
BATCHED: Final = LAYERS | {DType.INT32, DType.INT64}
"""Types of TFLite's batched products. StableHLO operations multiply other types."""


def product(call: Call, a: Value, b: Value) -> Tensor:
    """NumPy's matmul. If the weights are a constant matrix, it becomes a FULLY_CONNECTED."""
    rank_a, rank_b = a.rank or 0, b.rank or 0
    if not rank_a or not rank_b:
        raise call.mismatch("a product of scalars")
    if a.dtype is not b.dtype:
        raise call.node.invalid(f"a product of {a.dtype.value} and {b.dtype.value}")
    depth = (a.shape or ())[-1], (b.shape or ())[-2 if rank_b > 1 else 0]
    if None not in depth and depth[0] != depth[1]:
        raise call.mismatch(f"inner dimensions {depth[0]} and {depth[1]} of a product")
    if b.array is not None and rank_b == 2 and rank_a >= 2 and a.dtype in LAYERS:
        return connected(call.get(a), constant(b.array.T))
    left, right = call.get(a), call.get(b)
    if rank_a == 1:
        left = left.expand(0)
    if rank_b == 1:
        right = right.expand(1)
    made = _multiplied(left, right)
    rank = len(made.dims)
    dropped = [rank - 2] * (rank_a == 1) + [rank - 1] * (rank_b == 1)
    return made.squeeze(*dropped) if dropped else made


def _multiplied(left: Tensor, right: Tensor) -> Tensor:
    call = left.call
    if left.dtype in BATCHED:
        return call.emit("BATCH_MATMUL", [left, right])
    a, b = left.dims, right.dims
    rank = max(len(a), len(b))
    batch = np.broadcast_shapes(tuple(d or 0 for d in a[:-2]), tuple(d or 0 for d in b[:-2]))
    if None in a or None in b:
        raise call.refuse("a product of unknown shapes of this type")
    ready = []
    for operand in (left, right):
        target = (*batch, *(d or 0 for d in operand.dims[-2:]))
        same = operand.dims == target
        ready.append(operand if same else operand.repeated(call.vector(target, np.int64)))
    lead = tuple(range(rank - 2))
    return call.emit(
        "STABLEHLO_DOT_GENERAL",
        ready,
        lhs_batching_dimensions=lead,
        rhs_batching_dimensions=lead,
        lhs_contracting_dimensions=(rank - 1,),
        rhs_contracting_dimensions=(rank - 2,),
    )


def connected(x: Tensor, weights: Value, bias: Value | None = None) -> Tensor:
    """FULLY_CONNECTED with *weights* [units, depth]."""
    inputs = [x, x.call.get(weights)]
    if bias is not None:
        inputs.append(x.call.get(bias))
    return x.call.emit("FULLY_CONNECTED", inputs, keep_num_dims=True)


operator("MatMul")(lambda call: multiplied(call, call.tensor(0), call.tensor(1)))


def multiplied(call: Call, a: Value, b: Value) -> Value:
    """`product` as a value with a recipe that computes it as integers."""
    made = product(call, a, b).value()
    if b.rank == 2 and (a.rank or 0) >= 2:
        made.recipe = layer_recipe(_integer_layer(a.rank or 2, transposed=False), a, b, None)
    return made


def _integer_layer(rank: int, *, transposed: bool) -> Layer:
    """A product with constant weights, for quantised values; *transposed* ones as they are."""
    return Layer(
        kind="FULLY_CONNECTED",
        arrange=(lambda array: array) if transposed else (lambda array: array.T),
        axis=0 if transposed else 1,
        attributes={"keep_num_dims": True},
        finish=lambda operand: operand.value(identity(rank)),
    )


@operator("Gemm")
def gemm(call: Call) -> Value:
    """Alpha * A' B' + beta * C. Either matrix may be transposed."""
    a, b, c = call.tensor(0), call.tensor(1), call.tensor(2) if call.has(2) else None
    alpha, beta = call.node.number("alpha", 1.0), call.node.number("beta", 1.0)
    turned, transposed = (bool(call.node.integer(n, 0)) for n in ("transA", "transB"))
    if a.rank != 2 or b.rank != 2:
        raise call.mismatch(f"a product of matrices {a.shape} and {b.shape}")
    left = call.get(a, (1, 0) if turned else None)
    if b.array is not None and a.dtype in LAYERS:
        weights = b.array if transposed else b.array.T
        if alpha != 1.0:
            weights = weights * np.asarray(alpha, b.array.dtype)
        units, bias = weights.shape[0], None
        row = None if c is None else c.array
        if row is not None and row.size in {1, units} and (row.ndim < 2 or row.shape[0] == 1):
            bias = np.broadcast_to(row.reshape(-1), (units,))
            bias = np.ascontiguousarray(bias * np.asarray(beta, bias.dtype))
        made = connected(left, constant(weights), None if bias is None else constant(bias)).value()
        if bias is not None or c is None:
            if alpha == beta == 1.0 and not turned and (c is None or c.rank == 1):
                made.recipe = layer_recipe(_integer_layer(2, transposed=transposed), a, b, c)
            return made
    else:
        made = _multiplied(left, call.get(b, (1, 0) if transposed else None)).value()
        if alpha != 1.0:
            made = call.pair("MUL", made, constant(np.array(alpha).astype(a.dtype.numpy)))
    if c is None:
        return made
    if beta != 1.0:
        c = call.pair("MUL", c, constant(np.array(beta).astype(a.dtype.numpy)))
    return call.pair("ADD", made, c)


@operator("Einsum")
def einsum(call: Call) -> Value:
    """An einsum of one or two operands without repeated letters, as a batch of products."""
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
    # Each operand is first reduced over the letters that occur nowhere else.
    left, right = (
        [x for x in term if x in other or x in result] for term, other in (inputs, inputs[::-1])
    )
    a = _summed(call, call.tensor(0), inputs[0], left)
    b = _summed(call, call.tensor(1), inputs[1], right)
    batch = [x for x in left if x in right and x in result]
    inner = [x for x in left if x in right and x not in result]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    sizes: dict[str, int | None] = {}
    for value, term in ((a, left), (b, right)):
        for letter, size in zip(term, value.shape or (), strict=True):
            if sizes.setdefault(letter, size) is None:
                sizes[letter] = size
            elif size is not None and sizes[letter] != size:
                raise call.mismatch(f"{letter!r} is {sizes[letter]} and {size}")
    unknown = list(sizes.values()).count(None)

    def known(letters: list[str]) -> list[int]:
        found = [sizes[letter] for letter in letters]
        if None in found and unknown > 1:
            raise call.refuse("an equation over several unknown dimensions")
        return [-1 if d is None else d for d in found]

    def grouped(*groups: list[str]) -> list[int]:
        """One dimension for each batch letter, and one for each other group of letters."""
        parts = [known(group) for group in groups]
        return [*known(batch), *(-1 if -1 in part else math.prod(part) for part in parts)]

    one = call.get(a).transposed([left.index(x) for x in (*batch, *rows, *inner)])
    two = call.get(b).transposed([right.index(x) for x in (*batch, *inner, *columns)])
    one, two = one.reshape(grouped(rows, inner)), two.reshape(grouped(inner, columns))
    have = [*batch, *rows, *columns]
    made = _multiplied(one, two).reshape(known(have))
    return made.transposed([have.index(x) for x in result]).value()


def _summed(call: Call, x: Value, term: str, kept: Sequence[str]) -> Value:
    if len(term) != (x.rank or 0):
        raise call.mismatch(f"{term!r} for an operand of shape {x.shape}")
    operand = call.get(x)
    dropped = [i for i, letter in enumerate(term) if letter not in kept]
    if dropped:
        operand = operand.reduced("SUM", dropped)
    left = [letter for letter in term if letter in kept]
    return operand.transposed([left.index(letter) for letter in kept]).value()
