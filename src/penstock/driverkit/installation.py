"""The installed engines and the processor, read from files. No engine is imported."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.hal import Capabilities

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

CPUINFO_BYTES: Final = 1 << 14
DIGEST_DIGITS: Final = 16
FEATURE_PREFIXES: Final = (
    "sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve", "sme", "fphp", "i8mm",
    "bf16",
)  # fmt: skip
"""Processor flags by which a compiler may choose instructions or kernels."""


DERIVED: Final = (
    "each operation compared with TFLite's reference kernels, on drawn values, on the recorded "
    "inputs of networks, and on crops of pictures"
)
"""How the accuracy classes of drivers were determined."""


def derived_with(
    capabilities: Capabilities, engine: str, derived: str, installed: str
) -> Capabilities:
    """*capabilities* with `accuracy_basis`. It also has `accuracy_doubt` if *installed* is another
    release of *engine* than *derived*, the release that the accuracy classes were measured with.
    *installed* is "" if the engine is not installed. Only as many parts of the version as *derived*
    has are compared.
    """
    basis, doubt = f"{engine} {derived}: {DERIVED}", ""
    numbers = re.split(r"[.+-]", installed)
    if installed and numbers[: derived.count(".") + 1] != derived.split("."):
        doubt = (
            f"its accuracy classes were derived with {engine} {derived}; {installed} is installed, "
            "with which they were not tried ('penstock compare' does so for a model)"
        )
    return replace(capabilities, accuracy_basis=basis, accuracy_doubt=doubt)


@functools.cache
def processor_features() -> str:
    """The processor's features, sorted and space-separated; "baseline" if they are unknown."""
    flags: set[str] = set()
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
            for line in file.read(CPUINFO_BYTES).decode("ascii", "replace").splitlines():
                key, _, value = line.partition(":")
                if key.strip() in {"flags", "Features"}:
                    flags = set(value.split())
                    break
    # The flag smep is no kind of sme.
    known = (flags or numpy_features()) - {"smep"}
    return " ".join(sorted(f for f in known if f.startswith(FEATURE_PREFIXES))) or "baseline"


def numpy_features() -> set[str]:
    """The processor's features that NumPy knows, in small letters."""
    from numpy.lib import introspect

    runtime = getattr(introspect, "__cpu_features__", None)
    if runtime is None:
        from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # the only place

        runtime = getattr(_multiarray_umath, "__cpu_features__", {})
    return {name.lower() for name, present in runtime.items() if present}


@functools.cache
def files_of(folders: tuple[str, ...]) -> str:
    """A digest of the names, sizes and times of the files in *folders* of this package; "" if they
    are no files. It changes when code is installed or edited, at less cost than its contents'.
    """
    root, found = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), []
    try:
        for folder in folders:
            with os.scandir(os.path.join(root, folder)) as entries:
                files = [(e.name, e.stat()) for e in entries if e.name.endswith(".py")]
            found += [f"{folder} {n} {s.st_size} {s.st_mtime_ns}" for n, s in sorted(files)]
    except OSError:
        return ""
    return digest_of(found)


def package_folder(package: str) -> str | None:
    """The folder of an installed package, found without an import; None if it is not installed."""
    try:
        spec = _spec_of(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(iter(spec.submodule_search_locations))


def _spec_of(package: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, whose module a start need not import."""
    if package in sys.modules:
        return sys.modules[package].__spec__
    found = (finder.find_spec(package, None) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def version_and_record(package: str, folder: str | os.PathLike[str]) -> tuple[str, str]:
    """The version of *package* in *folder*, and its RECORD; empty if they are not known."""
    described, record = _texts(package, folder, ("METADATA", "RECORD"))
    return _version_in(described), record


def version_of(package: str, folder: str | os.PathLike[str]) -> str:
    """The version of *package* in *folder*; empty if it is not known."""
    return _version_in(*_texts(package, folder, ("METADATA",)))


def _version_in(described: str) -> str:
    rest = f"\n{described}".partition("\nVersion:")[2]
    return rest.partition("\n")[0].strip()


def _texts(package: str, folder: str | os.PathLike[str], names: Sequence[str]) -> list[str]:
    """The metadata files *names* of *package*; empty for files that do not exist."""
    # No pattern of pathlib: to compile one takes longer than to read the files.
    start = f"{package}-"
    with suppress(OSError, UnicodeDecodeError):
        with os.scandir(os.path.dirname(folder)) as entries:
            listed = [(e.name, e.path) for e in entries]
        found = [p for n, p in listed if n.startswith(start) and n.endswith(".dist-info")]
        if len(found) == 1:
            return [_read(os.path.join(found[0], name)) for name in names]
    # The package was installed in another way. This import takes longer than the rest of this
    # module.
    from importlib import metadata

    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return [""] * len(names)
    return [distribution.read_text(name) or "" for name in names]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def digest_of(parts: Iterable[str]) -> str:
    """The first `DIGEST_DIGITS` of a digest of *parts*."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:DIGEST_DIGITS]


def described(
    adapter: int, engine: str, version: str, *parts: str, limits: Iterable[str] = ()
) -> str:
    """Everything that an artefact depends on besides the model: *adapter*, the version of the
    driver, the *version* of *engine* ("": not installed), further *parts*, the processor, and
    *limits* of what the engine uses of it.
    """
    if not version:
        return f"{adapter} ({engine} missing)"
    processor = f"{platform.machine()} {processor_features()}"
    return f"{adapter} ({'; '.join([f'{engine} {version}', *parts, processor, *limits])})"
