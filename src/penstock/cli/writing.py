"""Files that a command writes: refused before the work where they cannot be, written after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.cli.failures import OutputError, UsageError, os_reason

PICTURES: Final = (".png", ".jpg", ".jpeg", ".bmp")
ARRAYS: Final = (".npz",)


def target(option: str, name: str | None, endings: tuple[str, ...] = ()) -> Path | None:
    """The file that *option* names, if it names one.

    Raises `UsageError` for an empty name and one without any of the *endings* (of any case),
    `OutputError` where the file could not be made or overwritten.
    """
    if name is None:
        return None
    if not name:
        raise UsageError(f"{option} needs the name of a file")
    path = Path(name)
    if endings and path.suffix.lower() not in endings:
        raise UsageError(f"{option} {name}: the name must end in {_either(endings)}")
    if path.is_dir():
        raise OutputError(path, "it is a directory")
    if not path.parent.is_dir():
        raise OutputError(path, f"there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(path, "permission denied")
    return path


def write(path: Path, action: Callable[[], object]) -> None:
    """Runs *action*, which writes *path*. Raises `OutputError`."""
    try:
        action()
    except OSError as error:
        raise OutputError(path, os_reason(error)) from None


def _either(endings: tuple[str, ...]) -> str:
    return f"{', '.join(endings[:-1])} or {endings[-1]}" if len(endings) > 1 else endings[0]
