"""The name that Penstock is installed by, which differs from the name that it is imported by."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "penstock-nn"
"""The distribution on the package index, normalised. The index's `penstock` is another project."""

FOREIGN: Final = "penstock"
"""A distribution of another project that installs an import package of the same name, and so overwrites this one."""


def install_command(extra: str) -> str:
    """The shell command that installs Penstock with *extra*, an optional dependency group of pyproject.toml."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
