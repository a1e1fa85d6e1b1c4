"""Softmax, normalisations and fully connected layers: operations along an axis that the IR has
last.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import InvalidAttribute
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import check_weights

MAX_RANK = 4


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
