"""`penstock knobs`: every setting, its value and where that comes from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer

from penstock.cli.output import output_of
from penstock.cli.places import settings_place
from penstock.errors import InputError
from penstock.knobs import (
    ENVIRONMENT_PREFIX,
    KNOBS,
    devices,
    override,
    settings_file,
)

OF_ISOLATION: Final = ("isolate", "services")
"""Knobs that say by name which drivers run elsewhere."""


def knobs(context: typer.Context) -> None:
    """List every setting with its value, where that comes from, and what it does."""
    output = output_of(context)
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
    """One knob as `--json` prints it: *value* is None where *problem* says why it cannot be used."""
    knob = KNOBS[name]
    value, source, problem = None, "settings file", None
    try:
        source = knob.source()[1]
        value = knob()
        if name == "num_threads" and isinstance(value, int) and value < 0:
            problem = f"knob {name} ({source}) must be 0 or more, not {value}; it is ignored"
            value = None
        if value and name in OF_ISOLATION:
            _check_isolation(name)
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
def without_nonsense() -> Iterator[None]:
    """A block in which knobs that choose drivers to isolate, and make no sense, are as if they were
    not set: for a report of everything else.
    """
    wrong = [name for name in OF_ISOLATION if describe(name)["problem"] is not None]
    with override(**{name: KNOBS[name].default for name in wrong}):
        yield


def _check_isolation(name: str) -> None:
    from penstock.ipc.starting import services
    from penstock.runtime.isolation import isolated_names

    (isolated_names if name == "isolate" else services)()


def shown(knob: dict[str, Any]) -> object:
    """The value for people."""
    return knob["value"] if knob["problem"] is None else "not usable"


def place(source: str) -> str:
    """Where a value comes from, without the variable's name, which is the knob's own."""
    return "environment" if source.startswith("environment") else source


def problems(described: Collection[dict[str, Any]]) -> list[str]:
    """What is wrong with the values of knobs, each thing once."""
    return list(dict.fromkeys(k["problem"] for k in described if k["problem"] is not None))


def unknown_names() -> list[str]:
    """A note for each variable of the environment and each name in the settings file that is no
    knob's.
    """
    variables = {knob.variable for knob in KNOBS.values()}
    strange = sorted(
        v for v in os.environ if v.startswith(ENVIRONMENT_PREFIX) and v not in variables
    )
    notes = [
        f"the environment variable {v} is no knob's; Penstock does not read it" for v in strange
    ]
    try:
        names = sorted(set(settings_file()) - set(KNOBS))
    except (InputError, OSError):
        names = []
    return notes + [f"the settings file names {n!r}, which is no knob" for n in names]


def unknown_drivers(found: Sequence[str]) -> list[str]:
    """What is wrong with the drivers that the knob `isolate` names, where *found* are all there
    are.
    """
    from penstock.runtime.isolation import unknown_drivers

    try:
        return unknown_drivers(found)
    except (InputError, OSError):
        return []


def unknown_devices(found: Collection[str]) -> list[str]:
    """What is wrong with the devices that the knob `devices` names, where *found* are all there
    are.
    """
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
