"""`penstock cache publish`, `renew`, `prune` and `refresh`: entries of shared stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from penstock.cli import options
from penstock.cli.cache.compiles import compile_arguments
from penstock.cli.cache.directory import SHORT, named_directory
from penstock.cli.declarations import argument, option
from penstock.cli.failures import FileError, Unfinished, UsageError
from penstock.cli.options import Key, assumed_shapes, in_words
from penstock.cli.output import Output, size
from penstock.errors import CacheError, ModelError, counted

if TYPE_CHECKING:
    from penstock.runtime.publishing import PublishedStep

Url: TypeAlias = Annotated[
    str | None, option("--store URL", "The shared store; without it the knob cache_store.")
]

_SECONDS: Final = 60.0


def publish(
    output: Output,
    models: Annotated[list[str], argument("MODEL", "A .tflite or .onnx file, or more.")],
    key: Key,
    baselines: Annotated[
        str | None,
        option(
            "--for LIST",
            "Processor baselines to compile for, with commas between, such as "
            "x86-64-v3,armv8.2-a+dotprod; without it for processors with the features of this one.",
        ),
    ] = None,
    store: Url = None,
) -> None:
    """Compile every MODEL and publish its entries in a shared store, signed with the key of the
    knob store_key.

    The options are those of the programs that will load them.
    """
    from penstock.cache.info import default_directory
    from penstock.cli import opening
    from penstock.runtime.publishing import publish_models

    if key.portable is not None:
        raise UsageError("--portable is spelled --for here")
    arguments = compile_arguments(key)
    del arguments["portable"]
    directory = (
        default_directory() if key.directory is None else str(named_directory(key.directory))
    )
    wanted = named_baselines(baselines)
    opening.warn_of_settings(output)
    rows: list[tuple[str, ...]] = []
    described: list[dict[str, Any]] = []
    problems: list[str] = []
    notes: list[str] = []
    for path in models:
        loaded = opening.load(path)
        given = arguments["shapes"]
        if likely := assumed_shapes(loaded.model, key.signature, given):
            notes.append(f"{path}: compiled for {in_words(likely)}; --shape gives another shape")
        shapes = {**likely, **(given or {})} or None
        try:
            (steps,) = publish_models(
                [loaded.model], directory, store, wanted, **{**arguments, "shapes": shapes}
            )
        except ModelError as error:
            raise FileError(path, str(error)) from error
        rows += [(path, *row(step)) for step in steps]
        described += [{"model": path, **describe(step)} for step in steps]
        problems += [f"{path}: {step.device}: {step.problem}" for step in steps if step.problem]
    output.table(
        ("model", "device", "for", "token", "bytes", "outcome"), rows, whole=("device", "token")
    )
    output.notes(notes)
    output.json({"steps": described, "problems": problems, "notes": notes})
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise Unfinished(f"{problems[0]}{more}")


def named_baselines(text: str | None) -> Sequence[str | None]:
    """The baselines of `--for`. Raises `UsageError`."""
    if text is None:
        return (None,)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--for {text!r}: it must be names with commas between")
    return list(dict.fromkeys(names))


def row(step: PublishedStep) -> tuple[str, ...]:
    return (
        step.device,
        step.portable or "this processor",
        step.token.hex()[:SHORT],
        str(step.nbytes or ""),
        outcome(step),
    )


def outcome(step: PublishedStep) -> str:
    if step.problem:
        return f"not published: {step.problem}"
    if not step.token:
        return "not cached"
    return "published" if step.is_new else "was there"


def describe(step: PublishedStep) -> dict[str, Any]:
    """A step for `--json`."""
    return {
        "device": step.device,
        "for": step.portable,
        "token": step.token.hex() or None,
        "nbytes": step.nbytes,
        "new": step.is_new,
        "problem": step.problem or None,
    }


def renew(output: Output, store: Url = None) -> None:
    """Sign a shared store's timestamp again, and the publisher's lists, so that they stay valid."""
    from penstock.remotecache.publishing import Publisher
    from penstock.remotecache.settings import own_key, remote_at

    publisher = Publisher(remote_at(store, _SECONDS), own_key())
    publisher.renew()
    output.line(f"renewed by {publisher.name}")
    output.json({"publisher": publisher.name})


def prune(
    output: Output,
    grace_hours: Annotated[
        int | None,
        option(
            "--grace-hours N",
            "Keep what was written or superseded in the last N hours; without it 24.",
            least=1,
        ),
    ] = None,
    unlist_days: Annotated[
        int | None,
        option(
            "--unlist-days N",
            "First take entries that were not published for N days out of the publisher's lists.",
            least=1,
        ),
    ] = None,
    store: Url = None,
) -> None:
    """Remove from a shared store what nobody needs: superseded lists, entries that none names, dead
    leases and writers' files.

    Machines may read and publish meanwhile.
    """
    from datetime import UTC, datetime, timedelta

    from penstock.remotecache.pruning import GRACE, prune
    from penstock.remotecache.publishing import Publisher
    from penstock.remotecache.settings import own_key, remote_at

    remote = remote_at(store, _SECONDS)
    publisher = Publisher(remote, own_key())
    unlisted = 0
    if unlist_days is not None:
        unlisted = publisher.unlist(datetime.now(UTC).date() - timedelta(days=unlist_days))
    grace = GRACE if grace_hours is None else timedelta(hours=grace_hours)
    pruned = prune(remote, publisher, grace)
    output.line(f"{counted(unlisted, 'entry', 'entries')} taken out of the lists")
    output.line(
        f"removed {pruned.metadata} of metadata, {counted(pruned.entries, 'entry', 'entries')}, "
        f"{counted(pruned.leases, 'lease')}, {counted(pruned.unfinished, 'file')} of dead writers; "
        f"{size(pruned.nbytes)}"
    )
    output.json(
        {
            "unlisted": unlisted,
            "metadata": pruned.metadata,
            "entries": pruned.entries,
            "leases": pruned.leases,
            "unfinished": pruned.unfinished,
            "nbytes": pruned.nbytes,
            "needed": pruned.needed,
        }
    )
    if pruned.needed:
        raise Unfinished(
            "published while they were removed, so publish them again: " + ", ".join(pruned.needed)
        )


def refresh(output: Output, store: Url = None, directory: options.CacheDirectory = None) -> None:
    """Read a shared store's metadata, and refuse local copies of publishers that were revoked."""
    from penstock.cache.info import default_directory
    from penstock.cache.store import Store
    from penstock.remotecache.sealing import refuse_revoked
    from penstock.remotecache.settings import remote_at

    remote = remote_at(store, _SECONDS)
    refused: CacheError | None = None
    try:
        remote.metadata.refresh()
    except CacheError as error:
        refused = error
    place = default_directory() if directory is None else str(named_directory(directory))
    count = refuse_revoked(remote, Store(place))
    publishers = sorted(remote.metadata.publishers())
    output.line(f"publishers: {', '.join(publishers)}")
    output.line(f"{counted(count, 'copy', 'copies')} of other publishers refused")
    output.json({"publishers": publishers, "refused_copies": count})
    if refused is not None:
        raise Unfinished(str(refused))
