"""Drivers of Vulkan that variables of the environment name, instead of the system's or besides."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

INSTEAD: Final = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""Variables with the manifests of all drivers. Vulkan's loader reads the first one that is set."""

BESIDES: Final = "VK_ADD_DRIVER_FILES"
"""The variable with manifests of further drivers, which the loader reads if no other is set."""

VARIABLES: Final = (
    *INSTEAD, BESIDES, "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE", "LP_NUM_THREADS",
)  # fmt: skip
"""Variables that choose drivers, and the threads of lavapipe."""

MOST_BYTES: Final = 1 << 16
MOST_MANIFESTS: Final = 64


def replaces_system_drivers() -> bool:
    """Whether the environment names the only drivers to use."""
    return any(os.environ.get(name) for name in INSTEAD)


def named_manifests() -> Sequence[str]:
    """The manifests that the environment names: files, and the .json files of directories."""
    chosen = next((v for name in (*INSTEAD, BESIDES) if (v := os.environ.get(name))), "")
    found = list[str]()
    for path in map(Path, filter(None, chosen.split(os.pathsep))):
        if path.is_dir():
            found += map(str, sorted(path.glob("*.json")))
        else:
            found.append(str(path))
    return found[:MOST_MANIFESTS]


def files_of_named_drivers() -> Sequence[str]:
    """The manifests that the environment names, and their drivers' libraries where a manifest has
    the path of one. A manifest that cannot be read has no library.
    """
    found = list[str]()
    for manifest in (Path(path).absolute() for path in named_manifests()):
        found.append(str(manifest))
        library = _library_of(manifest)
        # Without a directory it is a name in the system's search path.
        if os.sep in library:
            found.append(str(manifest.parent / library))
    return found


def _library_of(manifest: Path) -> str:
    """The path of the library, relative to the manifest; "" if the manifest has none."""
    import json

    try:
        with manifest.open("rb") as file:
            content: Any = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    driver = content.get("ICD") if isinstance(content, Mapping) else None
    path = driver.get("library_path") if isinstance(driver, Mapping) else None
    return path if isinstance(path, str) and "\0" not in path else ""
