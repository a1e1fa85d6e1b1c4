"""`penstock knobs`, and the directories of the compilation cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.cli.output import Output
from penstock.errors import InputError, Unreadable
from penstock.knobs import (
    ENVIRONMENT_PREFIX,
    KNOBS,
    devices,
    isolate,
    key_store,
    override,
    settings_file,
    settings_path,
)

if TYPE_CHECKING:
    from pathlib import Path


def finders() -> dict[str, Callable[[], str | os.PathLike[str]]]:
    """What finds the cache directory and the state directory; both create nothing."""
    from penstock.cache.info import default_directory
    from penstock.sealed.places import state_directory

    return {"cache": default_directory, "state": state_directory}


def places() -> dict[str, str | None]:
    """The directories and key of the cache; each is None if a setting prevents finding it.

    The cache directory, the state directory, the *key_store* of the seals' key (`file`, or the
    system's `keyring`), and the key's location. Creates nothing.
    """
    from penstock.sealed.places import SEALS

    names = ("cache_directory", "state_directory", "key_store", "key")
    found: dict[str, str | None] = dict.fromkeys(names)
    with suppress(InputError, Unreadable, OSError):
        for kind, find in finders().items():
            found[f"{kind}_directory"] = os.fspath(find())
        found["key_store"] = store = _key_store()
        file = os.path.join(found["state_directory"] or "", SEALS, "key")
        found["key"] = "the system's key store" if store == "keyring" else file
    return found


class Unwritable(Struct, frozen=True):
    """An unwritable cache directory, and why. If it is *used*, its entries still give hits."""

    text: str
    used: bool


def unwritable_places() -> list[Unwritable]:
    """The cache and state directories that cannot be created or written.

    A temporary file tests each, because permissions do not show quotas, mounts and special file
    systems.
    """
    from pathlib import Path

    found = []
    for kind, find in finders().items():
        with suppress(InputError, Unreadable):
            path = Path(find())
            if reason := _why_unwritable(path):
                used = False
                with suppress(OSError):
                    used = any(path.iterdir())
                act = "written" if _exists(path) else "made"
                means = "what is there is used, and nothing added" if used else "nothing is cached"
                text = (
                    f"the {kind} directory {path} cannot be {act}: {reason}; {means}. Set "
                    f"PENSTOCK_{kind.upper()}_DIR to a directory that this user can write"
                )
                found.append(Unwritable(text, used))
    return found


def _why_unwritable(path: Path) -> str:
    import tempfile

    if path.is_symlink() and not _exists(path):
        return "it is a symbolic link to nothing"
    place = next(each for each in (path, *path.parents) if _exists(each) or each == each.parent)
    try:
        with tempfile.NamedTemporaryFile(prefix=".penstock-", dir=place):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def unknown_places() -> list[str]:
    """Why there is no cache or state directory, for each for which the system has no location."""
    reasons = []
    for find in finders().values():
        with suppress(InputError, OSError):
            try:
                find()
            except Unreadable as error:
                reasons.append(error.args[0])
    return reasons


def settings_place() -> str | None:
    """The path of the settings file; None without a home directory."""
    path = settings_path()
    return None if path is None else str(path)


def _key_store() -> str:
    from penstock.sealed.keys import LIMIT_SECONDS, quiet_backend, within

    if key_store() != "auto":
        return "file"
    try:
        return "file" if within(LIMIT_SECONDS, quiet_backend) is None else "keyring"
    except Exception:  # noqa: BLE001  # a backend fails as it likes
        return "file"


OF_ISOLATION: Final = ("isolate", "services")
"""Knobs that name drivers to isolate."""


def knobs(output: Output) -> None:
    """List every setting with its value, where that comes from, and what it does."""
    every = [describe(name) for name in KNOBS]
    output.table(
        ("knob", "value", "from", "default", "what it does"),
        [(k["name"], shown(k), place(k["source"]), k["default"], k["doc"]) for k in every],
        whole=("knob", "from"),
    )
    wrong = problems(every)
    output.problems(wrong)
    output.notes(unknown := unknown_names())
    output.line(
        f"a knob is set by {ENVIRONMENT_PREFIX}<KNOB> in the environment, or in the settings file",
        "dim",
    )
    settings = settings_place()
    output.line(f"settings file: {settings or 'none, for want of a home directory'}", "dim")
    output.json({"knobs": every, "settings_file": settings, "problems": wrong, "notes": unknown})


def describe(name: str) -> dict[str, Any]:
    """One knob for `--json`: *value* is None if *problem* says why it is invalid."""
    knob = KNOBS[name]
    value, source, problem = None, "settings file", None
    try:
        source = knob.source()[1]
        value = knob()
        if name == "num_threads" and isinstance(value, int) and value < 0:
            problem = f"knob {name} ({source}) must be 0 or more, not {value}; it is ignored"
            value = None
        if value and name in OF_ISOLATION:
            from penstock.ipc.host_sockets import services
            from penstock.runtime.isolation import isolated_names

            (isolated_names if name == "isolate" else services)()
    except (InputError, OSError) as error:
        value, problem = None, str(error)
    return {
        "name": name,
        "value": value,
        "source": source,
        "default": knob.default,
        "type": knob.kind.__name__,
        "variable": knob.variable,
        "doc": knob.doc,
        "problem": problem,
    }


@contextmanager
def without_invalid_isolation() -> Iterator[None]:
    """A block in which invalid knobs for isolation are ignored."""
    wrong = [name for name in OF_ISOLATION if describe(name)["problem"] is not None]
    with override(**{name: KNOBS[name].default for name in wrong}):
        yield


def shown(knob: dict[str, Any]) -> object:
    """The value for people."""
    return knob["value"] if knob["problem"] is None else "not usable"


def place(source: str) -> str:
    """The source of a value. The variable's name follows from the knob's."""
    return "environment" if source.startswith("environment") else source


def problems(described: Collection[dict[str, Any]]) -> list[str]:
    """The problems of knobs, each once."""
    return list(dict.fromkeys(k["problem"] for k in described if k["problem"] is not None))


def unknown_names() -> list[str]:
    """A note for each environment variable and each name in the settings file that is no knob."""
    variables = {knob.variable for knob in KNOBS.values()}
    strange = {v for v in os.environ if v.startswith(ENVIRONMENT_PREFIX)} - variables
    notes = [
        f"the environment variable {v} is no knob's; Penstock does not read it"
        for v in sorted(strange)
    ]
    try:
        names = sorted(set(settings_file()) - set(KNOBS))
    except (InputError, OSError):
        names = []
    return notes + [f"the settings file names {n!r}, which is no knob" for n in names]


def unknown_drivers(found: Sequence[str]) -> list[str]:
    """Why the knob `isolate` names a driver that is not among *found*."""
    try:
        if not isolate():
            return []
        from penstock.runtime.isolation import unknown_drivers

        return unknown_drivers(found)
    except (InputError, OSError):
        return []


def unknown_devices(found: Collection[str]) -> list[str]:
    """Why the knob `devices` names a device that is not among *found*."""
    try:
        names, source = devices(), devices.source()[1]
    except (InputError, OSError):
        return []
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    if names and not wanted:
        return [f"knob devices ({source}) is {names!r}, which names no device"]
    return [
        f"knob devices ({source}) names {n!r}; the devices are {', '.join(found) or 'none'}"
        for n in dict.fromkeys(wanted)
        if n not in found
    ]
