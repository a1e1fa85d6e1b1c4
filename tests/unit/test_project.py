"""What pyproject.toml, the lock and the documents promise about each other."""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCK = (ROOT / "requirements.lock").read_text("utf-8")

# Import names that differ from the distribution's.
DISTRIBUTION = {"PIL": "pillow", "ml_dtypes": "ml-dtypes"}
# Below every contract, and so in none of their lists.
LEAVES = {
    *(
        "__init__",
        "__main__",
        "arguments",
        "blobcache",
        "closing",
        "errors",
        "facade",
        "knobs",
        "logs",
        "processes",
        "sealed",
    ),
}


def requirement_names(requirements: list[str]) -> set[str]:
    return {
        re.split(r"[<>=!~;\[ ]", r, maxsplit=1)[0].lower().replace("_", "-") for r in requirements
    }


def direct_dependencies() -> set[str]:
    project = PYPROJECT["project"]
    groups = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PYPROJECT["dependency-groups"].values(),
    ]
    return set().union(*map(requirement_names, groups))


def locked() -> dict[str, str]:
    """Each locked package with the whole of its entry."""
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", LOCK).strip())
    return {entry.split("==")[0]: entry for entry in entries}


def contract(name: str) -> dict[str, Any]:
    contracts: list[dict[str, Any]] = PYPROJECT["tool"]["importlinter"]["contracts"]
    return next(c for c in contracts if c["name"] == name)


def packages() -> set[str]:
    """The packages and modules directly below `penstock`."""
    found = {p.parent.name for p in SOURCE.glob("*/__init__.py")} | {
        p.stem for p in SOURCE.glob("*.py")
    }
    return found - LEAVES


def third_party_imports() -> set[str]:
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return {DISTRIBUTION.get(n, n) for n in names - set(sys.stdlib_module_names) - {"penstock"}}


def test_lock_covers_every_direct_dependency() -> None:
    assert direct_dependencies() - set(locked()) == set()


def test_every_locked_package_is_hashed() -> None:
    assert [name for name, entry in locked().items() if "--hash=sha256:" not in entry] == []


def test_lock_names_no_host() -> None:
    assert re.findall(r"(?m)^.*(?:://|--index|--extra|--find).*$", LOCK) == []


def test_dependencies_are_those_the_package_imports() -> None:
    """Only `penstock.testing.strategies` imports something of an extra: hypothesis, of `test`."""
    wanted = requirement_names(PYPROJECT["project"]["dependencies"])
    assert third_party_imports() - wanted == {"hypothesis"}
    assert wanted - third_party_imports() == set()
    assert "hypothesis" in requirement_names(PYPROJECT["project"]["optional-dependencies"]["test"])
    importers = [
        p.name
        for p in SOURCE.rglob("*.py")
        if re.search(r"(?m)^(import|from) hypothesis", p.read_text("utf-8"))
    ]
    assert importers == ["strategies.py"]


def test_every_direct_dependency_is_explained() -> None:
    rows = re.findall(
        r"(?m)^\| `([^`]+)` \|", (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    )
    assert set(rows) == direct_dependencies()


def test_changelog_has_this_version_on_top() -> None:
    headings = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert headings[0] == penstock.__version__


def listed(name: str, key: str) -> set[str]:
    return {module.removeprefix("penstock.") for module in contract(name)[key]}


def test_contracts_list_every_package() -> None:
    assert listed("nobody names a driver", "source_modules") == packages() - {"drivers"}
    at_the_waist = {"drivers", "engines", "export", "hal", "ir", "kernels", "memory"}
    assert listed("drivers see only the waist", "forbidden_modules") == packages() - at_the_waist


def glossary_names() -> list[str]:
    """Every name of the glossary's first columns that is not marked as still to come."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8").split("## Names", maxsplit=1)[1]
    cells = re.findall(r"(?m)^\| ([^|]+) \|", text)
    names = [
        n for cell in cells for n in re.findall(r"`([a-z_]+(?:\.\w+)+|[a-z]+|[A-Z]\w+)`(?!†)", cell)
    ]
    return sorted({n for n in names if n not in {"None", "penstock.drivers", "reference"}})


@pytest.mark.parametrize("name", glossary_names())
def test_glossary_names_exist(name: str) -> None:
    try:
        pkgutil.resolve_name(f"penstock.{name}")
    except AttributeError:  # a field of a struct is an instance attribute of its class
        owner, _, field = name.rpartition(".")
        assert field in pkgutil.resolve_name(f"penstock.{owner}").__annotations__


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "docs" / "decisions").glob("*.md")))
def test_decision_records_have_their_parts(name: str) -> None:
    text = (ROOT / "docs" / "decisions" / name).read_text("utf-8")
    number = name.split("-", maxsplit=1)[0]
    assert text.startswith(f"# {number if number != '0000' else 'NNNN'}: ")
    assert "\nStatus: " in text
