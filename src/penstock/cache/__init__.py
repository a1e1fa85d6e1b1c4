"""The compilation cache: finds, verifies and explains the results of earlier compiles.

`CacheInfo` says where a compile's cache is; `Cache` maintains a directory. A driver sees only open
files. docs/cache-directory.md describes the layout.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.cache.cache import Cache, CacheEntry, Explanation, Removed
    from penstock.cache.info import CacheInfo

__all__ = ["Cache", "CacheEntry", "CacheInfo", "Explanation", "Removed"]

_find = lazily(__name__, {"cache": "Cache CacheEntry Explanation Removed", "info": "CacheInfo"})


def __getattr__(name: str) -> Any:
    """Loads each name, and `engine`, on first use: a compile that hits loads what a hit needs."""
    return import_module(f"{__name__}.engine") if name == "engine" else _find(name)
