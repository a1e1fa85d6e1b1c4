"""The compilation cache: finds, verifies and explains the results of earlier compiles.

`CacheInfo` says where a compile's cache is; `Cache` maintains a directory. A driver sees only open
files. docs/cache-directory.md describes the layout.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.cache.cache import Cache, CacheEntry, Explanation, Removed
    from penstock.cache.info import CacheInfo

__all__ = ["Cache", "CacheEntry", "CacheInfo", "Explanation", "Removed"]

_HOMES: Final = {
    "Cache": "cache",
    "CacheEntry": "cache",
    "CacheInfo": "info",
    "Explanation": "cache",
    "Removed": "cache",
}


def __getattr__(name: str) -> Any:
    """Loads each name, and `engine`, on first use: a compile that hits loads only what a
    hit needs.
    """
    if name == "engine":
        return import_module(f"{__name__}.engine")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
