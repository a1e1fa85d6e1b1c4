"""What is installed, read from the names and times of directories. Nothing is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import Final

from penstock.distribution import DISTRIBUTION
from penstock.runtime.entries import is_ordinary, normalized

SUFFIXES: Final = (".dist-info", ".egg-info")

ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory of the package."""


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
def is_checkout() -> bool:
    """Whether Penstock's distribution does not lie beside its files, so that `distributions` does
    not change with them.
    """
    try:
        beside = [n for n in os.listdir(os.path.dirname(ROOT)) if n.endswith(".dist-info")]
    except OSError:
        return True
    return all(normalized(name.partition("-")[0]) != DISTRIBUTION for name in beside)


def loaded_files() -> list[str]:
    """The files of Penstock's modules that this process has imported, below `ROOT`."""
    modules = [m for name, m in [*sys.modules.items()] if name.partition(".")[0] == "penstock"]
    files = (getattr(module, "__file__", None) for module in modules)
    return sorted(_below(file) for file in files if file)


def _below(file: str) -> str:
    """The path of *file* from `ROOT`."""
    above = f"{ROOT}{os.sep}"
    # `os.path.relpath` takes longer than all else that keeps a plan, for hundreds of modules.
    return file[len(above) :] if file.startswith(above) else os.path.relpath(file, ROOT)


def state_of(files: Iterable[str]) -> str:
    """A digest of the sizes and times of *files*, below `ROOT`. Raises `OSError`."""
    states = []
    for file in files:
        status = os.stat(f"{ROOT}{os.sep}{file}")
        states.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return sha256("\n".join(states).encode()).hexdigest()
