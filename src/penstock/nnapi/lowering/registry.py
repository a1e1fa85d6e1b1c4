"""The table of lowerings: one row for every NNAPI operation.

    maps("LOGICAL_AND", "a:b8 b:b8 -> result:b8")

If the IR has no operation of the same form, a function does the lowering. It checks the rules that
the form cannot express, and composes the operation from IR operations:

    @lowers("ELU", "x:T alpha:real -> y:T", T="f16 f32")
    def elu(op: OperationLowering) -> None: ...

The number of an operation's code decides its feature level (`OperationCode.feature_level`).
The modules of this package are imported when the first operation is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final, TypeAlias

from penstock.errors import InvalidOperation, NotLowerable, UnknownOperator
from penstock.ir.operand import EXTENSION, split_key
from penstock.nnapi.codes import EXPERIMENTAL, OperationCode
from penstock.nnapi.description import NnapiOperand, OperandType
from penstock.nnapi.lowering import forms
from penstock.nnapi.lowering.forms import Form, Levels, Match
from penstock.nnapi.lowering.operation import OperationLowering

Lower: TypeAlias = Callable[[OperationLowering], None]

MANY: Final = "f16 f32 i32 q8 q8s@4"
OLD: Final = "f32 q8 f16@3 q8s@4"
"""Types that many operations take: those of feature level 3, and those of levels 1 and 2."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One NNAPI operation: the feature level that introduced it, its forms, and its lowering."""

    name: str
    level: int
    forms: tuple[Form, ...]
    variables: Mapping[str, Levels]
    lower: Lower

    def match(
        self, inputs: Sequence[NnapiOperand], outputs: Sequence[NnapiOperand], feature_level: int
    ) -> Match:
        """The match of these operands with a form. `InvalidOperation` says why there is none."""
        if self.level > feature_level:
            wanted = "an experimental level" if self.level == EXPERIMENTAL else str(self.level)
            raise InvalidOperation(
                f"{self.name} needs feature level {wanted}, the model keeps to {feature_level}"
            )
        nearest: forms.Misfit | None = None
        for form in self.forms:
            try:
                return forms.match_form(form, self.variables, inputs, outputs, feature_level)
            except forms.Misfit as misfit:
                if nearest is None or misfit.depth > nearest.depth:
                    nearest = misfit
        raise InvalidOperation(f"{self.name}: {nearest.message if nearest else 'has no form'}")


_RULES: Final[dict[str, Rule]] = {}


def lowers(names: str, *texts: str, same: str = "", **types: str) -> Callable[[Lower], Lower]:
    """Registers the decorated function as the lowering of the operations *names*.

    *texts* are their forms (`penstock.nnapi.lowering.forms`); *types* are the variables of the
    forms with the types each admits. *same* names arguments and outputs that must have one scale
    and zero point.
    """
    parsed = tuple(map(forms.parse_form, texts))
    variables = {variable: forms.parse_types(text) for variable, text in types.items()}

    def register(function: Lower) -> Lower:
        def lower(op: OperationLowering) -> None:
            op.check(same.split())
            function(op)

        for name in names.split():
            if name in _RULES:
                raise ValueError(f"{name} has a lowering already")
            level = OperationCode[name].feature_level
            _RULES[name] = Rule(name, level, parsed, variables, lower)
        return function

    return register


def maps(names: str, *texts: str, to: str = "", same: str = "", **types: str) -> None:
    """Registers operations that become one IR operation, *to* or one of the same name.

    It gets the form's tensors in order, and the scalars as attributes
    (`OperationLowering.pass_through`).
    """
    lowers(names, *texts, same=same, **types)(lambda op: op.pass_through(to))


def rules() -> Mapping[str, Rule]:
    """Every rule, by its operation's name."""
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    return _RULES


def rule_of(name: str) -> Rule:
    """The rule of an operation, or an extension's key. Raises `UnknownOperator`."""
    if split_key(name) is not None:
        return Rule(name, _EXTENSION_LEVEL, (_ANYTHING,), {}, _lower_extension)
    found = _RULES.get(name) or rules().get(name)
    if found is None:
        raise UnknownOperator(f"{name!r} is not an operation of NNAPI")
    return found


# Operations of vendors' extensions are passed to the IR unchanged: only a driver knows their rules
# (NNAPI section 8.4).
_EXTENSION_LEVEL: Final = 3

_ANYTHING: Final = forms.parse_form("operands:any?* -> results:any*")


def _lower_extension(op: OperationLowering) -> None:
    """Lowers one EXTENSION operation. Raises `NotLowerable` for an operand that is a model."""
    name, code = split_key(op.type) or ("", 0)
    if any(operand.type is OperandType.SUBGRAPH for operand in op.arguments("operands")):
        raise NotLowerable(f"{op.type} has an operand that stands for a model")
    op.finish(EXTENSION, op.tensors("operands"), extension=name, code=code)
