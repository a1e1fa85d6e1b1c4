"""The `penstock` program."""

from __future__ import annotations

import sys

from penstock.cli.program import perform


def main() -> None:
    """The `penstock` program."""
    perform(sys.argv[1:], _with_typer)


def _with_typer(given: list[str]) -> object:
    from penstock.cli.application import group

    return group().answer(given)
