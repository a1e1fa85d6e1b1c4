"""Lowerings of operators, one module for each family, and the table of all lowerings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeAlias, TypeVar

from penstock.loaders.onnx.calls import Call
from penstock.loaders.onnx.values import Value

Lower: TypeAlias = Callable[[Call], Value | Sequence[Value]]


_ROWS: dict[str, Lower] = {}


@cache
def operators() -> Mapping[str, Lower]:
    """Lowerings by operator: its name, after its domain and a dot unless that is ai.onnx."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return _ROWS


Registered = TypeVar("Registered", bound=Lower)


def operator(*names: str, domain: str = "") -> Callable[[Registered], Registered]:
    """Registers the decorated lowering for operators of a domain."""

    def register(lower: Registered) -> Registered:
        for name in names:
            key = f"{domain}.{name}" if domain else name
            if _ROWS.setdefault(key, lower) is not lower:
                raise ValueError(f"{key} has a lowering already")
        return lower

    return register
