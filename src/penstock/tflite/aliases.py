"""Makes imports of LiteRT's interpreter return `penstock.tflite`, for unchanged programs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from penstock.errors import StateError

PACKAGES: Final = ("tflite_runtime", "ai_edge_litert")
"""The packages whose module `interpreter` is replaced."""

INTERPRETERS: Final = tuple(f"{package}.interpreter" for package in PACKAGES)


def install_aliases() -> None:
    """Makes imports of LiteRT's interpreter return `penstock.tflite` from now on.

    Affects `tflite_runtime.interpreter` and `ai_edge_litert.interpreter`. Other modules of an
    installed package of either name are imported as before. An empty package replaces one that is
    not installed. Further calls have no effect. The aliases hold for this process and its forks. A
    new process must call this function, or be started by `python -m penstock.tflite`.

    Raises `StateError` if one of the modules has been imported already: its users would keep the
    original.
    """
    from penstock import tflite

    for name in INTERPRETERS:
        module = sys.modules.get(name)
        if module is not None and module is not tflite:
            raise StateError(
                f"{name} has been imported already, so what holds its names would go on using it: "
                "call install_aliases() before its first import, or start the program by python "
                "-m penstock.tflite"
            )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        importlib.invalidate_caches()


class _Finder(MetaPathFinder, Loader):
    """Supplies the interpreter's modules, and a package for them if none is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        if fullname in INTERPRETERS or (
            fullname in PACKAGES and all(f.find_spec(fullname, None) is None for f in others)
        ):
            package = fullname in PACKAGES
            return ModuleSpec(fullname, self, origin="penstock.tflite", is_package=package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        from penstock import __version__, tflite

        if module.__name__ in INTERPRETERS:
            # The import system then uses the module in sys.modules, also for the parent's
            # attribute.
            sys.modules[module.__name__] = tflite
            return
        module.__doc__ = f"Stands for {module.__name__}, whose interpreter is penstock.tflite."
        module.__dict__["__version__"] = __version__
