"""Operations along axes: reductions, searches, softmax, normalisations, and matrix products."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import NotLowerable
from penstock.ir import DType
from penstock.ir.types import is_static
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import MANY, OLD, lowers, maps
from penstock.nnapi.lowering.windows import check_weights

MAX_RANK = 4


def bind_with_rank(op: OperationLowering, result: int) -> None:
    """Binds *result*, which keeps at least one dimension: a scalar becomes a vector of one element.

    If the rank is not known before a run, the declared dimensions decide.
    """
    rank, declared = op.rank(result), op.results()[0].dimensions
    if rank == 0:
        result = op.reshape(result, (1,))
    elif rank is None:
        if declared is None or not is_static(declared):
            raise NotLowerable(f"the rank of the output of {op.type} is known only when it runs")
        result = op.reshape(result, [d or 0 for d in declared])
    op.bind(0, result)


_REDUCTION = "x:T/0-4 axes:i32/1 keep:b -> y:T"


@lowers("MEAN", "x:T/0-4 axes:i32/1 keep:i -> y:T", same="x y", T=OLD)
@lowers("REDUCE_ALL REDUCE_ANY", _REDUCTION, same="x y", T="b8")
@lowers("REDUCE_MAX REDUCE_MIN", _REDUCTION, same="x y", T="f16 f32 q8 q8s@4")
@lowers("REDUCE_PROD REDUCE_SUM", _REDUCTION, same="x y", T="f16 f32")
def _reduce(op: OperationLowering) -> None:
    """MEAN's flag is an integer, which is set if it is above 0."""
    keep = op.integer("keep") > 0 if op.type == "MEAN" else op.flag("keep")
    x, axes = op.tensor("x"), op.constant("axes")
    if axes is not None:
        for axis in axes.reshape(-1).tolist():
            op.axis(axis, op.rank(x))
    kind = "SUM" if op.type == "REDUCE_SUM" else op.type
    result = op.emit(kind, [x, op.tensor("axes")], op.result_type(), keep_dims=keep)
    bind_with_rank(op, result)


@lowers("ARGMAX ARGMIN", "x:T axis:i -> index:i32", T=MANY)
def _search(op: OperationLowering) -> None:
    x = op.tensor("x")
    axis = op.axis(op.integer("axis"), op.rank(x))
    kind = "ARG_MAX" if op.type == "ARGMAX" else "ARG_MIN"
    result = op.emit(kind, [x, op.integers((axis,))], (DType.INT32, None), output_type="INT32")
    bind_with_rank(op, result)


@lowers("TOPK_V2", "x:T k:i -> values:T indices:i32", same="x values", T=MANY)
def top_k(op: OperationLowering) -> None:
    """Reverses the last axis and converts the indices: NNAPI prefers the larger index among
    equals, the IR the smaller.
    """
    x, types = op.tensor("x"), [op.result_type("values"), op.result_type("indices")]
    axis = op.known_rank(x) - 1
    op.require(axis >= 0, "the input has a dimension at least")
    last = (op.shape(x) or (None,))[-1]
    k = op.integer("k")
    op.require(k > 0 and (last is None or k <= last), f"k is not in [1, {last or 'size'}]")
    mirrored = op.emit("REVERSE_V2", [x, op.integers((axis,))])
    values, indices = op.emit_many("TOPK_V2", [mirrored, op.tensor("k")], types)
    op.bind("values", values)
    greatest = op.compute("SUB", [op.sizes(x, axis, axis + 1), op.integers((1,))])
    op.bind("indices", op.emit("SUB", [greatest, indices]))


def along_last(op: OperationLowering, compute: Callable[[int], int]) -> None:
    """Binds the result of *compute*, with the input's `axis` moved to the end and back."""
    x, axis = op.tensor("x"), op.integer("axis", -1)
    rank = op.rank(x)
    if axis in {-1, None if rank is None else rank - 1}:
        op.bind(0, compute(x))
        return
    rank = op.known_rank(x)
    axis = op.axis(axis, rank)
    order = [a for a in range(rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(rank)]
    op.bind(0, op.transpose(compute(op.transpose(x, order)), back))


def _require_images(op: OperationLowering) -> None:
    if op.feature_level < 3:
        op.require_rank("x", 4)


@lowers("SOFTMAX", "x:T/1-4 beta:real>0 [axis:i@3] -> y:T=1/256,0", T=OLD)
def softmax(op: OperationLowering) -> None:
    if op.feature_level < 3:
        rank = op.rank("x")
        op.require(rank in {None, 2, 4}, "below feature level 3 the input has rank 2 or 4")
    result, beta = op.result_type(), op.real("beta")
    along_last(op, lambda x: op.emit("SOFTMAX", [x], result, beta=beta))


@lowers("LOG_SOFTMAX", "x:T beta:real>0 axis:i -> y:T", T="f16 f32")
def log_softmax(op: OperationLowering) -> None:
    """The IR supports beta 1 only. For another beta the logits are multiplied first."""
    beta = op.real("beta")

    def compute(x: int) -> int:
        scaled = x if beta == 1 else op.emit("MUL", [x, op.number(beta, x)])
        return op.emit("LOG_SOFTMAX", [scaled])

    along_last(op, compute)


_UNIT = "x:T/1-4 [axis:i@3] -> y:T=1/128,128"


@lowers("L2_NORMALIZATION", _UNIT, T="f32 q8@3 f16@3 q8s@4")
def l2_normalization(op: OperationLowering) -> None:
    _require_images(op)
    result = op.result_type()
    along_last(op, lambda x: op.emit("L2_NORMALIZATION", [x], result))


@lowers(
    "LOCAL_RESPONSE_NORMALIZATION",
    "x:T/1-4 radius:i>=0 bias:real alpha:real beta:real [axis:i@3] -> y:T",
    T="f32 f16@3",
)
def local_response_normalization(op: OperationLowering) -> None:
    """The IR supports images only: fewer dimensions get leading ones, later removed."""
    _require_images(op)
    numbers = {name: op.real(name) for name in ("bias", "alpha", "beta")}

    def compute(x: int) -> int:
        missing = MAX_RANK - op.known_rank(x)
        for _ in range(missing):
            x = op.emit("EXPAND_DIMS", [x, op.integers((0,))])
        done = op.emit(op.type, [x], radius=op.integer("radius"), **numbers)
        if missing == 0:
            return done
        return op.emit("SQUEEZE", [done], squeeze_dims=tuple(range(missing)))

    along_last(op, compute)


@lowers(
    "FULLY_CONNECTED",
    "input:T/2-4 filter:W/2 bias:B/1 activation:i -> output:T",
    T=OLD,
    W=OLD,
    B="f32 i32 f16@3",
)
def fully_connected(op: OperationLowering) -> None:
    check_weights(op, 0)
    op.pass_through()


maps("BATCH_MATMUL", "a:T/2-4 b:T/2-4 adj_x:b adj_y:b -> product:T", T="f16 f32 i32 q8s")
