"""Where the user's cache directory is."""

from __future__ import annotations

import os

from penstock import knobs


def default_directory() -> str:
    """The cache directory that `cache=True` uses: the knob `cache_dir`, else the platform's for the
    user.
    """
    if chosen := knobs.cache_dir():
        return knobs.absolute(chosen)
    return os.path.join(knobs.user_directory("cache"), "compiled")
