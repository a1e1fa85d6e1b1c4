"""What OpenVINO a machine has, read from files alone: the engine is not imported."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

PACKAGE: Final = "openvino"
INSTALL: Final = "pip install 'penstock[openvino]'"
ADAPTER_VERSION: Final = 2
"""Raised whenever this driver would hand OpenVINO another graph for the same model, or write other cache files."""

ISA_LIMITS: Final = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "OV_CPU_MAX_ISA")
"""The engine's own variables that limit the instructions it compiles for."""

DIGEST_DIGITS: Final = 16
CPUINFO_BYTES: Final = 1 << 14
FEATURE_PREFIXES: Final = (
    "sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve", "sme", "fphp", "i8mm", "bf16",
)  # fmt: skip
"""Of the processor's flags those that a compiler of kernels may look at."""


class Plugin(msgspec.Struct, frozen=True):
    """One plugin of OpenVINO: its *name* for the engine ("CPU"), its shared *library*, and why it cannot be
    used here ("" when it can).
    """

    name: str
    library: Path | None
    reason: str = ""

    @property
    def device_name(self) -> str:
        return f"openvino-{self.name.lower()}"


class Installation(msgspec.Struct, frozen=True):
    """An installed OpenVINO, or none: then *version* is empty and the only plugin says so. *recorded* has the
    installer's hashes of its libraries, by file name.
    """

    version: str
    plugins: tuple[Plugin, ...]
    recorded: Mapping[str, str] = {}

    def version_of(self, plugin: Plugin) -> str:
        """Everything that an artefact of *plugin* depends on besides the model: adapter, engine, the
        installed libraries of engine and plugin, the processor's features, and what keeps the engine from
        using them.
        """
        if not self.version:
            return f"{ADAPTER_VERSION} (openvino missing)"
        digest = library_digest(plugin.library, self.recorded)
        limits = "".join(
            f"; {name}={os.environ[name]}" for name in ISA_LIMITS if name in os.environ
        )
        return (
            f"{ADAPTER_VERSION} (openvino {self.version}; {plugin.name} plugin {digest}; "
            f"{platform.machine()} {cpu_features()}{limits})"
        )


@functools.cache
def find_installation() -> Installation:
    """The installed OpenVINO; found once a process."""
    folder = _package_folder()
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
    """Of a plugin's library and of the engine's own beside it: what the installer recorded, else their hash."""
    if library is None:
        return "missing"
    engine = sorted(library.parent.glob("*openvino.*"))
    digest = hashlib.sha256()
    for path in (library, *engine):
        digest.update((recorded.get(path.name) or _hash_of(path)).encode() + b"\0")
    return digest.hexdigest()[:DIGEST_DIGITS]


@functools.cache
def cpu_features() -> str:
    """The processor's features, space-separated and sorted."""
    flags: set[str] = set()
    if sys.platform == "linux":
        try:
            with Path("/proc/cpuinfo").open("rb") as file:
                text = file.read(CPUINFO_BYTES).decode("ascii", "replace")
        except OSError:
            text = ""
        for line in text.splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags = set(value.split())
                break
    if not flags:
        flags = _numpy_features()
    return " ".join(sorted(filter(_matters, flags))) or "baseline"


def _matters(flag: str) -> bool:
    """Whether a compiler of kernels may look at *flag* (smep is no kind of sme)."""
    return flag.startswith(FEATURE_PREFIXES) and flag != "smep"


def _numpy_features() -> set[str]:
    from numpy.lib import introspect

    runtime = getattr(introspect, "__cpu_features__", None)
    if runtime is None:
        from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # NumPy publishes no other

        runtime = getattr(_multiarray_umath, "__cpu_features__", {})
    return {name.lower() for name, present in runtime.items() if present}


def _package_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _missing_hardware(name: str) -> str:
    """Why there is no such processor, as far as the system's device files tell; "" where there may be one."""
    if sys.platform != "linux":
        return ""
    pattern = {"GPU": "dri/renderD*", "NPU": "accel/accel*"}[name]
    if any(Path("/dev").glob(pattern)):
        return ""
    return f"no {name} here: /dev/{pattern} does not exist"


def _metadata(folder: Path) -> tuple[str, Mapping[str, str]]:
    """The version of the package in *folder* ("" where nothing tells), and the hashes of its libraries in RECORD."""
    described, record = _installed_texts(folder)
    version = re.search(r"(?m)^Version: *(\S+)", described)
    lines = re.findall(r"(?m)^\S*/libs/([^/,]+),([^,]+),", record)
    return (version.group(1) if version else ""), dict(lines)


def _installed_texts(folder: Path) -> tuple[str, str]:
    """METADATA and RECORD of the installed package; empty where there are none."""
    beside = list(folder.parent.glob(f"{PACKAGE}-*.dist-info"))
    if len(beside) == 1:
        with suppress(OSError, UnicodeDecodeError):
            described, record = (
                (beside[0] / name).read_text("utf-8") for name in ("METADATA", "RECORD")
            )
            return described, record
    # Installed in another way. To import this takes longer than all else here.
    from importlib import metadata

    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return "", ""
    return found.read_text("METADATA") or "", found.read_text("RECORD") or ""


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
