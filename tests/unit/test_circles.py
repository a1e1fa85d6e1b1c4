"""Files of one package do not import each other in a circle, also inside functions and for
types.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

PACKAGES = (
    "blobcache",
    "cache",
    "capsules",
    "cli",
    "compilation",
    "compiler",
    "driverkit",
    "drivers.llvm",
    "execution",
    "export",
    "hal",
    "ipc",
    "ir",
    "loaders",
    "memory",
    "nnapi",
    "partitioning",
    "runtime",
    "sealed",
    "testing",
)
"""Packages without a circle. The list only grows."""


def modules(source: Path) -> dict[str, Path]:
    """Every module below *source*, a package by its `__init__`, by its dotted name."""
    found = {}
    for path in source.rglob("*.py"):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(name: str, files: Mapping[str, Path]) -> set[str]:
    """Those of *files* that module *name* imports, wherever in it the statement stands."""
    package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(files[name].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = alias.name
                while module and module not in files:
                    module = module.rpartition(".")[0]
                found.add(module)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                module = ".".join([*parents, *filter(None, [module])])
            for alias in node.names:
                part = f"{module}.{alias.name}"
                found.add(part if part in files else module)
    return (found & files.keys()) - {name}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of two and more that reach each other, each sorted."""

    def reached(start: str) -> Iterator[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for following in graph[todo.pop()] - seen:
                seen.add(following)
                todo.append(following)
                yield following

    reach = {name: set(reached(name)) for name in graph}
    found = {tuple(sorted(m for m in reach[n] if n in reach[m])) for n in graph if n in reach[n]}
    return sorted(map(list, found))


def circles_inside(package: str, source: Path = SOURCE) -> tuple[str, ...]:
    """The circles among the modules below `penstock.<package>`; the package's own `__init__` is not
    one of them.
    """
    prefix = f"penstock.{package}."
    files = {n: p for n, p in modules(source).items() if n.startswith(prefix)}
    found = circles({n: imported(n, files) for n in files})
    return tuple(" ".join(n.removeprefix(prefix) for n in circle) for circle in found)


def test_circles_count_imports_of_functions_and_for_types(tmp_path: Path) -> None:
    package = tmp_path / "penstock" / "x"
    (package / "inner").mkdir(parents=True)
    texts = {
        "__init__": "from penstock.x import a",
        "a": "from penstock.x.b import thing",
        "b": "def f():\n    from penstock.x import c",
        "c": "if TYPE_CHECKING:\n    import penstock.x.a",
        "d": "from .a import name",
        "inner/__init__": "from .. import d\nfrom .e import name",
        "inner/e": "from ..inner import name",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, "utf-8")
    assert circles_inside("x", tmp_path) == ("a b c", "inner inner.e")


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_no_circle_of_imports(package: str) -> None:
    assert circles_inside(package) == ()
