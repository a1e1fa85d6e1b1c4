"""`penstock cache verify`: whether drivers would accept what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options
from penstock.cli.cache.directory import find, open_cache, owner, short
from penstock.cli.cache.listing import how_many
from penstock.cli.failures import Unfinished
from penstock.cli.output import output_of
from penstock.errors import NotYetWritten

if TYPE_CHECKING:
    from penstock.cache import CacheEntry
    from penstock.errors import CacheError


def verify(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Argument(metavar="TOKEN", help="The beginning of one entry's token; all without it."),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Verify every entry against its driver's registry; fails where one would be refused."""
    output = output_of(context)
    cache = open_cache(directory)
    wanted = None if token is None else find(cache.entries(), token).token
    results = [r for r in cache.verify() if wanted is None or r[0].token == wanted]
    refused = [(entry, error) for entry, error in results if is_refused(error)]
    if results:
        output.table(
            ("token", "device", "verdict"),
            [(short(entry), owner(entry), str(error or "sound")) for entry, error in results],
            whole=("token",),
        )
    output.line(f"{how_many([e for e, _ in results])} verified, {len(refused)} refused", "dim")
    output.json(
        {
            "directory": str(cache.directory),
            "verified": len(results),
            "refused": len(refused),
            "entries": [describe(entry, error) for entry, error in results],
        }
    )
    if refused:
        entry, error = refused[0]
        more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise Unfinished(f"entry {short(entry)} is refused: {error}{more}")


def is_refused(error: CacheError | None) -> bool:
    """An entry that its driver has not written is a miss, and nobody's defect."""
    return error is not None and not isinstance(error, NotYetWritten)


def describe(entry: CacheEntry, error: CacheError | None) -> dict[str, object]:
    """What `--json` says: *error* is null for a sound entry."""
    return {
        "token": entry.token.hex(),
        "device": entry.device or None,
        "sound": error is None,
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
    }
