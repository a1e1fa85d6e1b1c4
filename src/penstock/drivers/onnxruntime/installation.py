"""The installed ONNX Runtime, read from its files. The engine is not imported."""

from __future__ import annotations

import functools
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.distribution import install_command
from penstock.driverkit.installation import (
    described,
    digest_of,
    package_folder,
    processor_features,
)
from penstock.hal import DeviceType

PACKAGE: Final = "onnxruntime"
INSTALL: Final = install_command("onnxruntime")
DERIVED_WITH: Final = "1.31"
"""The release of ONNX Runtime that the accuracy classes were measured with."""
ADAPTER_VERSION: Final = 2
"""Increased when this driver builds other graphs of the same models, or other cache files."""

DOT_PRODUCTS: Final = frozenset({"avx512_vnni", "avx512vnni", "avx_vnni"})
"""Processor features without which x86-64 saturates products of unsigned and signed bytes."""


class Provider(msgspec.Struct, frozen=True):
    """One execution provider: its *name*; the *suffix*, *type* and *families* of its device; and
    the *reason* why it cannot be used here ("" if it can).
    """

    name: str
    suffix: str
    type: DeviceType
    families: tuple[str, ...] = ()
    reason: str = ""

    @property
    def device_name(self) -> str:
        return f"{PACKAGE}-{self.suffix}"

    @property
    def simulated(self) -> bool:
        """Whether the provider simulates its hardware here, as Qualcomm's library for x86 does."""
        return "hexagon" in self.families and platform.machine().lower() in {"x86_64", "amd64"}


CPU: Final = Provider("CPUExecutionProvider", "cpu", DeviceType.CPU)

GPU, ANY = DeviceType.GPU, DeviceType.ACCELERATOR
OTHERS: Final = tuple(
    (Provider(f"{name}ExecutionProvider", suffix, kind, tuple(known.split())), library, package, at)
    for name, suffix, kind, known, library, package, at in (
        ("CUDA", "cuda", GPU, "cuda", "cuda", "", ""),
        ("Tensorrt", "tensorrt", GPU, "cuda tensorrt", "tensorrt", "", ""),
        ("MIGraphX", "migraphx", GPU, "rocm", "migraphx", "", ""),
        ("ROCM", "rocm", GPU, "rocm", "rocm", "", ""),
        ("OpenVINO", "openvino", ANY, "openvino", "openvino", "onnxruntime-openvino", ""),
        ("QNN", "qnn", ANY, "hexagon qnn", "qnn", "onnxruntime-qnn", ""),
        ("Dml", "directml", GPU, "directml", "", "onnxruntime-directml", ""),
        ("WebGpu", "webgpu", GPU, "webgpu", "webgpu", "onnxruntime-webgpu", ""),
        ("CoreML", "coreml", ANY, "coreml neural_engine", "", "", "darwin"),
    )
)  # fmt: skip
"""The providers besides the CPU's, and how to recognise a build with such a provider: by the name
of its shared library, by the package, or by the platform.
"""


class Installation(msgspec.Struct, frozen=True):
    """An installed ONNX Runtime. *digest* is the digest of its libraries. If ONNX Runtime is not
    installed, *version* is empty and the only provider has the reason.
    """

    version: str
    providers: tuple[Provider, ...]
    digest: str = ""

    def version_of(self, provider: Provider) -> str:
        """Everything that an artefact for *provider* depends on besides the model."""
        version = self.version and f"{self.version} {self.digest}"
        return described(ADAPTER_VERSION, PACKAGE, version, provider.name)


@functools.cache
def find_installation() -> Installation:
    """The installed ONNX Runtime, searched once per process."""
    folder = package_folder(PACKAGE)
    if folder is None:
        return _nothing(f"ONNX Runtime is not installed: {INSTALL}")
    if package_folder("onnx") is None:
        return _nothing(f"the package onnx is not installed: {INSTALL}")
    version, package = _metadata(Path(folder))
    if not version:
        return _nothing(f"{folder} does not say which ONNX Runtime it is: {INSTALL}")
    libraries = Path(folder, "capi")
    found = [CPU, *providers_in(libraries, package)]
    return Installation(version, tuple(found), _digest(libraries, _record_beside(Path(folder))))


def providers_in(libraries: Path, package: str) -> list[Provider]:
    """The providers besides the CPU's in a build of this *package* with these *libraries*."""
    return [
        provider
        for provider, library, own_package, own_platform in OTHERS
        if (library and any(libraries.glob(f"*onnxruntime_providers_{library}.*")))
        or (own_package and package == own_package)
        or (own_platform and sys.platform == own_platform)
    ]


def saturates() -> bool:
    """Whether ONNX Runtime's kernels saturate products of unsigned and signed bytes here."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return False
    return not DOT_PRODUCTS.intersection(processor_features().split())


def _nothing(reason: str) -> Installation:
    return Installation("", (msgspec.structs.replace(CPU, reason=reason),))


def _metadata(folder: Path) -> tuple[str, str]:
    """Version and package name from the build's own file; empty if the file does not exist."""
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = (folder / "capi" / "build_and_package_info.py").read_text("utf-8")
    version = re.search(r"""(?m)^__version__ *= *['"]([^'"]+)['"]""", text)
    package = re.search(r"""(?m)^package_name *= *['"]([^'"]+)['"]""", text)
    return (version.group(1) if version else ""), (package.group(1) if package else PACKAGE)


def _record_beside(folder: Path) -> str:
    """The RECORD of the package in *folder*; empty if it has none. One installed elsewhere has the
    hashes of other libraries.
    """
    for path in folder.parent.glob(f"{PACKAGE}*.dist-info/RECORD"):
        with suppress(OSError, UnicodeDecodeError):
            record = path.read_text("utf-8")
            if re.search(rf"(?m)^{PACKAGE}/capi/", record):
                return record
    return ""


def _digest(libraries: Path, record: str) -> str:
    """A digest of the libraries, by the hashes in *record*, otherwise by size and time."""
    recorded = dict(re.findall(rf"(?m)^{PACKAGE}/capi/([^/,]+),([^,]+),", record))
    parts = []
    for path in sorted(libraries.iterdir()):
        if re.search(r"\.(so|pyd|dll|dylib)", path.name):
            known = recorded.get(path.name)
            if known is None:
                status = path.stat()
                known = f"{status.st_size} {status.st_mtime_ns}"
            parts.append(f"{path.name} {known}")
    return digest_of(parts)
