"""Parses a command line as typer does, without importing it, if the line is plain.

A plain line needs no message: every option is known, written in full and apart from others, and has
a value of its type. For any other line `parse` returns None, and typer, whose import takes longer
than most of what the program imports, parses it and reports the error
(docs/decisions/0024-plain-command-lines-are-parsed-without-typer.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.cli.declarations import REQUIRED, Parameter

WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
REAL: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE]-?[0-9]{1,2})?")

END: Final = "--"
"""Nothing after it is an option."""


class _NotPlainError(Exception):
    """Typer must parse the line."""


def parse(parameters: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any] | None:
    """The value of each parameter by name, from *words*; None if the line is not plain."""
    options = {name: p for p in parameters for name in p.declared.names}
    arguments = [p for p in parameters if not p.declared.names]
    try:
        values, others = _options(options, words)
        values |= _arguments(arguments, others)
    except _NotPlainError:
        return None
    for parameter in parameters:
        if values.setdefault(parameter.name, parameter.default) is REQUIRED:
            return None
    return values


def _options(
    options: Mapping[str, Parameter], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """The values of options by name, and the other words."""
    values: dict[str, Any] = {}
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == END:
            others += rest
        elif len(word) < 2 or word[0] != "-":
            others.append(word)
        else:
            name, equals, text = word.partition("=")
            parameter = options.get(name)
            if parameter is None or (equals and not name.startswith("--")):
                raise _NotPlainError
            if parameter.kind is bool:
                if equals:
                    raise _NotPlainError
                values[parameter.name] = True
                continue
            if not equals:
                text = next(rest, END)
                if len(text) > 1 and text[0] == "-":
                    # It may be an option, after one whose value is missing.
                    raise _NotPlainError
            value = _value(parameter, text)
            if parameter.several:
                values.setdefault(parameter.name, []).append(value)
            else:
                values[parameter.name] = value
    return values, others


def _arguments(arguments: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any]:
    """The values of arguments by name. The last one may take several words."""
    values: dict[str, Any] = {}
    left = list(words)
    for parameter in arguments:
        if parameter.several:
            if left:
                values[parameter.name] = left
            left = []
        elif left:
            values[parameter.name] = left.pop(0)
    if left:
        raise _NotPlainError
    return values


def _value(parameter: Parameter, text: str) -> Any:
    kind, least = parameter.kind, parameter.declared.least
    if kind is str:
        return text
    pattern = WHOLE if kind is int else REAL
    if pattern.fullmatch(text) is None:
        raise _NotPlainError
    number = kind(text)
    if least is not None and number < least:
        raise _NotPlainError
    return number
