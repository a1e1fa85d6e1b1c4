"""`penstock knobs`: every setting, its value and where that comes from."""

from __future__ import annotations

from typing import Any

import typer

from penstock.cli.output import output_of
from penstock.knobs import KNOBS, settings_path


def knobs(context: typer.Context) -> None:
    """List every setting with its value, where that comes from, and what it does."""
    output = output_of(context)
    every = [describe(name) for name in KNOBS]
    output.table(
        ("knob", "value", "from", "default", "environment", "what it does"),
        [
            (k["name"], k["value"], k["source"], k["default"], k["variable"], k["doc"])
            for k in every
        ],
    )
    output.line(f"settings file: {settings_path()}", "dim")
    output.json({"knobs": every, "settings_file": str(settings_path())})


def describe(name: str) -> dict[str, Any]:
    """One knob as `--json` prints it. Raises `InputError` where its value has the wrong type."""
    knob = KNOBS[name]
    return {
        "name": name,
        "value": knob(),
        "source": knob.source()[1],
        "default": knob.default,
        "type": knob.kind.__name__,
        "variable": knob.variable,
        "doc": knob.doc,
    }
