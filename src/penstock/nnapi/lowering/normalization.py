"""Reductions and searches along axes. What would have no dimension left has the shape [1]. | Softmax, normalisations and fully connected layers: operations along an axis that the IR has
last.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import InvalidAttribute, NotLowerable
from penstock.ir import DType
from penstock.ir.types import is_static
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import check_weights

KINDS = {"REDUCE_SUM": "SUM"}
MAX_RANK = 4


def bind_with_rank(site: Site, result: int, output: int = 0) -> None:
    """Binds *result*, which keeps a dimension: without one it becomes a vector of one element.

    Where its rank is not known before a run, the declared dimensions decide.
    """
    rank, declared = site.rank(result), site.declared(output)
    if rank == 0:
        result = site.reshape(result, (1,))
    elif rank is None:
        if declared is None or not is_static(declared):
            raise NotLowerable(f"the rank of the output of {site.type} is known only when it runs")
        result = site.reshape(result, [d or 0 for d in declared])
    site.bind(output, result)


def _reduce(site: Site, keep: bool) -> None:
    x, axes = site.tensor("x"), site.constant("axes")
    site.require_rank("x", 0, MAX_RANK)
    site.require_rank("axes", 1)
    rank = site.rank(x)
    if axes is not None and rank is not None:
        for axis in axes.reshape(-1).tolist():
            site.axis(axis, rank)
    result = site.emit(
        KINDS.get(site.type, site.type),
        [x, site.tensor("axes")],
        site.result_type(),
        keep_dims=keep,
    )
    bind_with_rank(site, result)


@lowers("MEAN", level=2, form="x:T axes:i32 keep:i -> y:T", T="f32 q8 f16@3 q8s@4")
def mean(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _reduce(site, site.integer("keep") > 0)


def _reduce_keeping(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _reduce(site, site.flag("keep"))


for _name, _types in (
    ("REDUCE_ALL", "b8"),
    ("REDUCE_ANY", "b8"),
    ("REDUCE_MAX", "f16 f32 q8 q8s@4"),
    ("REDUCE_MIN", "f16 f32 q8 q8s@4"),
    ("REDUCE_PROD", "f16 f32"),
    ("REDUCE_SUM", "f16 f32"),
):
    lowers(_name, level=3, form="x:T axes:i32 keep:b -> y:T", T=_types)(_reduce_keeping)


def _search(site: Site, kind: str) -> None:
    x, axis = site.tensor("x"), site.integer("axis")
    rank = site.rank(x)
    if rank is not None:
        axis = site.axis(axis, rank)
    result = site.emit(kind, [x, site.integers((axis,))], (DType.INT32, None), output_type="INT32")
    bind_with_rank(site, result)


@lowers("ARGMAX", level=3, form="x:T axis:i -> index:i32", T="f16 f32 i32 q8 q8s@4")
def argmax(site: Site) -> None:
    _search(site, "ARG_MAX")


@lowers("ARGMIN", level=3, form="x:T axis:i -> index:i32", T="f16 f32 i32 q8 q8s@4")
def argmin(site: Site) -> None:
    _search(site, "ARG_MIN")


@lowers("TOPK_V2", level=3, form="x:T k:i -> values:T indices:i32", T="f16 f32 i32 q8 q8s@4")
def top_k(site: Site) -> None:
    """NNAPI puts the larger index first among equals, the IR the smaller: the last axis is reversed
    before, and the indices count from its end.
    """
    site.require_same_quantization("x", "values")
    x, types = site.tensor("x"), site.result_types()
    axis = site.known_rank(x) - 1
    site.require(axis >= 0, "the input has a dimension at least")
    last = (site.shape(x) or (None,))[-1]
    k = site.integer("k")
    site.require(k > 0 and (last is None or k <= last), f"k is not in [1, {last or 'size'}]")
    mirrored = site.emit("REVERSE_V2", [x, site.integers((axis,))])
    values, indices = site.emit_many("TOPK_V2", [mirrored, site.tensor("k")], types)
    site.bind("values", values)
    greatest = site.compute("SUB", [site.sizes(x, axis, axis + 1), site.integers((1,))])
    site.bind("indices", site.emit("SUB", [greatest, indices]))


def along_last(site: Site, axis: int, compute: Callable[[int], int]) -> None:
    """Binds *compute* of the input with *axis* moved to the end, moved back."""
    x = site.tensor("x")
    rank = site.rank(x)
    if axis in {-1, None if rank is None else rank - 1}:
        site.bind(0, compute(x))
        return
    rank = site.known_rank(x)
    axis = site.axis(axis, rank)
    order = [a for a in range(rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(rank)]
    site.bind(0, site.transpose(compute(site.transpose(x, order)), back))


@lowers("SOFTMAX", level=1, form="x:T beta:real [axis:i@3] -> y:T", T="f32 q8 f16@3 q8s@4")
def softmax(site: Site) -> None:
    beta = site.real("beta")
    if not beta > 0:
        raise InvalidAttribute(f"beta of SOFTMAX must be above 0, not {beta:g}")
    rank = site.rank(site.tensor("x"))
    if site.feature_level < 3:
        site.require(rank in {None, 2, 4}, "below feature level 3 the input has rank 2 or 4")
    site.require_rank("x", 1, MAX_RANK)
    signed = site.types["T"] is OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    site.require_quantization("y", 1 / 256, -128 if signed else 0)
    result = site.result_type()
    along_last(
        site,
        site.integer("axis", -1),
        lambda x: site.emit("SOFTMAX", [x], result, beta=beta),
    )


@lowers("LOG_SOFTMAX", level=3, form="x:T beta:real axis:i -> y:T", T="f16 f32")
def log_softmax(site: Site) -> None:
    """The IR has it for beta 1: for another the logits are multiplied first."""
    beta = site.real("beta")
    if not beta > 0:
        raise InvalidAttribute(f"beta of LOG_SOFTMAX must be above 0, not {beta:g}")

    def compute(x: int) -> int:
        scaled = x if beta == 1 else site.emit("MUL", [x, site.number(beta, x)])
        return site.emit("LOG_SOFTMAX", [scaled])

    along_last(site, site.integer("axis"), compute)


@lowers("L2_NORMALIZATION", level=1, form="x:T [axis:i@3] -> y:T", T="f32 q8@3 f16@3 q8s@4")
def l2_normalization(site: Site) -> None:
    site.require_rank("x", 1, MAX_RANK)
    if site.feature_level < 3:
        site.require_rank("x", 4)
    signed = site.types["T"] is OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    site.require_quantization("y", 1 / 128, 0 if signed else 128)
    result = site.result_type()
    along_last(site, site.integer("axis", -1), lambda x: site.emit("L2_NORMALIZATION", [x], result))


@lowers(
    "LOCAL_RESPONSE_NORMALIZATION",
    level=1,
    form="x:T radius:i bias:real alpha:real beta:real [axis:i@3] -> y:T",
    T="f32 f16@3",
)
def local_response_normalization(site: Site) -> None:
    """The IR has it for images: fewer dimensions get leading ones, taken away afterwards."""
    site.require_rank("x", 1, MAX_RANK)
    if site.feature_level < 3:
        site.require_rank("x", 4)
    radius = site.integer("radius")
    if radius < 0:
        raise InvalidAttribute(f"radius of {site.type} is negative: {radius}")

    def compute(x: int) -> int:
        missing = MAX_RANK - site.known_rank(x)
        wide = x
        for _ in range(missing):
            wide = site.emit("EXPAND_DIMS", [wide, site.integers((0,))])
        done = site.emit(
            "LOCAL_RESPONSE_NORMALIZATION",
            [wide],
            radius=radius,
            bias=site.real("bias"),
            alpha=site.real("alpha"),
            beta=site.real("beta"),
        )
        if missing == 0:
            return done
        return site.emit("SQUEEZE", [done], squeeze_dims=tuple(range(missing)))

    along_last(site, site.integer("axis", -1), compute)


@lowers(
    "FULLY_CONNECTED",
    level=1,
    form="input:T filter:W bias:B activation:i -> output:T",
    T="f32 q8 f16@3 q8s@4",
    W="f32 q8 f16@3 q8s@4",
    B="f32 i32 f16@3",
)
def fully_connected(site: Site) -> None:
    site.require_rank("input", 2, MAX_RANK)
    site.require_rank("filter", 2)
    site.require_rank("bias", 1)
    check_weights(site, 0)
    site.finish(
        "FULLY_CONNECTED",
        [site.tensor(name) for name in ("input", "filter", "bias")],
        fused_activation_function=site.activation(),
    )


@lowers("BATCH_MATMUL", level=6, form="a:T b:T adj_a:b adj_b:b -> product:T", T="f16 f32 i32 q8s")
def batch_matmul(site: Site) -> None:
    for name in ("a", "b"):
        site.require_rank(name, 2, MAX_RANK)
    site.finish(
        "BATCH_MATMUL",
        [site.tensor("a"), site.tensor("b")],
        adj_x=site.flag("adj_a"),
        adj_y=site.flag("adj_b"),
    )
