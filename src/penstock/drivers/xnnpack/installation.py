"""What LiteRT a machine has, read from files alone: the engine is not imported."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.distribution import install_command
from penstock.driverkit.installation import package_folder, package_texts, processor_features

PACKAGE: Final = "ai_edge_litert"
INSTALL: Final = install_command("xnnpack")
DERIVED_WITH: Final = "2.3"
"""The release of LiteRT whose results the rules' accuracy classes were compared with its reference
kernels' on.
"""
ADAPTER_VERSION: Final = 5
"""Raised whenever this driver would hand LiteRT another file for the same model, or choose other
kernels.
"""


class Installation(msgspec.Struct, frozen=True):
    """An installed LiteRT, or none: then *reason* says so."""

    version: str
    reason: str = ""

    def describe(self) -> str:
        """Everything that results depend on besides the model: driver, engine and the processor's
        features.
        """
        if not self.version:
            return f"{ADAPTER_VERSION} (litert missing)"
        return f"{ADAPTER_VERSION} (litert {self.version}; {platform.machine()} {processor_features()})"


@functools.cache
def find_installation() -> Installation:
    """The installed LiteRT; found once a process."""
    folder = package_folder(PACKAGE)
    if folder is None:
        return Installation("", f"LiteRT is not installed: {INSTALL}")
    version = _version_in(folder)
    if not version:
        return Installation("", f"{folder} has no package metadata: {INSTALL}")
    return Installation(version)


def _version_in(folder: Path) -> str:
    """The version in the package's metadata; "" where nothing tells."""
    described, _ = package_texts(PACKAGE, folder)
    found = re.search(r"(?m)^Version: *(\S+)", described)
    return found.group(1) if found else ""
