"""`penstock cache verify`, `gc` and `clear`: verify entries, and remove them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Struct

from penstock.cache.records import SealedRecords
from penstock.cli import options
from penstock.cli.cache.directory import SHORT, describe, find, open_cache, owner, short, when
from penstock.cli.cache.listing import how_many
from penstock.cli.declarations import argument, option
from penstock.cli.failures import Unfinished, UsageError
from penstock.cli.output import Output, size
from penstock.errors import NotYetWritten, Unreadable, counted
from penstock.logs import printable

if TYPE_CHECKING:
    from penstock.cache import Cache, CacheEntry, Removed
    from penstock.errors import CacheError


NOT_TRUSTED: Final = (
    "its file is altered, cut short, not readable, or sealed under another state directory or key; "
    "{remedy} writes it anew, and 'penstock cache clear' removes it"
)


class RecordKind(Struct, frozen=True):
    """Records that are no entries: their name in tables and in `--json`, where they are, what
    writes one anew, and an irregular plural of the name.
    """

    name: str
    field: str
    kind: type[SealedRecords[Any]]
    remedy: str
    plural: str = ""


def record_kinds() -> tuple[RecordKind, ...]:
    """The kinds of records that a person may ask about."""
    from penstock.cache.plans import KeptPlans
    from penstock.cache.verdicts import Calibrations, LearnedTimes, Verdicts

    compiling = "the next compile of its model"
    return (
        RecordKind("measured placement", "verdicts", Verdicts, "measuring again ('bench --tune')"),
        RecordKind("kept plan", "plans", KeptPlans, compiling),
        RecordKind("measured cost", "costs", Calibrations, "'penstock calibrate'"),
        RecordKind(
            "time of runs", "runs", LearnedTimes, "running its model again", "times of runs"
        ),
    )


def verify(
    output: Output,
    token: Annotated[
        str | None,
        argument("TOKEN", "The beginning of one entry's token; all without it."),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Verify every entry against its driver's registry, and the seals of measured placements, kept
    plans, measured costs and times of runs.

    Fails if one would be refused.
    """
    cache = open_cache(directory)
    wanted = None if token is None else find(cache.entries(), token).token
    results = [r for r in cache.verify() if wanted is None or r[0].token == wanted]
    records = {
        one: judged_records(one.kind(cache.directory), NOT_TRUSTED.format(remedy=one.remedy))
        for one in record_kinds()
        if wanted is None
    }
    # An entry that its driver has not written yet is only a miss.
    refused = [
        (f"entry {short(e)}", error)
        for e, error in results
        if error is not None and not isinstance(error, NotYetWritten)
    ]
    for one, found in records.items():
        refused += [(f"the {one.name} {key[:SHORT]}", error) for key, error in found if error]
    if results:
        output.table(
            ("token", "device", "verdict"),
            [(short(entry), owner(entry), str(error or "sound")) for entry, error in results],
            whole=("token",),
        )
    parts = [how_many([e for e, _ in results])]
    for one, found in records.items():
        if found:
            rows = [(key[:SHORT], str(error or "sound")) for key, error in found]
            output.table((one.name, "verdict"), rows, whole=(one.name,))
            parts.append(counted(len(found), one.name, one.plural))
    what = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    output.line(f"{what} verified, {len(refused)} refused", "dim")
    output.json(
        {
            "directory": str(cache.directory),
            "verified": len(results) + sum(map(len, records.values())),
            "refused": len(refused),
            "entries": [
                {"token": e.token.hex(), "device": e.device or None, **judged(error)}
                for e, error in results
            ],
            **{
                one.field: [{"key": key, **judged(error)} for key, error in records.get(one, ())]
                for one in record_kinds()
            },
        }
    )
    if refused:
        name, error = refused[0]
        more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise Unfinished(f"{name} is refused: {error}{more}")


def judged_records(records: SealedRecords[Any], why: str) -> list[tuple[str, CacheError | None]]:
    """Each record by its key, with None if it is authentic, else the error with the text *why*."""
    sound = [(record.key, None) for record in records.every()]
    return [*sound, *((key, Unreadable(why)) for key in records.untrusted())]


def judged(error: CacheError | None) -> dict[str, object]:
    """The verdict for `--json`: *error* is null if an entry or a placement is valid."""
    described = None if error is None else {"type": type(error).__name__, "message": str(error)}
    return {"sound": error is None, "error": described}


def gc(
    output: Output,
    max_mib: Annotated[
        int | None,
        option(
            "--max-mib N", "Most MiB that may stay; without it the knob cache_limit_mib.", least=0
        ),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Remove the entries unused for longest until the rest fits, and files of dead processes."""
    cache = open_cache(directory)
    removed = cache.gc(None if max_mib is None else max_mib << 20)
    report(output, cache, removed)


def clear(
    output: Output,
    yes: Annotated[bool, option("--yes -y", "Do not ask.")] = False,
    verdict: Annotated[
        str | None,
        option(
            "--verdict KEY",
            "Remove this measured placement alone: the beginning of its key, as 'ls' shows it.",
        ),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Remove every entry that no process uses, the measured placements and the kept plans."""
    cache = open_cache(directory)
    if verdict is not None:
        forget(output, cache, verdict)
        return
    if (entries := cache.entries()) and not yes:
        question = f"remove {how_many(entries)} from {cache.directory}?"
        if output.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{question} --yes says so where nobody can be asked")
        from typer import confirm

        if not confirm(printable(question), err=True):
            raise Unfinished("nothing was removed")
    report(output, cache, cache.clear())


def forget(output: Output, cache: Cache, beginning: str) -> None:
    """Removes the one measured placement with this prefix; otherwise raises `UsageError`."""
    from penstock.cache.verdicts import Verdicts

    verdicts = Verdicts(cache.directory)
    found = [v.key for v in verdicts.every() if beginning and v.key.startswith(beginning)]
    if len(found) != 1:
        raise UsageError(
            f"--verdict {beginning}: {len(found) or 'no'} measured placements begin so; 'penstock "
            "cache ls' lists them"
        )
    verdicts.remove(found[0])
    output.line(f"removed the measured placement {found[0][:SHORT]}", "dim")
    output.json({"directory": str(cache.directory), "removed": found[0]})


def report(output: Output, cache: Cache, removed: Removed) -> None:
    """Prints what was removed and what remains. Raises `Unfinished` if something failed."""
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
