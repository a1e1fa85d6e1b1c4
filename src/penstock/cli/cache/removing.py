"""`penstock cache gc` and `clear`: making room."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options
from penstock.cli.cache.directory import SHORT, describe, open_cache, owner, short, when
from penstock.cli.cache.listing import how_many
from penstock.cli.failures import Unfinished, UsageError
from penstock.cli.output import Output, output_of, size
from penstock.ipc.text import printable

if TYPE_CHECKING:
    from penstock.cache import Cache, CacheEntry, Removed


def gc(
    context: typer.Context,
    max_mib: Annotated[
        int | None,
        typer.Option(
            "--max-mib",
            min=0,
            metavar="N",
            help="Most MiB that may stay; without it the knob cache_limit_mib.",
        ),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Remove the entries unused for longest until the rest fits, and what processes that died left
    behind.
    """
    cache = open_cache(directory)
    removed = cache.gc(None if max_mib is None else max_mib << 20)
    report(output_of(context), cache, removed)


def clear(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    verdict: Annotated[
        str | None,
        typer.Option(
            "--verdict",
            metavar="KEY",
            help="Remove this measured placement alone: the beginning of its key, as 'ls' shows it.",
        ),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Remove every entry that nobody uses at the moment, and the placements that were measured."""
    output = output_of(context)
    cache = open_cache(directory)
    if verdict is not None:
        forget(output, cache, verdict)
        return
    if (entries := cache.entries()) and not yes:
        question = f"remove {how_many(entries)} from {cache.directory}?"
        if output.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{question} --yes says so where nobody can be asked")
        if not typer.confirm(printable(question), err=True):
            raise Unfinished("nothing was removed")
    report(output, cache, cache.clear())


def forget(output: Output, cache: Cache, beginning: str) -> None:
    """Removes the one measured placement whose key begins so. Raises `UsageError` for none, or
    several.
    """
    from penstock.cache.verdicts import Verdicts

    verdicts = Verdicts(cache.directory)
    found = [v.key for v in verdicts.every() if beginning and v.key.startswith(beginning)]
    if len(found) != 1:
        count = "no" if not found else str(len(found))
        raise UsageError(
            f"--verdict {beginning}: {count} measured placements begin so; 'penstock cache ls' lists them"
        )
    verdicts.remove(found[0])
    output.line(f"removed the measured placement {found[0][:SHORT]}", "dim")
    output.json({"directory": str(cache.directory), "removed": found[0]})


def report(output: Output, cache: Cache, removed: Removed) -> None:
    """What went, and what is left. Raises `Unfinished` where something could not be removed."""
    left = cache.entries()
    if removed:
        output.table(
            ("removed", "device", "size", "used"),
            [(short(e), owner(e), size(e.nbytes), when(e.used)) for e in removed],
            whole=("removed", "size"),
        )
    output.line(
        f"{how_many(removed)} removed, {size(nbytes(removed))}; "
        f"{how_many(left)} left, {size(nbytes(left))}",
        "dim",
    )
    output.json(
        {
            "directory": str(cache.directory),
            "removed": [describe(entry) for entry in removed],
            "nbytes_removed": nbytes(removed),
            "left": len(left),
            "nbytes": nbytes(left),
            "not_removed": removed.kept,
            "reason": removed.reason,
        }
    )
    if removed.kept:
        raise Unfinished(f"{removed.kept} could not be removed: {removed.reason}")


def nbytes(entries: list[CacheEntry]) -> int:
    return sum(entry.nbytes for entry in entries)
