"""The instruction set that code is for: of the processor, of a setting, or of a baseline."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from penstock.drivers.llvm.isa.record import RECORDS, X86_V3, X86_V4, Isa
from penstock.errors import DeviceUnavailable, InvalidArgument
from penstock.knobs import DriverSetting

CPUINFO_BYTES: Final = 1 << 14
ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of architectures as systems say them, and as LLVM does."""

LINUX_NAMES: Final = {
    "abm": "lzcnt", "asimd": "neon", "asimddp": "dotprod", "bmi1": "bmi", "pni": "sse3",
    "sse4_1": "sse4.1", "sse4_2": "sse4.2", "amx_tile": "amx-tile", "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
}  # fmt: skip
"""Features whose names on Linux differ from LLVM's by more than underscores."""

NUMPY_NAMES: Final = {
    "AVX2": X86_V3, "AVX512_SKX": X86_V4, "AVX512VNNI": ("avx512vnni",),
    "AVX512VBMI": ("avx512vbmi",), "ASIMD": ("neon",), "ASIMDDP": ("dotprod",),
}  # fmt: skip
"""Features that NumPy finds, and what every processor with them has."""

BASELINES: Final = {
    "x86-64-v3": "avx2",
    "x86-64-v4": "avx512",
    "armv8-a": "neon",
    "armv8.2-a+dotprod": "neon-dot",
}
"""The record for each baseline that a model can be compiled for, whatever processor this is."""

instructions: Final = DriverSetting("llvm_instructions", ("processor", *RECORDS))
"""The instruction set that models are compiled for: the best of the processor, or a lesser one."""


TILES: Final = "amx-tile"
ARCH_PRCTL: Final = 158
ARCH_REQ_XCOMP_PERM: Final = 0x1023
XFEATURE_XTILEDATA: Final = 18
"""arch_prctl(2) on x86-64: the registers of tiles are used by processes that asked for them."""


@functools.cache
def architecture() -> str:
    """The processor's architecture, in LLVM's words."""
    machine = platform.machine().lower()
    return ARCHITECTURES.get(machine, machine)


@functools.cache
def features() -> frozenset[str]:
    """The features of the processor, in LLVM's words, as far as records name them."""
    found = _linux_features() if sys.platform == "linux" else set()
    if not found:
        found = _numpy_features()
    if sys.platform == "darwin" and architecture() == "aarch64":
        found |= {"neon", "dotprod"}  # all of Apple's processors that run macOS
    if TILES in found and not tiles_permitted():
        found -= {f for f in found if f.startswith("amx-")}
    return frozenset(found)


def tiles_permitted() -> bool:
    """Asks Linux for the permission to use tiles, which this process then has until it ends."""
    if sys.platform != "linux":
        return False
    import ctypes

    granted: int = ctypes.CDLL(None).syscall(
        ctypes.c_long(ARCH_PRCTL),
        ctypes.c_long(ARCH_REQ_XCOMP_PERM),
        ctypes.c_long(XFEATURE_XTILEDATA),
    )
    return granted == 0


def lacking(wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of the *wanted* features that the processor lacks."""
    return tuple(f for f in wanted if f not in features())


def missing(isa: Isa) -> tuple[str, ...]:
    """The features of *isa* that the processor lacks; its architecture if that is another."""
    if isa.architecture != architecture():
        return (isa.architecture,)
    return lacking(isa.features)


def best() -> Isa | None:
    """The best record that the processor can run; None if it can run none."""
    return next((isa for isa in RECORDS.values() if not missing(isa)), None)


def chosen(portable: str = "") -> Isa:
    """The record to compile for: that of the baseline *portable*, of `instructions`, or `best`.

    Raises `InvalidArgument` for an unknown baseline and for an instruction set that the setting
    asks for and the processor lacks, `DeviceUnavailable` if there is no record.
    """
    if portable:
        if portable not in BASELINES:
            known = ", ".join(BASELINES)
            raise InvalidArgument(f"{portable!r} is not a baseline of the device llvm: {known}")
        return RECORDS[BASELINES[portable]]
    if (wanted := instructions()) != "processor":
        isa = RECORDS[wanted]
        if lacks := missing(isa):
            text = f"driver setting llvm_instructions is {wanted}, but the processor lacks"
            raise InvalidArgument(f"{text} {', '.join(lacks)}")
        return isa
    if (found := best()) is None:
        raise DeviceUnavailable(no_record())
    return found


def no_record() -> str:
    """Why there is no code for this processor."""
    known = {"x86_64": "AVX2 and FMA", "aarch64": "NEON"}
    if (needed := known.get(architecture())) is None:
        return f"there is no code for the architecture {architecture()}"
    return f"the processor lacks {needed}, which the code needs"


def _linux_features() -> set[str]:
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        for line in file.read(CPUINFO_BYTES).decode("ascii", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"flags", "Features"}:
                return {LINUX_NAMES.get(f, f.replace("_", "")) for f in value.split()}
    return set()


def _numpy_features() -> set[str]:
    from penstock.driverkit.installation import numpy_features

    found = numpy_features()
    return {
        name for known, names in NUMPY_NAMES.items() if known.lower() in found for name in names
    }
