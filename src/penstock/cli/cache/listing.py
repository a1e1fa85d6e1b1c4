"""`penstock cache ls` and `show`: the entries of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from penstock.cli import options
from penstock.cli.cache.directory import SHORT, describe, find, open_cache, owner, short, when
from penstock.cli.declarations import argument
from penstock.cli.output import Output, milliseconds, shortened, size
from penstock.errors import counted

if TYPE_CHECKING:
    from penstock.cache import CacheEntry

Token: TypeAlias = Annotated[
    str,
    argument(
        "TOKEN",
        "The beginning of an entry's token, as 'ls' shows it, or a file of it.",
    ),
]

NO_INDEX: Final = (
    "nothing says what the entry is from: its index is missing, altered, not readable, or sealed "
    "under another state directory or key"
)


def ls(output: Output, directory: options.CacheDirectory = None) -> None:
    """List the entries, the last used first, measured placements ('bench --tune'), kept plans,
    measured costs and times of runs.
    """
    from penstock.cache.plans import KeptPlans
    from penstock.cache.verdicts import Calibrations, LearnedTimes, Verdicts

    cache = open_cache(directory)
    entries = cache.entries()
    total = sum(entry.nbytes for entry in entries)
    if entries:
        output.table(
            ("token", "device", "version", "size", "created", "used", "compile"),
            [
                (
                    *(short(e), owner(e), shortened(e.version), size(e.nbytes)),
                    *(when(e.created), when(e.used), compile_time(e)),
                )
                for e in entries
            ],
            whole=("token", "size", "compile"),
        )
    verdicts: list[dict[str, Any]] = [
        {
            "key": v.key,
            "model": v.model,
            "devices": list(dict.fromkeys(v.devices)),
            "accuracy": v.accuracy,
            "created": v.created,
        }
        for v in Verdicts(cache.directory).every()
    ]
    if verdicts:
        output.table(
            ("measured placement", "model", "devices", "class", "created"),
            [
                (key[:SHORT], model[:SHORT] or "not known", ", ".join(devices), kind, when(created))
                for key, model, devices, kind, created in (v.values() for v in verdicts)
            ],
            whole=("measured placement", "model", "class"),
        )
    plans: list[dict[str, Any]] = [
        {
            "key": p.key,
            "file": p.ingredients["file"],
            "devices": p.ingredients["devices"],
            "summary": p.summary,
            "created": p.created,
        }
        for p in KeptPlans(cache.directory).every()
    ]
    if plans:
        output.table(
            ("kept plan", "file", "devices", "plan", "created"),
            [
                (key[:SHORT], file[:SHORT], devices, summary, when(created))
                for key, file, devices, summary, created in (p.values() for p in plans)
            ],
            whole=("kept plan", "file"),
        )
    costs: list[dict[str, Any]] = [
        {
            "key": c.key,
            "device": c.device,
            "accuracy": c.accuracy,
            "threads": c.num_threads,
            "samples": c.samples,
            "created": c.created,
        }
        for c in Calibrations(cache.directory).every()
    ]
    if costs:
        output.table(
            ("measured cost", "device", "class", "threads", "models timed", "created"),
            [
                (key[:SHORT], *values, when(created))
                for key, *values, created in (c.values() for c in costs)
            ],
            whole=("measured cost",),
        )
    runs: list[dict[str, Any]] = [
        {
            "key": r.key,
            "plans": [
                {
                    "devices": list(dict.fromkeys(p.devices)),
                    "ns": p.ns,
                    "predicted_ns": p.predicted_ns,
                }
                for p in r.plans
            ],
            "created": r.created,
        }
        for r in LearnedTimes(cache.directory).every()
    ]
    if runs:
        output.table(
            ("time of runs", "plans", "created"),
            [
                (
                    r["key"][:SHORT],
                    "; ".join(
                        f"{', '.join(p['devices'])} {milliseconds(p['ns'])}" for p in r["plans"]
                    ),
                    when(r["created"]),
                )
                for r in runs
            ],
            whole=("time of runs",),
        )
    output.line(f"{how_many(entries)}, {size(total)} in {cache.directory}", "dim")
    output.json(
        {
            "directory": str(cache.directory),
            "entries": [describe(entry) for entry in entries],
            "verdicts": verdicts,
            "plans": plans,
            "costs": costs,
            "runs": runs,
            "nbytes": total,
        }
    )


def show(output: Output, token: Token, directory: options.CacheDirectory = None) -> None:
    """Show all of one entry: every ingredient of its key, and every file."""
    entry = find(open_cache(directory).entries(), token)
    output.table(
        ("entry", ""),
        [
            ("token", entry.token.hex()),
            ("binding", entry.binding.hex() or "not known"),
            ("device", owner(entry)),
            ("version", entry.version or "not known"),
            ("created", when(entry.created)),
            ("used", when(entry.used)),
            ("compile", compile_time(entry)),
            ("directory", str((*entry.model_cache, *entry.data_cache)[0].parent)),
        ],
    )
    if entry.ingredients:
        output.table(("ingredient", ""), list(entry.ingredients.items()), whole=("ingredient",))
    else:
        output.problems([NO_INDEX])
    output.table(
        ("file", "kind", "size"),
        [
            (path.name, kind, file_size(path))
            for kind, paths in (("model", entry.model_cache), ("data", entry.data_cache))
            for path in paths
        ],
        whole=("kind", "size"),
    )
    output.json(describe(entry))


def compile_time(entry: CacheEntry) -> str:
    """The driver's compile time."""
    return milliseconds(entry.compile_ns) if entry.device else "not known"


def how_many(entries: Sequence[CacheEntry]) -> str:
    return counted(len(entries), "entry", "entries")


def file_size(path: Path) -> str:
    """The exact size; another process may have removed the file."""
    try:
        return counted(path.lstat().st_size, "byte")
    except OSError:
        return "removed"
