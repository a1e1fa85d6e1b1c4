"""The table of lowerings: one row for every NNAPI operation.

    @lowers("LOGICAL_AND", level=3, form="a:b8 b:b8 -> result:b8")
    def logical_and(site: Site) -> None:
        site.finish("LOGICAL_AND", [site.tensor("a"), site.tensor("b")])

The decorated function checks what the form cannot say, and writes the operation with the IR's
operations through its `Site`. Families are imported when the first operation is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, TypeAlias

from penstock.errors import InvalidOperation, NotLowerable, UnknownOperator
from penstock.ir.operand import EXTENSION, split_key
from penstock.nnapi.description import EXPERIMENTAL, NnapiOperand, OperandType
from penstock.nnapi.lowering.forms import (
    EVERY,
    Argument,
    Form,
    Levels,
    Match,
    Misfit,
    match_form,
    parse_form,
    parse_types,
)
from penstock.nnapi.lowering.site import Site

Lowering: TypeAlias = Callable[[Site], None]

FAMILIES: Final = (
    "convolution",
    "detection",
    "elementwise",
    "images",
    "layout",
    "lookup",
    "model",
    "normalization",
    "recurrent",
)
"""Modules of this package that register lowerings."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One NNAPI operation: the feature level that introduced it, its forms, and how it is lowered."""

    name: str
    level: int
    forms: tuple[Form, ...]
    variables: Mapping[str, Levels]
    lower: Lowering

    def match(
        self, inputs: Sequence[NnapiOperand], outputs: Sequence[NnapiOperand], feature_level: int
    ) -> Match:
        """How these operands fill one of the forms; `InvalidOperation` says why none is filled."""
        if self.level > feature_level:
            wanted = "an experimental level" if self.level == EXPERIMENTAL else str(self.level)
            raise InvalidOperation(
                f"{self.name} needs feature level {wanted}, the model keeps to {feature_level}"
            )
        nearest: Misfit | None = None
        for form in self.forms:
            try:
                return match_form(form, self.variables, inputs, outputs, feature_level)
            except Misfit as misfit:
                if nearest is None or misfit.depth > nearest.depth:
                    nearest = misfit
        raise InvalidOperation(f"{self.name}: {nearest.message if nearest else 'has no form'}")


_RULES: Final[dict[str, Rule]] = {}


def lowers(
    name: str, *, level: int, form: str | Sequence[str], **types: str
) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function as the lowering of *name*.

    *form* is one form or several (`penstock.nnapi.lowering.forms`); *types* are the variables of
    the forms with the types each admits.
    """
    texts = (form,) if isinstance(form, str) else tuple(form)
    variables = {variable: parse_types(text) for variable, text in types.items()}

    def register(function: Lowering) -> Lowering:
        if name in _RULES:
            raise ValueError(f"{name} has a lowering already")
        _RULES[name] = Rule(name, level, tuple(map(parse_form, texts)), variables, function)
        return function

    return register


def rules() -> Mapping[str, Rule]:
    """Every rule by its operation's name."""
    for family in FAMILIES:
        import_module(f"penstock.nnapi.lowering.{family}")
    return _RULES


def rule_of(name: str) -> Rule:
    """The rule of one operation, of an extension's by its key; `UnknownOperator` where NNAPI has
    none of that name.
    """
    if split_key(name) is not None:
        return _rule_of_extension(name)
    found = _RULES.get(name) or rules().get(name)
    if found is None:
        raise UnknownOperator(f"{name!r} is not an operation of NNAPI")
    return found


# Operations of vendors' extensions go to the IR as they are: only a driver knows their rules (NNAPI
# section 8.4).
_EXTENSION_LEVEL: Final = 3

_ANYTHING: Final = Form(
    (Argument("operands", EVERY, optional=True, repeated=True),),
    frozenset({1}),
    (Argument("results", EVERY, repeated=True),),
    frozenset({1}),
    "operands:any* -> results:any*",
)


def _rule_of_extension(key: str) -> Rule:
    """The rule of the operation with that key: it takes and gives any operands."""
    return Rule(key, _EXTENSION_LEVEL, (_ANYTHING,), {}, _lower_extension)


def _lower_extension(site: Site) -> None:
    """One EXTENSION operation of the same operands. Raises `NotLowerable` for one that stands for a
    model.
    """
    name, code = split_key(site.type) or ("", 0)
    for operand in site.arguments("operands"):
        _check_operand(operand, site.type)
    site.finish(EXTENSION, site.tensors("operands"), extension=name, code=code)


def _check_operand(operand: NnapiOperand, kind: str) -> None:
    if operand.type is OperandType.SUBGRAPH:
        raise NotLowerable(f"{kind} has an operand that stands for a model")
