"""The entry points of installed drivers, read straight from where installers put them.

`importlib.metadata` answers the same question, but takes several times as long to import as all of this
takes to run. It is asked where something other than ordinary directories has to be searched.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

ENTRY_POINT_GROUP: Final = "penstock.drivers"


class DriverEntry(Protocol):
    """What discovery asks of an entry point; `importlib.metadata.EntryPoint` is one."""

    @property
    def name(self) -> str: ...

    def load(self) -> Any:
        """The object that the entry point refers to; raises what its import raises."""
        ...


class Entry(NamedTuple):
    """A line `name = value` of entry_points.txt; *value* is `module` or `module:attribute`, dotted."""

    name: str
    value: str

    def load(self) -> Any:
        found = _VALUE.match(self.value)
        if found is None:
            raise ValueError(f"{self.value!r} does not name an object as module:attribute")
        attributes = filter(None, (found["attributes"] or "").split("."))
        return reduce(getattr, attributes, import_module(found["module"]))


_VALUE: Final = re.compile(
    r"(?P<module>[\w.]+)\s*(:\s*(?P<attributes>[\w.]+)\s*)?(\[.*\]\s*)?$"
)  # the entry points specification of the Python Packaging User Guide


def installed_entries() -> Sequence[DriverEntry]:
    """The entry points of the group `penstock.drivers`, of the first distribution of each name on `sys.path`."""
    if not _only_directories():
        from importlib.metadata import entry_points

        return tuple(entry_points(group=ENTRY_POINT_GROUP))
    return tuple(e for text in _texts() for e in _entries(text))


def _only_directories() -> bool:
    """Whether distributions lie in directories of `sys.path` alone, and none in zip files, eggs or places
    that only a finder of somebody else's knows.
    """
    finders = [f for f in sys.meta_path if hasattr(f, "find_distributions")]
    return all(getattr(f, "__name__", "") == "PathFinder" for f in finders) and all(
        not str(place).endswith(".egg") and not Path(place).is_file() for place in sys.path
    )


def _texts() -> Iterator[str]:
    """The content of every distribution's entry_points.txt that has the group in it."""
    seen: set[str] = set()
    for directory in sys.path:
        try:
            with os.scandir(directory or ".") as found:
                names = [entry.name for entry in found]
        except OSError:
            continue
        for name in names:
            if not name.lower().endswith((".dist-info", ".egg-info")):
                continue
            distribution = re.sub(r"[-_.]+", "-", name.rpartition(".")[0].partition("-")[0]).lower()
            if distribution in seen:
                continue
            seen.add(distribution)
            try:
                content = Path(directory, name, "entry_points.txt").read_bytes()
            except OSError:
                continue
            if ENTRY_POINT_GROUP.encode() in content:
                yield content.decode("utf-8", "replace")


def _entries(text: str) -> Iterator[Entry]:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]")
        elif section == ENTRY_POINT_GROUP and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield Entry(name.strip(), value.strip())
