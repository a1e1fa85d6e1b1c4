"""The installed OpenVINO, read from its files. The engine is not imported."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.distribution import install_command
from penstock.driverkit import installation
from penstock.driverkit.installation import package_folder, processor_features

PACKAGE: Final = "openvino"
INSTALL: Final = install_command("openvino")
DERIVED_WITH: Final = "2026.4"
"""The release of OpenVINO that the accuracy classes were measured with."""
ADAPTER_VERSION: Final = 6
"""Increased when this driver builds other graphs of the same models, or other cache files."""

ISA_LIMITS: Final = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "OV_CPU_MAX_ISA")
"""Environment variables that limit the instruction sets that the engine uses."""

VNNI: Final = frozenset({"avx512_vnni", "avx_vnni", "avx512vnni"})
"""The names of the VNNI feature on Linux and in NumPy."""


class Plugin(msgspec.Struct, frozen=True):
    """A plugin: its *name* ("CPU"), *library*, and why it cannot be used ("": it can)."""

    name: str
    library: Path | None
    reason: str = ""

    @property
    def device_name(self) -> str:
        return f"openvino-{self.name.lower()}"


class Installation(msgspec.Struct, frozen=True):
    """An installed OpenVINO.

    If OpenVINO is not installed, *version* is empty and the only plugin has the reason. *recorded*
    has the installer's hashes of the libraries, by file name.
    """

    version: str
    plugins: tuple[Plugin, ...]
    recorded: Mapping[str, str] = {}

    def version_of(self, plugin: Plugin) -> str:
        """Everything that an artefact of *plugin* depends on besides the model: driver, engine,
        libraries, processor features, and limits on those features.
        """
        library = f"{plugin.name} plugin {library_digest(plugin.library, self.recorded)}"
        limits = [f"{name}={os.environ[name]}" for name in ISA_LIMITS if name in os.environ]
        return installation.described(
            ADAPTER_VERSION, PACKAGE, self.version, library, limits=limits
        )


def sums_exactly() -> bool:
    """Whether OpenVINO adds 8-bit products in 32 bits here.

    It does on x86-64 with VNNI, unless an environment variable disables VNNI. Without VNNI its
    kernels add pairs of products in 16 bits, and large products overflow.
    """
    features = set(processor_features().split())
    return bool(features & VNNI) and not any(name in os.environ for name in ISA_LIMITS)


@functools.cache
def find_installation() -> Installation:
    """The installed OpenVINO, searched once per process."""
    folder = package_folder(PACKAGE)
    if folder is None:
        return _nothing(f"OpenVINO is not installed: {INSTALL}")
    version, record = installation.version_and_record(PACKAGE, folder)
    recorded = dict(re.findall(r"(?m)^\S*/libs/([^/,]+),([^,]+),", record))
    if not version:
        return _nothing(f"{folder} has no package metadata: {INSTALL}")
    libraries = Path(folder, "libs")
    plugins = [
        Plugin(name, library, _missing_hardware(name))
        for name, vendor in (("CPU", "*"), ("GPU", "intel"), ("NPU", "intel"))
        for library in sorted(libraries.glob(f"*openvino_{vendor}_{name.lower()}_plugin.*"))[:1]
    ]
    if not plugins:
        plugins = [Plugin("CPU", None, f"openvino {version} has no plugin in {libraries}")]
    return Installation(version, tuple(plugins), recorded)


def _nothing(reason: str) -> Installation:
    return Installation("", (Plugin("CPU", None, reason),))


def library_digest(library: Path | None, recorded: Mapping[str, str]) -> str:
    """A digest of the plugin's library and of the engine's library: of the installer's hashes if
    they exist, otherwise of the files' contents.
    """
    if library is None:
        return "missing"
    files = (library, *sorted(library.parent.glob("*openvino.*")))
    return installation.digest_of(recorded.get(f.name) or _hash_of(f) for f in files)


def _missing_hardware(name: str) -> str:
    """Why the system's device files show no such processor; "" if there may be one."""
    pattern = {"GPU": "dri/renderD*", "NPU": "accel/accel*"}.get(name)
    if pattern is None or sys.platform != "linux" or any(Path("/dev").glob(pattern)):
        return ""
    return f"no {name} here: /dev/{pattern} does not exist"


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
