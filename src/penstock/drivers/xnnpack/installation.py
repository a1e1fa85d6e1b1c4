"""What LiteRT a machine has, read from files alone: the engine is not imported."""

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

PACKAGE: Final = "ai_edge_litert"
INSTALL: Final = "pip install 'penstock[xnnpack]'"
ADAPTER_VERSION: Final = 1
"""Raised whenever this driver would hand LiteRT another file for the same model, or choose other kernels."""

CPUINFO_BYTES: Final = 1 << 14
FEATURE_PREFIXES: Final = (
    "sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve", "sme", "fphp", "i8mm", "bf16",
)  # fmt: skip
"""Of the processor's flags those by which XNNPACK chooses its kernels."""


class Installation(msgspec.Struct, frozen=True):
    """An installed LiteRT, or none: then *reason* says so."""

    version: str
    reason: str = ""

    def describe(self) -> str:
        """Everything that results depend on besides the model: driver, engine and the processor's features."""
        if not self.version:
            return f"{ADAPTER_VERSION} (litert missing)"
        return f"{ADAPTER_VERSION} (litert {self.version}; {platform.machine()} {processor_features()})"


@functools.cache
def find_installation() -> Installation:
    """The installed LiteRT; found once a process."""
    folder = _package_folder()
    if folder is None:
        return Installation("", f"LiteRT is not installed: {INSTALL}")
    version = _version_beside(folder)
    if not version:
        return Installation("", f"{folder} has no package metadata: {INSTALL}")
    return Installation(version)


@functools.cache
def processor_features() -> str:
    """The processor's features, space-separated and sorted."""
    flags: set[str] = set()
    if sys.platform == "linux":
        with suppress(OSError), Path("/proc/cpuinfo").open("rb") as file:
            for line in file.read(CPUINFO_BYTES).decode("ascii", "replace").splitlines():
                key, _, value = line.partition(":")
                if key.strip() in {"flags", "Features"}:
                    flags = set(value.split())
                    break
    return " ".join(sorted(filter(_matters, flags))) or "baseline"


def _matters(flag: str) -> bool:
    """Whether kernels may be chosen by *flag* (smep is no kind of sme)."""
    return flag.startswith(FEATURE_PREFIXES) and flag != "smep"


def _package_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _version_beside(folder: Path) -> str:
    """The version in the package's metadata; "" where nothing tells."""
    beside = list(folder.parent.glob(f"{PACKAGE}-*.dist-info"))
    if len(beside) == 1:
        with suppress(OSError, UnicodeDecodeError):
            described = (beside[0] / "METADATA").read_text("utf-8")
            if (found := re.search(r"(?m)^Version: *(\S+)", described)) is not None:
                return found.group(1)
    # Installed in another way. To import this takes longer than all else here.
    from importlib import metadata

    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""
