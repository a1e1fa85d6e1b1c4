"""Where the user's cache directory is."""

from __future__ import annotations

from pathlib import Path

from penstock import knobs


def default_directory() -> Path:
    """The cache directory that `cache=True` uses: the knob `cache_dir`, else the platform's for the user."""
    if chosen := knobs.cache_dir():
        return Path(chosen).expanduser().absolute()
    return knobs.user_directory("cache") / "compiled"
