"""`penstock cache verify`: whether drivers would accept what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import options
from penstock.cli.cache.directory import SHORT, find, open_cache, owner, short
from penstock.cli.cache.listing import how_many
from penstock.cli.failures import Unfinished
from penstock.cli.output import output_of
from penstock.errors import NotYetWritten, Unreadable, counted

if TYPE_CHECKING:
    from penstock.cache import Cache, CacheEntry
    from penstock.errors import CacheError

NOT_TRUSTED: Final = (
    "its file is altered, cut short, not readable, or sealed under another state directory or key; measuring again "
    "('bench --tune') writes it anew, and 'penstock cache clear' removes it"
)


def verify(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Argument(metavar="TOKEN", help="The beginning of one entry's token; all without it."),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Verify every entry against its driver's registry, and the seals of the placements that were
    measured; fails where one would be refused.
    """
    output = output_of(context)
    cache = open_cache(directory)
    wanted = None if token is None else find(cache.entries(), token).token
    results = [r for r in cache.verify() if wanted is None or r[0].token == wanted]
    placements = verified_placements(cache) if wanted is None else []
    refused = [(f"entry {short(e)}", error) for e, error in results if is_refused(error)]
    refused += [(f"the measured placement {k[:SHORT]}", error) for k, error in placements if error]
    if results:
        output.table(
            ("token", "device", "verdict"),
            [(short(entry), owner(entry), str(error or "sound")) for entry, error in results],
            whole=("token",),
        )
    if placements:
        output.table(
            ("measured placement", "verdict"),
            [(key[:SHORT], str(error or "sound")) for key, error in placements],
            whole=("measured placement",),
        )
    what = how_many([e for e, _ in results])
    if placements:
        what += f" and {counted(len(placements), 'measured placement')}"
    output.line(f"{what} verified, {len(refused)} refused", "dim")
    output.json(
        {
            "directory": str(cache.directory),
            "verified": len(results) + len(placements),
            "refused": len(refused),
            "entries": [describe(entry, error) for entry, error in results],
            "verdicts": [{"key": key, **judged(error)} for key, error in placements],
        }
    )
    if refused:
        name, error = refused[0]
        more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise Unfinished(f"{name} is refused: {error}{more}")


def verified_placements(cache: Cache) -> list[tuple[str, CacheError | None]]:
    """The key of each measured placement, with None for one that a compile would take, else why it
    would not.
    """
    from penstock.cache.verdicts import Verdicts

    verdicts = Verdicts(cache.directory)
    sound: list[tuple[str, CacheError | None]] = [(v.key, None) for v in verdicts.every()]
    return [*sound, *((key, Unreadable(NOT_TRUSTED)) for key in verdicts.untrusted())]


def is_refused(error: CacheError | None) -> bool:
    """An entry that its driver has not written is a miss, and nobody's defect."""
    return error is not None and not isinstance(error, NotYetWritten)


def describe(entry: CacheEntry, error: CacheError | None) -> dict[str, object]:
    """What `--json` says: *error* is null for a sound entry."""
    return {
        "token": entry.token.hex(),
        "device": entry.device or None,
        **judged(error),
    }


def judged(error: CacheError | None) -> dict[str, object]:
    return {
        "sound": error is None,
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
    }
