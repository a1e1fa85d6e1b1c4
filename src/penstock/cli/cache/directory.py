"""The cache directory and the entries that a command names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.failures import UsageError

if TYPE_CHECKING:
    from penstock.cache import Cache, CacheEntry

SHORT: Final = 12
"""Hexadecimal digits of a token in tables. Any unique prefix names the entry."""


def open_cache(directory: str | None) -> Cache:
    """The cache in *directory*; None is the user's. Raises `UsageError` if it does not exist."""
    from penstock.cache import Cache

    if directory is None:
        return Cache()
    if not (path := named_directory(directory)).is_dir():
        raise UsageError(f"--dir {directory}: there is no such directory")
    return Cache(path)


def named_directory(directory: str) -> Path:
    """The directory in `--dir`, which may not exist. Raises `UsageError` for an invalid name."""
    path = Path(directory).expanduser()
    if not directory:
        raise UsageError("--dir needs the name of a directory")
    if path.exists() and not path.is_dir():
        raise UsageError(f"--dir {directory}: this is not a directory")
    return path


def find(entries: Sequence[CacheEntry], beginning: str) -> CacheEntry:
    """The entry whose token has this prefix, in hexadecimal digits or the letters of its file
    names.

    The path of one of its files also names it. Raises `UsageError` unless exactly one matches.
    """
    from penstock.cache.naming import letters_of

    name = Path(beginning).name
    if not name:
        raise UsageError("TOKEN is empty; it must be the beginning of an entry's token")
    if letters := re.match(r"[A-P]+", name):
        found = [e for e in entries if letters_of(e.token).startswith(letters[0])]
    else:
        found = [e for e in entries if e.token.hex().startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(short(e) for e in found[:3]) + (", ..." if len(found) > 3 else "")
        raise UsageError(f"{len(found)} entries begin with {name}: {shown}")
    raise UsageError(f"no entry begins with {name}; 'penstock cache ls' lists them")


def short(entry: CacheEntry) -> str:
    """The prefix of the token that tables show."""
    return entry.token.hex()[:SHORT]


def owner(entry: CacheEntry) -> str:
    """The device that the entry's index names."""
    return entry.device or "not known"


def when(seconds: float) -> str:
    """A time in the user's time zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def describe(entry: CacheEntry) -> dict[str, Any]:
    """An entry for `--json`; null if its index is missing or altered."""
    known = bool(entry.device)
    return {
        "token": entry.token.hex(),
        "device": entry.device or None,
        "version": entry.version if known else None,
        "nbytes": entry.nbytes,
        "created": entry.created,
        "used": entry.used,
        "compile_ns": entry.compile_ns if known else None,
        "binding": entry.binding.hex() or None,
        "ingredients": dict(entry.ingredients),
        "model_cache": [str(path) for path in entry.model_cache],
        "data_cache": [str(path) for path in entry.data_cache],
    }
