"""Arithmetic of two tensors, broadcast."""

from __future__ import annotations

from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

PAIR = "a:T b:T activation:i -> result:T"


def _pair(site: Site) -> list[int]:
    for name in ("a", "b"):
        site.require_rank(name, 0, 4)
    if site.types["T"] is OperandType.TENSOR_INT32:
        site.require(site.integer("activation") == 0, "INT32 tensors take no fused activation")
    return [site.tensor("a"), site.tensor("b")]


@lowers("ADD", level=1, form=PAIR, T="f32 q8 f16@3 q8s@4 i32@4")
def add(site: Site) -> None:
    pair = _pair(site)
    site.finish("ADD", pair, fused_activation_function=site.activation())


@lowers("SUB", level=2, form=PAIR, T="f32 f16@3 q8@3 q8s@4 i32@4")
def sub(site: Site) -> None:
    pair = _pair(site)
    site.finish("SUB", pair, fused_activation_function=site.activation())
