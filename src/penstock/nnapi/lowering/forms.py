"""Forms: the operands that an operation takes, one line for each signature.

    "input:T filter:W/4 bias:B/1 padding:i [nchw:b@3 [dilation_w:i>0 dilation_h:i>0]] -> output:T"

An argument is `name:kind`. A kind is one of three:

- a short name of an operand type (`KINDS`);
- `real`, the float scalar that matches the first tensor's type (FLOAT16 for TENSOR_FLOAT16, FLOAT32
  otherwise);
- a variable: arguments of one variable share one of the types listed with the form.

After the kind may follow:

- `/2` or `/1-4`: the rank that a tensor must have, if it is known;
- `>0`: a scalar must be above 0;
- `@3`: the feature level that introduced the argument;
- `?`: the argument may be omitted (NO_VALUE); `*`: any number of arguments; `+`: one or more.

Arguments in brackets at the end are optional; one pair of brackets is present or absent as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    r"(?P<name>\w+):(?P<kind>\w+)(?:/(?P<low>\d)(?:-(?P<high>\d))?)?(?P<positive>>0)?"
    r"(?:@(?P<level>\d+))?(?P<mark>[?*+]?)"
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
    positive: bool = False


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
    inputs, ends = _parse_arguments(left)
    outputs, output_ends = _parse_arguments(right)
    return Form(inputs, ends, outputs, output_ends)


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
            low, mark = found["low"], found["mark"]
            ranks = None if low is None else (int(low), int(found["high"] or low))
            arguments.append(
                Argument(
                    found["name"],
                    found["kind"],
                    int(found["level"] or 1),
                    optional=mark == "?",
                    repeated=mark in {"*", "+"},
                    least=int(mark == "+"),
                    ranks=ranks,
                    positive=found["positive"] is not None,
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
    places, repeats = _fill(
        "input", form.inputs, form.ends, inputs, variables, types, feature_level
    )
    written, _ = _fill(
        "output", form.outputs, form.output_ends, outputs, variables, types, feature_level
    )
    return Match(form, places, written, repeats, types)


def _fill(
    side: str,
    arguments: tuple[Argument, ...],
    ends: frozenset[int],
    operands: Sequence[NnapiOperand],
    variables: Mapping[str, Levels],
    types: dict[str, AnyType],
    feature_level: int,
) -> tuple[dict[str, int], int]:
    repeated = next((a for a in arguments if a.repeated), None)
    repeats = len(operands) - len(arguments) + 1 if repeated else 0
    if repeated is None and len(operands) not in ends:
        wanted = " or ".join(map(str, sorted(ends)))
        raise Misfit(f"takes {wanted} {side}s, not {len(operands)}", 0)
    if repeated is not None and repeats < repeated.least:
        raise Misfit(f"takes {len(arguments)} {side}s at least, not {len(operands)}", 0)
    places: dict[str, int] = {}
    for at, (argument, operand) in enumerate(
        zip(_spread(arguments, repeats), operands, strict=False)
    ):
        places.setdefault(argument.name, at)
        what = f"{side} {at} ({argument.name})"
        _check_kind(what, argument, operand, variables, types, at + 1 + 1000 * (side == "output"))
        _check_level(what, argument, operand, variables, feature_level)
    return places, repeats


def _spread(arguments: tuple[Argument, ...], repeats: int) -> Iterator[Argument]:
    for argument in arguments:
        yield from [argument] * (repeats if argument.repeated else 1)


def _check_kind(
    what: str,
    argument: Argument,
    operand: NnapiOperand,
    variables: Mapping[str, Levels],
    types: dict[str, AnyType],
    depth: int,
) -> None:
    if operand.lifetime is NnapiLifetime.NO_VALUE and not argument.optional:
        raise Misfit(f"{what} has no value, and must have one", depth)
    kind, found = argument.kind, operand.type
    if kind == EVERY:
        return
    wanted: AnyType
    if kind == REAL:
        half = OperandType.TENSOR_FLOAT16 in types.values()
        wanted = OperandType.FLOAT16 if half else OperandType.FLOAT32
    elif kind in KINDS:
        wanted = KINDS[kind]
    elif found not in variables[kind]:
        raise Misfit(f"{what} cannot be a {found.name}", depth)
    else:
        wanted = types.setdefault(kind, found)
    if found is not wanted:
        raise Misfit(f"{what} is a {found.name}, where a {wanted.name} is needed", depth)


def _check_level(
    what: str,
    argument: Argument,
    operand: NnapiOperand,
    variables: Mapping[str, Levels],
    feature_level: int,
) -> None:
    level = argument.level
    if operand.lifetime is not NnapiLifetime.NO_VALUE and argument.kind in variables:
        level = max(level, variables[argument.kind].get(operand.type, 1))
    if level > feature_level:
        raise Misfit(
            f"{what} as a {operand.type.name} needs feature level {level}, "
            f"the model keeps to {feature_level}",
            10_000,
        )
