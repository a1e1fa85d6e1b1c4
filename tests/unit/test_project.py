"""What pyproject.toml, the lock and the documents promise about each other."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import penstock
from penstock import distribution

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCK = (ROOT / "requirements.lock").read_text("utf-8")

# Import names that differ from the distribution's.
DISTRIBUTION = {
    "PIL": "pillow",
    "google": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-api",
    "ml_dtypes": "ml-dtypes",
    "prometheus_client": "prometheus-client",
}
# Below every contract, and so in none of their lists.
LEAVES = {
    *(
        "__init__",
        "__main__",
        "arguments",
        "blobcache",
        "closing",
        "distribution",
        "errors",
        "faults",
        "facade",
        "interrupts",
        "knobs",
        "logs",
        "processes",
        "sealed",
        "vulkan",
    )
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


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The first names of the modules that the file at *path* imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return frozenset(names)


def third_party_imports(folder: str = "", but: tuple[str, ...] = ()) -> set[str]:
    """Distributions that the package imports: its *folder* alone, or all *but* some folders."""
    names: set[str] = set()
    for path in (SOURCE / folder).rglob("*.py"):
        if not any(path.is_relative_to(SOURCE / other) for other in but):
            names |= imports_of(path)
    return {DISTRIBUTION.get(n, n) for n in names - set(sys.stdlib_module_names) - {"penstock"}}


def test_lock_covers_every_direct_dependency() -> None:
    assert direct_dependencies() - set(locked()) == set()


def test_every_locked_package_is_hashed() -> None:
    assert [name for name, entry in locked().items() if "--hash=sha256:" not in entry] == []


def test_lock_names_no_host() -> None:
    assert re.findall(r"(?m)^.*(?:://|--index|--extra|--find).*$", LOCK) == []


def test_dependencies_are_those_the_package_imports() -> None:
    """Of extras, `penstock.testing.strategies` imports hypothesis, of `test`; `penstock.serve` all
    that `serve` lists, `penstock.remotecache` all that `fleet` lists, `penstock.fleet` all that
    `ray` lists, and the driver `webgpu` all that `gpu` lists.
    """
    wanted = requirement_names(PYPROJECT["project"]["dependencies"])
    own = {"serve": "serve", "remotecache": "fleet", "fleet": "ray", "drivers/webgpu": "gpu"}
    brought: set[str] = set()
    for package, extra in own.items():
        imported = third_party_imports(package) - wanted
        assert imported == requirement_names(PYPROJECT["project"]["optional-dependencies"][extra])
        brought |= imported
    assert third_party_imports() - wanted == {"hypothesis", *brought}
    assert third_party_imports(but=tuple(own)) - wanted == {"hypothesis"}
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


INSTALLS = re.compile(r"pip install (?:--\S+ )*(['\"]?)([^\s'\"`;,)#]*)\1")
"""A command that installs one thing, in prose or code, with what it installs."""


def install_commands() -> list[tuple[str, str]]:
    """(file, requirement) of every `pip install` of Penstock that a reader is told, in documents
    and in code.
    """
    folders = ("docs", "examples", "scripts", "src", "tests", ".ci")
    files = [
        *ROOT.glob("*.md"),
        *(f for folder in folders for f in (ROOT / folder).rglob("*") if f.is_file()),
    ]
    found = []
    for file in files:
        if file.suffix not in {".md", ".py", ".toml", ""} or "soak" in file.parts:
            continue
        for _, wanted in INSTALLS.findall(file.read_text("utf-8")):
            if wanted.startswith((".", "penstock")) and "{" not in wanted:
                found.append((str(file.relative_to(ROOT)), wanted.replace("\\", "")))
    return found


def test_install_commands_name_the_distribution_and_extras_that_exist() -> None:
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    found = install_commands()
    assert {file for file, _ in found} >= {"README.md", "docs/openvino.md", "docs/onnx.md"}
    wrong = []
    for file, wanted in found:
        name, _, rest = wanted.partition("[")
        given = set(filter(None, rest.rstrip("]").split(",")))
        if name not in {".", "penstock-nn"} or not given <= extras:
            wrong.append(f"{file}: {wanted}")
    assert wrong == []


def test_documents_install_extras_from_a_checkout_before_an_index() -> None:
    found = install_commands()
    for file in {file for file, _ in found if file.endswith(".md")}:
        wanted = [w for f, w in found if f == file and "[" in w]
        for place, one in enumerate(wanted):
            if not one.startswith("."):
                assert one.replace("penstock-nn", ".") in wanted[:place], f"{file}: {one}"


def test_install_commands_of_errors_name_extras_that_exist() -> None:
    called = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "install_command(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "install_command":
                (extra,) = node.args
                assert isinstance(extra, ast.Constant), f"{path}: the extra is not written out"
                called.add(extra.value)
    assert called == {"fleet", "gpu", "onnx", "onnxruntime", "openvino", "ray", "serve", "xnnpack"}
    assert called <= set(PYPROJECT["project"]["optional-dependencies"])
    assert distribution.install_command("onnx") == "pip install 'penstock-nn[onnx]'"
    assert PYPROJECT["project"]["name"] == distribution.DISTRIBUTION


def test_changelog_has_this_version_on_top() -> None:
    headings = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert headings[0] == penstock.__version__


def test_changelog_lists_nothing_as_missing() -> None:
    headings = re.findall(r"(?m)^#+ (.+)", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert [h for h in headings if re.search(r"not (there )?yet|missing", h, re.IGNORECASE)] == []


def listed(name: str, key: str) -> set[str]:
    return {module.removeprefix("penstock.") for module in contract(name)[key]}


def test_contracts_list_every_package() -> None:
    assert listed("nobody names a driver", "source_modules") == packages() - {"drivers"}
    at_the_waist = {"compiler", "driverkit", "drivers", "export", "hal", "ir", "memory", "threads"}
    assert listed("drivers see only the waist", "forbidden_modules") == packages() - at_the_waist
