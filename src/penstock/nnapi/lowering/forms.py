"""Forms: the operands that an operation takes, one line for each signature.

    "input:T filter:W/4 bias:B/1 padding:i [nchw:b@3 [dilation_w:i>0 dilation_h:i>0]] -> output:T"

An argument is `name:kind`. A kind is one of three:

- a short name of an operand type (`KINDS`);
- `real`, the float scalar that matches the first tensor's type (FLOAT16 for TENSOR_FLOAT16, FLOAT32
  otherwise);
- a variable: arguments of one variable share one of the types listed with the form.

After the kind may follow:

- `/2` or `/1-4`: the rank that a tensor must have, if it is known; `/x`: it is a vector with a
  number for each dimension of the argument `x`;
- `>0`, `>=0`: a scalar must be above 0, or at least 0;
- `=1/128,128`: the scale and zero point that a quantised tensor must have; the zero point of
  TENSOR_QUANT8_ASYMM_SIGNED is 128 less;
- `@3`: the feature level that introduced the argument;
- `?`: the argument may be omitted (NO_VALUE); `*`: any number of arguments; `+`: one or more.

Arguments in brackets at the end are optional; one pair of brackets is present or absent as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from penstock.nnapi.description import AnyType, NnapiLifetime, NnapiOperand, OperandType

KINDS: Final[Mapping[str, OperandType]] = {
    "f": OperandType.FLOAT32,
    "h": OperandType.FLOAT16,
    "i": OperandType.INT32,
    "b": OperandType.BOOL,
    "f32": OperandType.TENSOR_FLOAT32,
    "f16": OperandType.TENSOR_FLOAT16,
    "i32": OperandType.TENSOR_INT32,
    "b8": OperandType.TENSOR_BOOL8,
    "q8": OperandType.TENSOR_QUANT8_ASYMM,
    "q8s": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "q8y": OperandType.TENSOR_QUANT8_SYMM,
    "pc": OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
    "q16y": OperandType.TENSOR_QUANT16_SYMM,
    "q16a": OperandType.TENSOR_QUANT16_ASYMM,
    "model": OperandType.SUBGRAPH,
}
REAL: Final = "real"
EVERY: Final = "any"

_ARGUMENT: Final = re.compile(
    r"(?P<name>\w+):(?P<kind>\w+)(?:/(?P<low>\d)(?:-(?P<high>\d))?|/(?P<like>[a-z]\w*))?"
    r"(?P<bound>>=?0)?(?:=(?P<scale>[\d/]+),(?P<zero>\d+))?(?:@(?P<level>\d+))?(?P<mark>\??[*+]?)"
)

Levels = Mapping[AnyType, int]
"""Operand types, each with the feature level that introduced it."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One operand of a form."""

    name: str
    kind: str
    level: int = 1
    optional: bool = False
    repeated: bool = False
    least: int = 0
    ranks: tuple[int, int] | None = None
    like: str = ""
    bound: str = ""
    quantization: tuple[float, int] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """One signature. *ends* are the permitted numbers of arguments."""

    inputs: tuple[Argument, ...]
    ends: frozenset[int]
    outputs: tuple[Argument, ...]
    output_ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class Match:
    """Operands assigned to a form: first places, number of repeats, types of the variables."""

    form: Form
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    repeats: int
    types: Mapping[str, AnyType]


class Misfit(Exception):  # never leaves this package's matching
    """Operands do not match a form; *depth* is the number that do."""

    def __init__(self, message: str, depth: int) -> None:
        super().__init__(message)
        self.message, self.depth = message, depth


def parse_form(text: str) -> Form:
    """Parses *text* as a form."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"form without outputs: {text!r}")
    return Form(*_parse_arguments(left), *_parse_arguments(right))


def parse_types(text: str) -> Levels:
    """The types of a variable: short names; `@n` is the feature level that introduced the use."""
    found: dict[AnyType, int] = {}
    for word in text.split():
        name, _, level = word.partition("@")
        kinds = [t for t in OperandType if t.is_tensor] if name == EVERY else [KINDS[name]]
        for kind in kinds:
            found[kind] = max(int(level or 1), kind.feature_level)
    return found


def _parse_arguments(text: str) -> tuple[tuple[Argument, ...], frozenset[int]]:
    arguments: list[Argument] = []
    ends: set[int] = set()
    for word in text.replace("[", " [ ").replace("]", " ] ").split():
        if word == "[":
            ends.add(len(arguments))
        elif word != "]":
            found = _ARGUMENT.fullmatch(word)
            if found is None:
                raise ValueError(f"no argument of a form: {word!r}")
            low, mark, scale = found["low"], found["mark"], found["scale"]
            arguments.append(
                Argument(
                    found["name"],
                    found["kind"],
                    int(found["level"] or 1),
                    optional="?" in mark,
                    repeated=mark.endswith(("*", "+")),
                    least=int(mark.endswith("+")),
                    ranks=None if low is None else (int(low), int(found["high"] or low)),
                    like=found["like"] or "",
                    bound=found["bound"] or "",
                    quantization=(float(Fraction(scale)), int(found["zero"])) if scale else None,
                )
            )
    ends.add(len(arguments))
    return tuple(arguments), frozenset(ends)


def match_form(
    form: Form,
    variables: Mapping[str, Levels],
    inputs: Sequence[NnapiOperand],
    outputs: Sequence[NnapiOperand],
    feature_level: int,
) -> Match:
    """The assignment of the operands to *form*; raises `Misfit` if they do not match."""
    types: dict[str, AnyType] = {}

    def check(what: str, argument: Argument, operand: NnapiOperand, depth: int) -> None:
        omitted = operand.lifetime is NnapiLifetime.NO_VALUE
        if omitted and not argument.optional:
            raise Misfit(f"{what} has no value, and must have one", depth)
        kind, found, level = argument.kind, operand.type, argument.level
        wanted: AnyType = found
        if kind == REAL:
            half = OperandType.TENSOR_FLOAT16 in types.values()
            wanted = OperandType.FLOAT16 if half else OperandType.FLOAT32
        elif kind in KINDS:
            wanted = KINDS[kind]
        elif kind != EVERY:
            if found not in variables[kind]:
                raise Misfit(f"{what} cannot be a {found.name}", depth)
            wanted = types.setdefault(kind, found)
            level = level if omitted else max(level, variables[kind][found])
        if found is not wanted:
            raise Misfit(f"{what} is a {found.name}, where a {wanted.name} is needed", depth)
        if level > feature_level:
            text = f"needs feature level {level}, the model keeps to {feature_level}"
            raise Misfit(f"{what} as a {found.name} {text}", 10_000)

    def assign(
        side: str,
        arguments: tuple[Argument, ...],
        ends: frozenset[int],
        operands: Sequence[NnapiOperand],
    ) -> tuple[dict[str, int], int]:
        repeated = next((a for a in arguments if a.repeated), None)
        repeats = len(operands) - len(arguments) + 1 if repeated else 0
        if repeated is None and len(operands) not in ends:
            wanted = " or ".join(map(str, sorted(ends)))
            raise Misfit(f"takes {wanted} {side}s, not {len(operands)}", 0)
        if repeated is not None and repeats < repeated.least:
            raise Misfit(f"takes {len(arguments)} {side}s at least, not {len(operands)}", 0)
        places: dict[str, int] = {}
        spread = [a for a in arguments for _ in range(repeats if a.repeated else 1)]
        for at, (argument, operand) in enumerate(zip(spread, operands, strict=False)):
            places.setdefault(argument.name, at)
            depth = at + 1 + 1000 * (side == "output")
            check(f"{side} {at} ({argument.name})", argument, operand, depth)
        return places, repeats

    places, repeats = assign("input", form.inputs, form.ends, inputs)
    written, _ = assign("output", form.outputs, form.output_ends, outputs)
    return Match(form, places, written, repeats, types)
