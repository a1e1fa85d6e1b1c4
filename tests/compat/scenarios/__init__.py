"""What programs do with the interpreter, right and wrong: `load_all` registers every scenario."""

from __future__ import annotations

import importlib

TOPICS = (
    "construction",
    "delegates",
    "details",
    "lifetime",
    "resizing",
    "running",
    "sequences",
    "signatures",
    "values",
    "views",
)


def load_all() -> None:
    """Imports every module of scenarios, which registers them."""
    for topic in TOPICS:
        importlib.import_module(f"tests.compat.scenarios.{topic}")
