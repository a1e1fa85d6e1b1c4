"""Arithmetic, comparisons and logic of two tensors, broadcast, and choice between them."""

from __future__ import annotations

from penstock.ir import DType
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

FUSED = "a:T b:T activation:i -> result:T"
PAIR = "a:T b:T -> result:T"
MAX_RANK = 4


def _pair(site: Site) -> list[int]:
    for name in ("a", "b"):
        site.require_rank(name, 0, MAX_RANK)
    return [site.tensor("a"), site.tensor("b")]


def _fused(site: Site, kind: str) -> None:
    pair, activation = _pair(site), site.activation()
    if site.types["T"] is OperandType.TENSOR_INT32:
        site.require(activation == "NONE", "INT32 tensors take no fused activation")
    site.finish(kind, pair, fused_activation_function=activation)


@lowers("ADD", level=1, form=FUSED, T="f32 q8 f16@3 q8s@4 i32@4")
def add(site: Site) -> None:
    _fused(site, "ADD")


@lowers("SUB", level=2, form=FUSED, T="f32 f16@3 q8@3 q8s@4 i32@4")
def sub(site: Site) -> None:
    _fused(site, "SUB")


@lowers("MUL", level=1, form=FUSED, T="f32 q8 f16@3 q8s@4 i32@4")
def mul(site: Site) -> None:
    a, b, result = site.operand("a"), site.operand("b"), site.output("result")
    if a.type.is_quantized:
        site.require(
            result.scale > a.scale * b.scale,
            f"the output's scale {result.scale:g} must be above {a.scale * b.scale:g}, the product of the inputs'",
        )
    _fused(site, "MUL")


@lowers("DIV", level=2, form=FUSED, T="f32 f16@3 i32@4")
def div(site: Site) -> None:
    """Integers are divided rounding down; by zero they have a quotient that nothing is said of, and
    no failure: zeros among divisors become ones.
    """
    if site.types["T"] is not OperandType.TENSOR_INT32:
        _fused(site, "DIV")
        return
    site.require(site.activation() == "NONE", "INT32 tensors take no fused activation")
    a, b = _pair(site)
    known = site.constant("b")
    if known is None or not known.all():
        zero, one = site.number(0, b), site.number(1, b)
        b = site.emit(
            "SELECT_V2",
            [site.emit("EQUAL", [b, zero], (DType.BOOL, None)), one, b],
            site.value_type(b),
        )
    site.finish("FLOOR_DIV", [a, b])


@lowers("POW", level=3, form="a:T b:T -> result:T", T="f16 f32")
def power(site: Site) -> None:
    site.finish("POW", [site.tensor("a"), site.tensor("b")])


@lowers("PRELU", level=3, form=PAIR, T="f16 f32 q8 q8s@4")
def prelu(site: Site) -> None:
    site.finish("PRELU", [site.tensor("a"), site.tensor("b")])


def _extreme(site: Site, kind: str) -> None:
    """Quantised operands are brought to the result's scale first, which keeps their order."""
    result = site.result_type()
    pair = [site.requantized(site.tensor(name), result) for name in ("a", "b")]
    site.finish(kind, pair)


@lowers("MAXIMUM", level=3, form=PAIR, T="f16 f32 i32 q8 q8s@4")
def maximum(site: Site) -> None:
    _extreme(site, "MAXIMUM")


@lowers("MINIMUM", level=3, form=PAIR, T="f16 f32 i32 q8 q8s@4")
def minimum(site: Site) -> None:
    _extreme(site, "MINIMUM")


def _compare(site: Site) -> None:
    """The IR orders numbers: booleans become some."""
    pair = [site.tensor("a"), site.tensor("b")]
    if site.types.get("T") is OperandType.TENSOR_BOOL8 and "EQUAL" not in {
        site.type,
        site.type[4:],
    }:
        pair = [site.cast(x, DType.INT32) for x in pair]
    site.finish(site.type, pair)


for _name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
    lowers(_name, level=3, form="a:T b:T -> truth:b8", T="b8 f16 f32 i32 q8 q8s@4")(_compare)

for _name in ("LOGICAL_AND", "LOGICAL_OR"):
    lowers(_name, level=3, form="a:b8 b:b8 -> truth:b8")(_compare)


@lowers("LOGICAL_NOT", level=3, form="a:b8 -> truth:b8")
def logical_not(site: Site) -> None:
    site.finish("LOGICAL_NOT", [site.tensor("a")])


@lowers("SELECT", level=3, form="condition:b8 a:T b:T -> result:T", T="f16 f32 i32 q8 q8s@4")
def select(site: Site) -> None:
    """Condition and values have one shape. Quantised values take the result's scale first."""
    shapes = [site.shape(site.tensor(name)) for name in ("condition", "a", "b")]
    known = {s for s in shapes if s is not None and None not in s}
    site.require(len(known) <= 1, "condition and values have one shape")
    result = site.result_type()
    values = [site.requantized(site.tensor(name), result) for name in ("a", "b")]
    site.finish("SELECT", [site.tensor("condition"), *values])
