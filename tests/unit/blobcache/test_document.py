"""The code of docs/blobcache.md runs, and prints what the page says it prints."""

from __future__ import annotations

import inspect
from pathlib import Path

from penstock import blobcache
from penstock.blobcache import Capacity, Limits, Select
from penstock.blobcache.persistent import LOCK_TIMEOUT_S, SAVE_DELAY_S

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "blobcache.md").read_text("utf-8")


def test_the_numbers_and_names_are_those_of_the_code() -> None:
    assert f"written {SAVE_DELAY_S:.0f} seconds (`save_delay`)" in PAGE
    assert f"`lock_timeout` seconds ({LOCK_TIMEOUT_S:.0f})" in PAGE
    assert (Limits().key, Limits().value, Limits().total) == (12 << 10, 64 << 10, 2 << 20)
    for choice in (*Select, *Capacity):
        assert f"| `{choice.name}` |" in PAGE


def test_the_package_names_its_surface() -> None:
    public = {
        name
        for name, value in vars(blobcache).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(blobcache.__all__)
