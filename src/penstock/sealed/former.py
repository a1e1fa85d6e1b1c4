"""What earlier versions of Penstock kept in the state directory: their key and registries."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from typing import Final

MOST_NAMES: Final = 4096
"""How many names of the directory are looked at."""
_SUFFIXES: Final = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".sqlite-journal")


def remove_former(directory: str) -> None:
    """Removes the key and the registries of earlier versions in *directory*, and the directory once
    it is empty.

    Anything else there stays, and what cannot be removed stays as well. A link is not followed.
    """
    if os.path.islink(directory):
        return
    with suppress(OSError):
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MOST_NAMES)]
        for name in filter(_is_ours, names):
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def _is_ours(name: str) -> bool:
    if name == "key" or (name.startswith("key.") and name.endswith(".tmp")):
        return True
    return name.endswith(_SUFFIXES)
