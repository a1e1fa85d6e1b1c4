"""What OpenVINO a machine has, read from files alone: the engine is not imported."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.distribution import install_command
from penstock.driverkit.installation import package_folder, package_texts, processor_features

PACKAGE: Final = "openvino"
INSTALL: Final = install_command("openvino")
DERIVED_WITH: Final = "2026.4"
"""The release of OpenVINO whose results the rules' accuracy classes were compared with
TFLite's on.
"""
ADAPTER_VERSION: Final = 6
"""Raised whenever this driver would hand OpenVINO another graph for the same model, or write other
cache files.
"""

ISA_LIMITS: Final = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "OV_CPU_MAX_ISA")
"""The engine's own variables that limit the instructions it compiles for."""

VNNI: Final = frozenset({"avx512_vnni", "avx_vnni", "avx512vnni"})
"""The features as Linux and as NumPy call them."""

DIGEST_DIGITS: Final = 16


class Plugin(msgspec.Struct, frozen=True):
    """One plugin of OpenVINO: its *name* for the engine ("CPU"), its shared *library*, and why it
    cannot be used here ("" when it can).
    """

    name: str
    library: Path | None
    reason: str = ""

    @property
    def device_name(self) -> str:
        return f"openvino-{self.name.lower()}"


class Installation(msgspec.Struct, frozen=True):
    """An installed OpenVINO, or none: then *version* is empty and the only plugin says so.
    *recorded* has the installer's hashes of its libraries, by file name.
    """

    version: str
    plugins: tuple[Plugin, ...]
    recorded: Mapping[str, str] = {}

    def version_of(self, plugin: Plugin) -> str:
        """Everything that an artefact of *plugin* depends on besides the model: adapter, engine,
        the installed libraries of engine and plugin, the processor's features, and what keeps the
        engine from using them.
        """
        if not self.version:
            return f"{ADAPTER_VERSION} (openvino missing)"
        digest = library_digest(plugin.library, self.recorded)
        limits = "".join(
            f"; {name}={os.environ[name]}" for name in ISA_LIMITS if name in os.environ
        )
        return (
            f"{ADAPTER_VERSION} (openvino {self.version}; {plugin.name} plugin {digest}; "
            f"{platform.machine()} {processor_features()}{limits})"
        )


def sums_exactly() -> bool:
    """Whether OpenVINO adds up 8-bit products in 32 bits here: x86-64 with VNNI, and nothing that
    keeps the engine from it. Without, its kernels add pairs in 16 bits, which large products pass.
    """
    features = set(processor_features().split())
    return bool(features & VNNI) and not any(name in os.environ for name in ISA_LIMITS)


@functools.cache
def find_installation() -> Installation:
    """The installed OpenVINO; found once a process."""
    folder = package_folder(PACKAGE)
    if folder is None:
        missing = f"OpenVINO is not installed: {INSTALL}"
        return Installation("", (Plugin("CPU", None, missing),))
    version, recorded = _metadata(folder)
    if not version:
        missing = f"{folder} has no package metadata: {INSTALL}"
        return Installation("", (Plugin("CPU", None, missing),))
    libraries = folder / "libs"
    plugins = [
        Plugin(name, library, why)
        for name, pattern, why in (
            ("CPU", "*openvino_*_cpu_plugin.*", ""),
            ("GPU", "*openvino_intel_gpu_plugin.*", _missing_hardware("GPU")),
            ("NPU", "*openvino_intel_npu_plugin.*", _missing_hardware("NPU")),
        )
        for library in sorted(libraries.glob(pattern))[:1]
    ]
    if not plugins:
        plugins = [Plugin("CPU", None, f"openvino {version} has no plugin in {libraries}")]
    return Installation(version, tuple(plugins), recorded)


def library_digest(library: Path | None, recorded: Mapping[str, str]) -> str:
    """Of a plugin's library and of the engine's own beside it: what the installer recorded, else
    their hash.
    """
    if library is None:
        return "missing"
    engine = sorted(library.parent.glob("*openvino.*"))
    digest = hashlib.sha256()
    for path in (library, *engine):
        digest.update((recorded.get(path.name) or _hash_of(path)).encode() + b"\0")
    return digest.hexdigest()[:DIGEST_DIGITS]


def _missing_hardware(name: str) -> str:
    """Why there is no such processor, as far as the system's device files tell; "" where there may
    be one.
    """
    if sys.platform != "linux":
        return ""
    pattern = {"GPU": "dri/renderD*", "NPU": "accel/accel*"}[name]
    if any(Path("/dev").glob(pattern)):
        return ""
    return f"no {name} here: /dev/{pattern} does not exist"


def _metadata(folder: Path) -> tuple[str, Mapping[str, str]]:
    """The version of the package in *folder* ("" where nothing tells), and the hashes of its
    libraries in RECORD.
    """
    described, record = package_texts(PACKAGE, folder)
    version = re.search(r"(?m)^Version: *(\S+)", described)
    lines = re.findall(r"(?m)^\S*/libs/([^/,]+),([^,]+),", record)
    return (version.group(1) if version else ""), dict(lines)


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
