"""The entry points of installed drivers, and which distribution owns a name that several claim.

They are read directly from the files that installers write, because importing `importlib.metadata`
takes several times as long. `importlib.metadata` is used only if `sys.path` has more than plain
directories.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from importlib import import_module
from typing import Any, Final, Protocol

from msgspec import Struct

from penstock import knobs
from penstock.distribution import BY_THE_PROGRAM, DISTRIBUTION
from penstock.errors import InputError

ENTRY_POINT_GROUP: Final = "penstock.drivers"
KNOB: Final = "the knob driver_sources (PENSTOCK_DRIVER_SOURCES)"


class DriverEntry(Protocol):
    """What discovery needs of an entry point; `importlib.metadata.EntryPoint` satisfies it."""

    @property
    def name(self) -> str: ...

    def load(self) -> Any:
        """Imports and returns what the entry point refers to; import errors propagate."""


class Source(Struct, frozen=True):
    """Origin of a driver: normalised *distribution*, *version*, *entry_point*; empty if unknown."""

    distribution: str = ""
    version: str = ""
    entry_point: str = ""

    @property
    def origin(self) -> str:
        """The driver's origin in cache keys and seals, in addition to its version."""
        return f"{self.distribution}:{self.entry_point}" if self.distribution else BY_THE_PROGRAM

    def __str__(self) -> str:
        named = (
            " ".join(filter(None, (self.distribution, self.version))) or "an unknown distribution"
        )
        return f"{named} ({self.entry_point})"


UNKNOWN: Final = Source()


class Entry(Struct, frozen=True):
    """A line `name = value` of entry_points.txt, of a normalised distribution and its version."""

    name: str
    value: str
    distribution: str = ""
    version: str = ""

    def load(self) -> Any:
        # The entry points specification of the Python Packaging User Guide. Extras in brackets are
        # obsolete.
        place = self.value.partition("[")[0]
        module, colon, attributes = map(str.strip, place.partition(":"))
        path = attributes.split(".") if colon else []
        if not all(map(str.isidentifier, (*module.split("."), *path))):
            raise ValueError(f"{self.value!r} does not name an object as module:attribute")
        return reduce(getattr, path, import_module(module))


def source_of(entry: DriverEntry) -> Source:
    """The origin of *entry*, which is of this module or of `importlib.metadata`."""
    found: Any = getattr(entry, "dist", None)
    name, version = (
        text if isinstance(text, str) else ""
        for text in (
            getattr(entry, "distribution", None) or getattr(found, "name", ""),
            getattr(entry, "version", None) or getattr(found, "version", ""),
        )
    )
    return Source(normalized(name), version, f"{entry.name}={getattr(entry, 'value', '')}")


def installed_entries() -> Sequence[DriverEntry]:
    """The entry points `penstock.drivers`, of each distribution the first on `sys.path`."""
    try:
        if is_ordinary():
            return tuple(entry for found in _texts() for entry in _entries(*found))
    except NotADirectoryError:  # a zip file
        pass
    from importlib.metadata import entry_points

    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def is_ordinary() -> bool:
    """Whether `sys.path` has only plain directories to search."""
    finders = [f for f in sys.meta_path if hasattr(f, "find_distributions")]
    return all(getattr(f, "__name__", "") == "PathFinder" for f in finders) and not any(
        str(place).endswith(".egg") for place in sys.path
    )


def _texts() -> Iterator[tuple[str, str, str]]:
    """Name, version and entry_points.txt of each distribution. Raises `NotADirectoryError`."""
    seen: set[str] = set()
    for place in sys.path:
        directory = place or "."
        try:
            names = os.listdir(directory)
        except OSError as error:
            if isinstance(error, NotADirectoryError):
                raise
            continue
        for name in names:
            if not name.lower().endswith((".dist-info", ".egg-info")):
                continue
            named, _, rest = name.rpartition(".")[0].partition("-")
            distribution = normalized(named)
            if distribution in seen:
                continue
            seen.add(distribution)
            content = _read(f"{directory}/{name}/entry_points.txt")
            if ENTRY_POINT_GROUP.encode() in content:
                yield distribution, rest.partition("-")[0], content.decode("utf-8", "replace")


def normalized(name: str) -> str:
    """The normalised name of a distribution (Python Packaging User Guide, "Names")."""
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))


def _read(path: str) -> bytes:
    """The content of a small file; empty if it is missing or unreadable."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return b""
    try:
        return os.read(fd, os.fstat(fd).st_size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _entries(distribution: str, version: str, text: str) -> Iterator[Entry]:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]")
        elif section == ENTRY_POINT_GROUP and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield Entry(name.strip(), value.strip(), distribution, version)


def named_sources() -> dict[str, str]:
    """The distributions in the knob `driver_sources`, by name. Raises `InputError`."""
    named: dict[str, str] = {}
    for part in filter(None, map(str.strip, knobs.driver_sources().split(","))):
        name, _, distribution = map(str.strip, part.partition("="))
        if not name or not distribution:
            raise InputError(f"{KNOB} has {part!r}: NAME=DISTRIBUTION")
        if named.setdefault(name, normalized(distribution)) != normalized(distribution):
            raise InputError(f"{KNOB} has two distributions for {name!r}")
    return named


def holder(name: str, claimed: Iterable[str]) -> str | None:
    """The distribution that owns *name*: Penstock's, else the knob's, else the only one."""
    every = set(claimed)
    if len(every) == 1 and not knobs.driver_sources():
        return every.pop()
    if DISTRIBUTION in every:
        return DISTRIBUTION
    if (chosen := named_sources().get(name)) is not None:
        return chosen if chosen in every else None
    return every.pop() if len(every) == 1 else None


def why_refused(name: str, own: Source, sources: Sequence[Source]) -> str:
    """Why the driver of *own* may not use the name, which all of *sources* claim."""
    if (winner := next((s for s in sources if s.distribution == DISTRIBUTION), None)) is not None:
        return f"{own} claims the name {name!r}, which is Penstock's: {winner} is used"
    if (chosen := named_sources().get(name)) is not None:
        return f"{KNOB} has {name}={chosen}, and this one is {own}"
    several = " and ".join(sorted({str(source) for source in sources}))
    remedies = " or ".join(sorted({f"{name}={source.distribution}" for source in sources}))
    return (
        f"the name {name!r} is claimed by {several}: none of them is used until {KNOB} says "
        f"whose it is, by {remedies}"
    )
