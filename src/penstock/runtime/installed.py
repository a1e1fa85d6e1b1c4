"""What is installed, read from the names and times of directories. Nothing is imported."""

from __future__ import annotations

import os
import sys
from functools import cache
from hashlib import sha256

from penstock.distribution import DISTRIBUTION
from penstock.runtime.entries import is_ordinary, normalized

SUFFIXES = (".dist-info", ".egg-info")


def distributions() -> tuple[str, str] | None:
    """The names and versions of the installed distributions, as words, and a digest of their
    places and times; None if they cannot be read from directories alone.

    The digest changes when a distribution is installed again, also in the same version.
    """
    if not is_ordinary():
        return None
    names: list[str] = []
    digest = sha256()
    for place in sys.path:
        try:
            with os.scandir(place or ".") as entries:
                found = [e for e in entries if e.name.lower().endswith(SUFFIXES)]
                for entry in sorted(found, key=lambda e: e.name):
                    names.append(entry.name.rpartition(".")[0])
                    digest.update(f"{place}\0{entry.name}\0{entry.stat().st_mtime_ns}\n".encode())
        except NotADirectoryError:
            return None
        except OSError:
            continue
    return " ".join(sorted(names)), digest.hexdigest()


@cache
def own_code() -> str:
    """A digest of the names, sizes and times of Penstock's own files; empty if its installed
    distribution lies beside them, which `distributions` covers.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    above = os.path.dirname(root)
    try:
        beside = [n for n in os.listdir(above) if n.endswith(".dist-info")]
    except OSError:
        return ""
    if any(normalized(name.partition("-")[0]) == DISTRIBUTION for name in beside):
        return ""
    digest = sha256()
    pending = [root]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.is_dir() and entry.name != "__pycache__":
                    pending.append(entry.path)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    line = f"{entry.path}\0{status.st_size}\0{status.st_mtime_ns}\n"
                    digest.update(line.encode())
    return digest.hexdigest()
