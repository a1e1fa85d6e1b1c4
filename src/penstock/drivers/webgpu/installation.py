"""The installed wgpu, and the adapters that files of the system tell of. The engine is not
imported, and no adapter is opened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from penstock import vulkan
from penstock.distribution import install_command
from penstock.driverkit import installation
from penstock.driverkit.installation import package_folder
from penstock.errors import Unreadable
from penstock.sealed.places import make_private_directory, shader_directory

PACKAGE: Final = "wgpu"
INSTALL: Final = install_command("gpu")
HARDWARE: Final = "webgpu"
SOFTWARE: Final = "webgpu-software"

ADAPTER_VERSION: Final = 6
"""Increased when this driver prints other shaders of the same models, or writes other files."""

MANIFESTS: Final = (
    "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d",
)  # fmt: skip
"""Where Vulkan's loader looks for drivers of the system, on Linux."""

SOFTWARE_DRIVERS: Final = {"lvp": "lavapipe", "vk_swiftshader": "SwiftShader"}
"""Beginnings of the manifests of Vulkan drivers that compute on the processor."""

NODES: Final = ("dri/renderD*", "nvidia[0-9]*", "dxg")
"""Device files of graphics processors, on Linux."""


@cache
def engine_version() -> str:
    """The version of the installed wgpu, from its metadata; "" if it is not installed."""
    folder = package_folder(PACKAGE)
    return "" if folder is None else installation.version_of(PACKAGE, folder)


def missing(name: str) -> str | None:
    """Why the device *name* cannot be used here, as far as files tell."""
    if not engine_version():
        return f"wgpu is not installed: {INSTALL}"
    if sys.platform != "linux":
        # Metal has no adapter of software; Windows always has one, called WARP.
        if name == SOFTWARE and sys.platform == "darwin":
            return "Metal has no adapter of software"
        return None
    if found(name):
        return None
    if name == SOFTWARE:
        return (
            "no Vulkan driver for the processor was found (Debian and Ubuntu: "
            "apt install mesa-vulkan-drivers)"
        )
    if nodes():
        places = vulkan.named_manifests() if vulkan.replaces_system_drivers() else MANIFESTS
        return f"no Vulkan driver for a graphics processor was found in {', '.join(places)}"
    return "no graphics processor: no /dev/dri/renderD*, /dev/nvidia* or /dev/dxg exists"


def found(name: str) -> Sequence[str]:
    """What Linux tells of the adapters of the device *name*: drivers of Vulkan and, of hardware,
    its names.
    """
    drivers = [path.name.split(".")[0].removesuffix("_icd") for path in manifests()]
    if name == SOFTWARE:
        return [text for start, text in SOFTWARE_DRIVERS.items() if start in drivers]
    own = [driver for driver in drivers if driver not in SOFTWARE_DRIVERS]
    return [*processors()] if own and nodes() else []


def manifests() -> Sequence[Path]:
    """The manifests of Vulkan's drivers: of the system, or those that the environment names."""
    named = [path for path in map(Path, vulkan.named_manifests()) if path.is_file()]
    if vulkan.replaces_system_drivers():
        return named
    return [*named, *(p for folder in MANIFESTS for p in sorted(Path(folder).glob("*.json")))]


def nodes() -> Sequence[Path]:
    """The device files of graphics processors."""
    return [path for pattern in NODES for path in sorted(Path("/dev").glob(pattern))]


def processors() -> Sequence[str]:
    """The names of the graphics processors: NVIDIA's, or the numbers of vendor and device."""
    names = []
    for node in nodes():
        device = Path("/sys/class/drm", node.name, "device")
        with suppress(OSError):
            ids = [(device / file).read_text().strip()[2:] for file in ("vendor", "device")]
            names.append(f"PCI {':'.join(ids)}")
            continue
        names.append(node.name)
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            model = file.read_text().partition("Model:")[2].partition("\n")[0].strip()
            names = [model, *(n for n in names if not n.startswith(("nvidia", "PCI 10de:")))]
    return names


def version_of(name: str) -> str:
    """What artefacts of the device *name* depend on besides the model, and its adapters."""
    adapters = ", ".join(found(name)) if sys.platform == "linux" else sys.platform
    engine = engine_version()
    parts = [f"wgpu {engine}" if engine else "", adapters or "no adapter"]
    return f"{ADAPTER_VERSION} ({'; '.join(filter(None, parts))})"


def keep_shaders() -> None:
    """Points the file caches of Mesa and of NVIDIA's driver to Penstock's directory, unless the
    user has chosen one. Called before the engine is loaded.
    """
    with suppress(Unreadable):
        directory = shader_directory()
        make_private_directory(directory)
        for variable in ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"):
            os.environ.setdefault(variable, directory)
        os.environ.setdefault("MESA_SHADER_CACHE_MAX_SIZE", "256M")
