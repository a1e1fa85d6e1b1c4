"""Lowerings of operators, one module for each family, and the table of all lowerings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Final, TypeAlias, TypeVar

from penstock.loaders.onnx.calls import Call
from penstock.loaders.onnx.values import Value

Lower: TypeAlias = Callable[[Call], Value | Sequence[Value]]


class _Operators(Mapping[str, Lower]):
    """Lowerings by operator: its name, with the domain and a dot before it if the domain is not
    ai.onnx.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Lower] = {}
        self._loaded = False

    def register(self, key: str, lower: Lower) -> None:
        if key in self._rows:
            raise ValueError(f"{key} has a lowering already")
        self._rows[key] = lower

    def _load(self) -> dict[str, Lower]:
        if not self._loaded:
            self._loaded = True
            for module in iter_modules(__path__):
                import_module(f"{__name__}.{module.name}")
        return self._rows

    def __getitem__(self, key: str) -> Lower:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


OPERATORS: Final = _Operators()


Registered = TypeVar("Registered", bound=Lower)


def operator(*names: str, domain: str = "") -> Callable[[Registered], Registered]:
    """Registers the decorated lowering for operators of a domain."""

    def register(lower: Registered) -> Registered:
        for name in names:
            OPERATORS.register(f"{domain}.{name}" if domain else name, lower)
        return lower

    return register
