"""The name that Penstock is installed by, which differs from the name that it is imported by."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "penstock-nn"
"""The distribution on the package index, normalised. The index's `penstock` is another project."""

FOREIGN: Final = "penstock"
"""A distribution of another project that installs an import package of the same name, and so overwrites this one."""


def install_command(extra: str) -> str:
    """The shell command that adds *extra*, an optional dependency group of pyproject.toml, to the Penstock that is installed.

    pip takes an installed distribution that satisfies the name for it, and asks the index for the packages of the group alone:
    the command works for an installation from a checkout too.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"
