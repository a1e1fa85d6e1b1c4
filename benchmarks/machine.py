"""The machine, versions and code of a benchmark run."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.measuring import ROOT

PACKAGES: Final = ("penstock-nn", "numpy", "ai-edge-litert", "onnxruntime", "openvino")
FEATURES: Final = ("avx2", "fma", "avx512", "avx_vnni", "amx", "asimd", "sve", "i8mm", "bf16")


def told(file: str, name: str) -> str:
    """The text after *name* on the first line that begins with it; empty without such a file."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((t[len(name) :].lstrip(" \t:") for t in lines if t.startswith(name)), "")


def processor() -> str:
    """The processor's name, with family, model and stepping if the system reports them."""
    name = told("/proc/cpuinfo", "model name") or platform.processor()
    parts = [(n.strip(), told("/proc/cpuinfo", n)) for n in ("cpu family", "model\t", "stepping")]
    known = ", ".join(f"{part} {number}" for part, number in parts if number)
    return f"{name} ({known})" if known else name


def instruction_sets() -> str:
    flags = (told("/proc/cpuinfo", "flags") or told("/proc/cpuinfo", "Features")).split()
    return " ".join(sorted(f for f in set(flags) if any(part in f for part in FEATURES)))


def memory() -> str:
    return told("/proc/meminfo", "MemTotal")


def installed() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def code() -> str:
    """Git's description of the package's contents, including uncommitted changes, and a digest of
    the programs that race and judge.
    """
    tree = git("rev-parse", "--short", "HEAD:src/penstock") or "?"
    changed = " with changes" if git("status", "--porcelain", "src/penstock") else ""
    digest = hashlib.sha256()
    for folder in ("benchmarks", "tests/golden"):
        for file in sorted(Path(ROOT, folder).rglob("*.py")):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"src/penstock is tree {tree}{changed}; races and judge {digest.hexdigest()[:12]}"


def git(*arguments: str) -> str:
    """The output of a git command; empty if there is none."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    except OSError:
        return ""
    return done.stdout.strip()


def load() -> float | None:
    """The load average of the last minute; None if the system does not report it."""
    words = told("/proc/loadavg", "").split()
    return float(words[0]) if words else None
