"""Settings of the documentation site, which `scripts/docs` builds.

The source tree is the whole repository, so that links between pages lead somewhere in a checkout
and on the site alike.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.pycode import ModuleAnalyzer

from penstock.knobs import KNOBS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools import generate_operations

project = "Penstock"
author = "The Penstock authors"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["*.md", "docs/**", "examples/**.md", "benchmarks/**.md"]
exclude_patterns = [
    ".*",
    "build",
    "benchmarks/results",
    "docs/soak",
    "docs/decisions/0000-template.md",
]
default_role = "literal"  # docstrings quote names as Markdown does
# Annotations name types as their module does; several modules have a `Device`.
suppress_warnings = ["ref.python"]

smartquotes = False  # options have two hyphens
myst_heading_anchors = 4

autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "Penstock"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


def commands() -> str:
    """The commands with their arguments, from the program itself."""
    words = [sys.executable, "-m", "typer", "penstock.cli.application", "utils", "docs"]
    done = subprocess.run(
        [*words, "--name", "penstock"], check=True, capture_output=True, text=True
    )
    _, _, rest = done.stdout.partition("**Usage**")
    return re.sub(r"(?m)^(#+) ", r"#\1 ", rest.partition("## ")[1] + rest.partition("## ")[2])


def knobs() -> str:
    """A table of the settings."""
    rows = ["| name | type | default | what it does |", "|---|---|---|---|"]
    for knob in KNOBS.values():
        kind = ", ".join(map(str, knob.choices)) or knob.kind.__name__
        cells = (f"`{knob.name}`", kind, f"`{knob.default!r}`", knob.doc)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


ELSEWHERE = {
    "penstock": {"CancelToken", "Model", "ProgressEvent"},
    "penstock.memory": {"BufferDesc"},
    "penstock.driverkit.site": {"Site"},
    "penstock.errors": {"counted", "driver_error_classes"},
}
"""Names of a package that are documented where they are defined, or not on these pages."""


def api(package: str, *names: str) -> str:
    """Each public name of the *package*, or these *names* of it, with its docstring."""
    module = importlib.import_module(package)
    constants = constants_below(module)
    blocks = ["```{eval-rst}", f".. automodule:: {package}", "   :no-members:", ""]
    for name in names or getattr(module, "__all__", [*own_names(module), *constants]):
        if name.startswith("_") or name in ELSEWHERE.get(package, ()):
            continue
        value = getattr(module, name)
        if inspect.isclass(value) and value.__module__.startswith("penstock"):
            blocks.append(f".. autoclass:: {package}.{name}")
        elif inspect.isroutine(value):
            blocks.append(f".. autofunction:: {package}.{name}")
        else:
            shown = repr(value)
            blocks.append(f".. py:data:: {name}")
            blocks += [f"   :value: {shown}"] * (len(shown) <= 80 and "<" not in shown)
            blocks.append("")
            blocks += [f"   {line}" for line in constants.get(name, ())]
        blocks.append("")
    return "\n".join([*blocks, "```"])


def own_names(module: ModuleType) -> list[str]:
    """The classes and functions that the *module* defines."""
    return [
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isroutine(value))
        and value.__module__ == module.__name__
    ]


def constants_below(package: ModuleType) -> dict[str, list[str]]:
    """The texts below the constants of the *package* and of its modules, by name."""
    found: dict[str, list[str]] = {}
    below = pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}.")
    for module in (package.__name__, *(module.name for module in below)):
        docs = ModuleAnalyzer.for_module(module).find_attr_docs()
        found |= {name: text for (owner, name), text in docs.items() if not owner}
    return found


GENERATED = {
    "commands": commands,
    "knobs": knobs,
    "operations": generate_operations.page,
}


def fill_in(_app: Any, _page: str, content: list[str]) -> None:
    """Put what is generated into the pages that ask for it."""
    for marker in re.findall(r"(?m)^<!-- generated: .* -->$", content[0]):
        name = marker.removeprefix("<!-- generated: ").removesuffix(" -->")
        text = GENERATED[name]() if name in GENERATED else api(*name.split())
        content[0] = content[0].replace(marker, text)


def mark_code(
    _app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    """Make what a docstring indents as code, as in Markdown, a literal block."""
    for place in range(len(lines) - 1, 1, -1):
        if lines[place].startswith("    ") and not lines[place - 1]:
            before = next((line for line in reversed(lines[:place]) if line), "")
            if before[:1].isalpha() and not before.endswith("::"):
                lines[place:place] = ["::", ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", mark_code)
    app.connect("source-read", fill_in)
