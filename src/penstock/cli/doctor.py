"""`penstock doctor`: what is installed, what works, and why the rest does not."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import penstock
from penstock import knobs
from penstock.cli import capsules, settings
from penstock.cli.declarations import option
from penstock.cli.devices import describe, show_devices
from penstock.cli.failures import Unfinished, UsageError
from penstock.cli.output import Output, size
from penstock.distribution import DISTRIBUTION, FOREIGN
from penstock.errors import InputError
from penstock.ipc import sandbox

if TYPE_CHECKING:
    from penstock import DeviceInfo


PACKAGES: Final = (
    *(DISTRIBUTION, "numpy", "ml-dtypes", "msgspec", "flatbuffers"),
    *("platformdirs", "typer", "rich", "pillow"),
)
"""The packages that Penstock requires."""

ENGINES: Final = ("ai-edge-litert", "onnxruntime", "openvino", "llvmlite", "onnx", "wgpu")
"""Optional engines for drivers and comparisons."""


def doctor(
    output: Output,
    *,
    last_crash: Annotated[
        bool, option("--last-crash", "How the process of an isolated driver died last.")
    ] = False,
    capsule: Annotated[
        str | None,
        option(
            "--capsule FILE",
            "Write the last failure of a driver as FILE, for 'replay'; with --model and "
            "--device, one brought about now.",
        ),
    ] = None,
    wanted: capsules.Reproduction,
    forget: Annotated[
        str | None,
        option(
            "--forget VERDICT",
            "Forget a verdict on a driver: the beginning of its key, or all.",
        ),
    ] = None,
) -> None:
    """Say what is installed, which drivers work and why others do not, and which limits hold."""
    if sum((last_crash, capsule is not None, forget is not None)) > 1:
        raise UsageError("give one of --last-crash, --capsule and --forget")
    if capsule is None and wanted.is_given:
        raise UsageError(
            "--model, --device, --input, --accuracy, --names and --seed go with --capsule"
        )
    if last_crash:
        capsules.show_last_crash(output)
        return
    if forget is not None:
        capsules.forget(output, forget)
        return
    if capsule is not None:
        capsules.write_capsule(output, capsule, wanted)
        return
    data = examine()
    found_wrong = capsules.verdicts()
    output.table(("system", ""), [(k, v) for k, v in data["system"].items()])
    output.table(
        ("package", "version"), [(k, v or "not installed") for k, v in data["packages"].items()]
    )
    with settings.without_invalid_isolation():
        found = penstock.devices()
    show_devices(output, ("version", "feature level"), found)
    output.table(
        ("delegate", "device", "fits", "why"),
        [
            (d["name"], d["device"] or "none", "yes" if d["fits"] else "no", d["why"])
            for d in data["delegates"]
        ],
    )
    if (best := data["delegate"]) is not None:
        why = next(d["why"] for d in data["delegates"] if d["name"] == best)
        output.line(f"the delegate for this machine: {best}, because {why}")
    else:
        output.line("no built-in delegate fits this machine: an interpreter without one does all")
    limits = data["limits"]
    memory, quota = limits["cgroup_memory_bytes"], limits["cgroup_cpus"]
    output.table(
        ("limit", "value"),
        [
            ("processors", limits["processors"]),
            ("processors this process may use", limits["affinity"]),
            ("cgroup CPU quota", "none" if quota is None else f"{quota:g} CPUs"),
            ("OMP_NUM_THREADS", limits["omp_num_threads"] or "not set"),
            ("threads a driver gets", limits["threads"] or NOT_KNOWN),
            ("cgroup memory", "no limit" if memory is None else size(memory)),
        ],
    )
    places = {
        "entries": data["places"]["cache_directory"],
        "registries": data["places"]["state_directory"],
        "key": data["places"]["key"],
    }
    output.table(
        ("the compilation cache's", "where"),
        [(name, place or NOT_KNOWN) for name, place in places.items()],
    )
    output.table(("isolated drivers are held by", "here"), list(data["sandbox"].items()))
    if (crash := capsules.last_in_words()) is not None:
        output.line(crash)
    capsules.show_verdicts(output, found_wrong)
    if data["knobs"]:
        rows = [
            (k["name"], settings.shown(k), k["default"], settings.place(k["source"]))
            for k in data["knobs"]
        ]
        output.table(("changed knob", "value", "default", "from"), rows, whole=("changed knob",))
    else:
        output.line("knobs: all at their defaults")
    output.problems(data["problems"])
    output.notes(data["notes"])
    output.json(data)
    if data["problems"]:
        raise Unfinished("; ".join(data["problems"]))


NOT_KNOWN: Final = "not known: see the problems"


def examine() -> dict[str, Any]:
    """The report for `--json`."""
    import msgspec

    from penstock.delegates.fitting import fitting
    from penstock.runtime.discovery import manager

    every = [settings.describe(name) for name in knobs.KNOBS]
    with settings.without_invalid_isolation():
        found = penstock.devices()
        delegates = [
            {"name": f.delegate, "device": f.device, "fits": f.fits, "why": f.why}
            for f in fitting()
        ]
    unwritable = settings.unwritable_places()
    return {
        "system": {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "executable": sys.executable,
        },
        "packages": {name: installed(name) for name in (*PACKAGES, *ENGINES)},
        "devices": [describe(d) for d in found],
        "delegates": delegates,
        "delegate": next((d["name"] for d in delegates if d["fits"]), None),
        "limits": limits(),
        "places": settings.places(),
        "sandbox": dict(sandbox.detect().lines()),
        "verdicts": msgspec.to_builtins(capsules.verdicts()),
        "knobs": [k for k in every if k["source"] != "default"],
        "settings_file": settings.settings_place(),
        "problems": foreign_distribution()
        + settings.problems(every)
        + settings.unknown_places()
        + [place.text for place in unwritable if not place.used]
        + settings.unknown_devices([d.name for d in found])
        + settings.unknown_drivers(manager.drivers()),
        "notes": settings.unknown_names()
        + doubts(found)
        + [place.text for place in unwritable if place.used],
    }


def doubts(found: Sequence[DeviceInfo]) -> list[str]:
    """Devices whose declared accuracy classes may not hold with the installed engine version."""
    return [
        f"device {d.name}: {d.capabilities.accuracy_doubt}"
        for d in found
        if d.usable and d.capabilities.accuracy_doubt
    ]


def foreign_distribution() -> list[str]:
    """A problem if another project's distribution installs the same import package.

    If that distribution has overwritten this module, the problem cannot be reported.
    """
    if (found := installed(FOREIGN)) is None:
        return []
    problem = (
        f"the distribution {FOREIGN!r} {found} of another project is installed beside "
        f"{DISTRIBUTION!r}, and both write the import package 'penstock': files of either may be "
        f"overwritten. Run 'pip uninstall {FOREIGN} {DISTRIBUTION}', then install {DISTRIBUTION!r} "
        "again"
    )
    return [problem]


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def limits(cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, Any]:
    """Processors, threads and memory that this process may use.

    None if there is no limit, or a setting prevents finding it. Reads cgroup v2 files (`cpu.max`,
    `memory.max`), otherwise those of v1.
    """
    from penstock.runtime import allowed_threads

    affinity = os.cpu_count()
    if sys.platform == "linux":
        affinity = len(os.sched_getaffinity(0))
    try:
        threads = allowed_threads()
    except (InputError, OSError):
        threads = None
    return {
        "processors": os.cpu_count(),
        "affinity": affinity,
        "cgroup_cpus": _cgroup_cpus(cgroup),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "threads": threads,
        "cgroup_memory_bytes": _cgroup_memory(cgroup),
    }


def _cgroup_cpus(cgroup: Path) -> float | None:
    text = _read(cgroup / "cpu.max")
    if text is None:
        parts = (_read(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        text = " ".join(map(str, parts))
    quota, _, period = text.partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _cgroup_memory(cgroup: Path) -> int | None:
    text = _read(cgroup / "memory.max") or _read(cgroup / "memory" / "memory.limit_in_bytes")
    if text is None or not text.isdigit():
        return None
    # cgroup v1 represents "no limit" by the largest multiple of the page size.
    return int(text) if int(text) < 2**60 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
