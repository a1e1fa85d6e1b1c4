"""Commands that are documented and not there yet: each says so in one line, whatever follows it."""

from __future__ import annotations

from typing import Final, NoReturn

import typer

from penstock.errors import NotAvailable

ANYTHING: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that reads no further."""


def replay(context: typer.Context) -> None:
    """Repeat a recorded run (not available yet)."""
    not_yet(context)


def not_yet(context: typer.Context) -> NoReturn:
    """Raises `NotAvailable`, which exits with 2."""
    raise NotAvailable(f"'{context.info_name}' is not available yet in this version")
