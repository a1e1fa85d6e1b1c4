"""Packages that load a module when one of its names is first used, and starts without garbage
collections.

A process then loads only the modules that it uses. Importing is most of the time of a warm start.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable, Mapping
from typing import Any, Final

MOST: Final = 200_000
"""Objects that are made old between two collections of all garbage. A first compile, its imports
included, makes some ten thousands.
"""


class Uncollected:
    """Pauses Python's cyclic garbage collection in its blocks, which may be nested, and in several
    threads at once.

    At the end of the last block, what was made in it counts as old: the next collection of young
    objects would otherwise visit all of it. Python then no longer counts it, and would never look
    for garbage among it; so the end of a block collects all garbage once that is `MOST` objects.
    """

    def __init__(self) -> None:
        # The first import of `threading` is itself worth a pause.
        self._lock = allocate_lock()
        self._holders = 0
        self._enabled = False
        self._frozen = False
        self._old = 0
        """Objects that were made old since all garbage was collected last."""

    def __enter__(self) -> None:
        with self._lock:
            if not self._holders:
                self._enabled = gc.isenabled()
                gc.disable()
            self._holders += 1

    def __exit__(self, *_: object) -> None:
        is_due = False
        with self._lock:
            self._holders = max(0, self._holders - 1)
            if not self._holders and self._enabled:
                is_due = self._make_old()
                gc.enable()
        if is_due:
            # What it destroys may enter a block, so the lock is free.
            gc.collect()

    def forget(self) -> None:
        """Ends the pause in a forked child, which lacks the threads that hold it or its lock."""
        self._lock = allocate_lock()
        if self._holders and self._enabled:
            gc.enable()
        self._holders = 0

    def _make_old(self) -> bool:
        """Moves every object to the oldest generation, unless the program has frozen some itself,
        or a collection would find too few to begin. Returns whether all garbage is to be collected.

        Python counts frozen objects one by one, so a program that froze some is asked once only.
        """
        made = gc.get_count()[0]
        if made <= gc.get_threshold()[0]:
            return False
        self._frozen = self._frozen or gc.get_freeze_count() > 0
        if self._frozen:
            return False
        gc.freeze()
        gc.unfreeze()
        self._old += made
        is_due = self._old > MOST
        if is_due:
            self._old = 0
        return is_due


uncollected: Final = Uncollected()
"""What makes many objects that stay, such as an import, pays for collections that find nothing."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uncollected.forget)


def load(module: str) -> Any:
    """Imports *module*, without garbage collections."""
    from importlib import import_module

    with uncollected:
        return import_module(module)


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of *package*; *homes* maps its modules to their names, space-separated."""
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(load(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
