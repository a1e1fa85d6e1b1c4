"""Arguments and options of commands, declared in the signatures of the commands' functions.

A command is a function whose first parameter is the `Output`, and whose other parameters are
annotated with what `option` and `argument` return. A parameter may also be a struct: its fields are
then options of the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct

Command: TypeAlias = Callable[..., None]

REQUIRED: Final = NODEFAULT
"""The default of a parameter that must be given."""


class Declared(Struct, frozen=True):
    """An option with its *names*, or an argument without names. *least* is the smallest number."""

    names: tuple[str, ...]
    metavar: str | None
    text: str
    least: float | None = None


def option(usage: str, text: str, *, least: float | None = None) -> Declared:
    """An option: *usage* is its names and its metavar, as in `--device -d NAME`."""
    words = usage.split()
    names = tuple(word for word in words if word.startswith("-"))
    return Declared(names, None if words[-1] in names else words[-1], text, least)


def argument(metavar: str, text: str) -> Declared:
    """An argument without a name."""
    return Declared((), metavar, text)


class Parameter(Struct, frozen=True):
    """One argument or option of a command.

    *kind* is the type of a value. With *several* the parameter takes a list of them. *group* is the
    parameter of the command whose struct has the value as a field, "" if none has.
    """

    name: str
    kind: type
    several: bool
    annotation: Any
    declared: Declared
    default: Any
    group: str = ""


class Signature(Struct, frozen=True):
    """The *parameters* of a command but its output, and the structs that group them, by name."""

    parameters: Sequence[Parameter]
    groups: Mapping[str, type[Struct]]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the command's function, from a value for each parameter."""
        given: dict[str, Any] = {}
        fields: dict[str, dict[str, Any]] = {name: {} for name in self.groups}
        for parameter in self.parameters:
            owner = fields[parameter.group] if parameter.group else given
            owner[parameter.name] = values[parameter.name]
        return given | {name: kind(**fields[name]) for name, kind in self.groups.items()}


def signature_of(command: Command) -> Signature:
    """The parameters of *command* in their order, with those of structs in place of the struct."""
    parameters: list[Parameter] = []
    groups: dict[str, type[Struct]] = {}
    defaults = _defaults(command)
    for name, hint in get_type_hints(command, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Struct):
            groups[name] = hint
            inner = _field_defaults(hint)
            parameters += [
                _parameter(field, kind, inner.get(field, REQUIRED), name)
                for field, kind in get_type_hints(hint, include_extras=True).items()
            ]
        elif hasattr(hint, "__metadata__"):
            parameters.append(_parameter(name, hint, defaults.get(name, REQUIRED)))
    return Signature(parameters, groups)


def _parameter(name: str, hint: Any, default: Any, group: str = "") -> Parameter:
    (declared,), kind = hint.__metadata__, hint.__origin__
    annotation = kind
    if isinstance(kind, UnionType):  # with None
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    several = get_origin(kind) is list
    if several:
        (kind,) = get_args(kind)
    return Parameter(name, kind, several, annotation, declared, default, group)


def _defaults(command: Any) -> dict[str, Any]:
    """The defaults of a function. `inspect.signature` has them too; importing it takes longer."""
    code = command.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = command.__defaults__ or ()
    last = positional[len(positional) - len(values) :]
    return dict(zip(last, values, strict=True)) | (command.__kwdefaults__ or {})


def _field_defaults(group: type[Struct]) -> dict[str, Any]:
    names, values = group.__struct_fields__, group.__struct_defaults__
    return dict(zip(names[len(names) - len(values) :], values, strict=True))
