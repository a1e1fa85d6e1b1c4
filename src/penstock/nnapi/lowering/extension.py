"""Operations of vendors' extensions, which go to the IR as they are: only a driver knows their rules (NNAPI section 8.4)."""

from __future__ import annotations

from typing import Final

from penstock.errors import NotLowerable
from penstock.ir.extension import EXTENSION, split_key
from penstock.nnapi.description import NnapiOperand, OperandType
from penstock.nnapi.lowering.forms import EVERY, Argument, Form
from penstock.nnapi.lowering.registry import Rule
from penstock.nnapi.lowering.site import Site

LEVEL: Final = 3

ANYTHING: Final = Form(
    (Argument("operands", EVERY, optional=True, repeated=True),),
    frozenset({1}),
    (Argument("results", EVERY, repeated=True),),
    frozenset({1}),
    "operands:any* -> results:any*",
)


def rule_of_extension(key: str) -> Rule:
    """The rule of the operation with that key: it takes and gives any operands."""
    return Rule(key, LEVEL, (ANYTHING,), {}, lower_extension)


def lower_extension(site: Site) -> None:
    """One EXTENSION operation of the same operands. Raises `NotLowerable` for one that stands for a model."""
    name, code = split_key(site.type) or ("", 0)
    for operand in site.arguments("operands"):
        _check_operand(operand, site.type)
    site.finish(EXTENSION, site.tensors("operands"), extension=name, code=code)


def _check_operand(operand: NnapiOperand, kind: str) -> None:
    if operand.type is OperandType.SUBGRAPH:
        raise NotLowerable(f"{kind} has an operand that stands for a model")
