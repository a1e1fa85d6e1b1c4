"""`penstock cache`: the entries of a compilation cache, their validity, and why one missed."""

from __future__ import annotations

import typer

from penstock.cli.cache.compiles import explain, prewarm
from penstock.cli.cache.listing import ls, show
from penstock.cli.cache.maintenance import clear, gc, verify

__all__ = ["cache"]

cache = typer.Typer(name="cache", invoke_without_command=True)


@cache.callback()
def commands(context: typer.Context) -> None:
    """Look after the compilation cache."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


for command in (ls, show, verify, explain, gc, clear, prewarm):
    cache.command()(command)
