"""`penstock doctor` and `devices`: what is installed, what works, and why the rest does not."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import penstock
from penstock import knobs
from penstock.cli import capsules, options
from penstock.cli.failures import Unfinished, UsageError
from penstock.cli.output import output_of, shortened, size
from penstock.cli.settings import (
    describe as describe_knob,
    place,
    places,
    problems,
    settings_place,
    shown,
    unknown_devices,
    unknown_drivers,
    unknown_names,
    unknown_places,
    unwritable_places,
    without_nonsense,
)
from penstock.distribution import DISTRIBUTION, FOREIGN
from penstock.errors import InputError
from penstock.ipc import sandbox

if TYPE_CHECKING:
    from penstock import DeviceInfo


def devices(context: typer.Context) -> None:
    """List every device, and why it cannot be used if it cannot."""
    output = output_of(context)
    found = penstock.devices()
    output.table(
        ("device", "type", "version", "driver", "runs in", "usable"),
        [
            (d.name, d.type, shortened(d.version), brought_by(d), runs_in(d), usable(d))
            for d in found
        ],
    )
    output.json({"devices": [describe(d) for d in found]})


def usable(device: DeviceInfo) -> str:
    """`yes` or `when named`, optionally with `(simulated)`, or `no: ` and the reason."""
    if not device.usable:
        return f"no: {device.reason}"
    named = "when named" if device.only_when_named else "yes"
    return f"{named} (simulated)" if device.capabilities.simulated else named


def brought_by(device: DeviceInfo) -> str:
    """The device's driver, with its distribution if that is not Penstock."""
    source = device.source
    if source.distribution in {"", DISTRIBUTION}:
        return device.driver
    return f"{device.driver} ({source.distribution} {source.version})".replace(" )", ")")


def runs_in(device: DeviceInfo) -> str:
    """The process that the device's driver runs in."""
    return "a process of its own" if device.isolated else "this process"


def describe(device: DeviceInfo) -> dict[str, Any]:
    """A device for `--json`."""
    import msgspec

    return {
        "name": device.name,
        "type": device.type,
        "version": device.version,
        "usable": device.usable,
        "reason": device.reason,
        "only_when_named": device.only_when_named,
        "driver": device.driver,
        "distribution": device.source.distribution,
        "distribution_version": device.source.version,
        "entry_point": device.source.entry_point,
        "isolated": device.isolated,
        "feature_level": device.feature_level,
        "capabilities": msgspec.to_builtins(device.capabilities),
    }


PACKAGES: Final = (
    DISTRIBUTION,
    "numpy",
    "ml-dtypes",
    "msgspec",
    "flatbuffers",
    "platformdirs",
    "typer",
    "rich",
    "pillow",
)
"""The packages that Penstock requires."""

ENGINES: Final = ("ai-edge-litert", "onnxruntime", "openvino", "llvmlite", "onnx")
"""Optional engines for drivers and comparisons."""


def doctor(
    context: typer.Context,
    last_crash: Annotated[
        bool, typer.Option("--last-crash", help="How the process of an isolated driver died last.")
    ] = False,
    capsule: Annotated[
        str | None,
        typer.Option(
            "--capsule",
            metavar="FILE",
            help=(
                "Write the last failure of a driver as FILE, for 'replay'; with --model and "
                "--device, one brought about now."
            ),
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The network that fails.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", metavar="NAME", help="The device that it fails on."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="INPUT", help="As 'run' takes them; repeat for several."),
    ] = None,
    accuracy: options.Accuracy = None,
    names: Annotated[
        bool, typer.Option("--names", help="Keep the network's own names in the capsule.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, metavar="N", help="Seed of random inputs (default: 0)."),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget",
            metavar="VERDICT",
            help="Forget a verdict on a driver: the beginning of its key, or all.",
        ),
    ] = None,
) -> None:
    """Say what is installed, which drivers work and why others do not, and which limits hold."""
    output = output_of(context)
    if sum((last_crash, capsule is not None, forget is not None)) > 1:
        raise UsageError("give one of --last-crash, --capsule and --forget")
    for_a_capsule = (model, device, inputs or None, accuracy, names or None, seed)
    if capsule is None and any(given is not None for given in for_a_capsule):
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
        capsules.write_capsule(
            output,
            capsule,
            model=model,
            device=device,
            inputs=inputs or (),
            accuracy=accuracy,
            names=names,
            seed=seed,
        )
        return
    data = examine()
    found_wrong = capsules.verdicts()
    output.table(("system", ""), [(k, v) for k, v in data["system"].items()])
    output.table(
        ("package", "version"), [(k, v or "not installed") for k, v in data["packages"].items()]
    )
    with without_nonsense():
        found = penstock.devices()
    output.table(
        ("device", "type", "version", "feature level", "runs in", "usable"),
        [
            (d.name, d.type, shortened(d.version), d.feature_level, runs_in(d), usable(d))
            for d in found
        ],
    )
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
    memory = limits["cgroup_memory_bytes"]
    output.table(
        ("limit", "value"),
        [
            ("processors", limits["processors"]),
            ("processors this process may use", limits["affinity"]),
            (
                "cgroup CPU quota",
                "none" if limits["cgroup_cpus"] is None else f"{limits['cgroup_cpus']:g} CPUs",
            ),
            ("OMP_NUM_THREADS", limits["omp_num_threads"] or "not set"),
            ("threads a driver gets", limits["threads"] or "not known: see the problems"),
            ("cgroup memory", "no limit" if memory is None else size(memory)),
        ],
    )
    kept = {k: v or "not known: see the problems" for k, v in data["places"].items()}
    output.table(
        ("the compilation cache's", "where"),
        [
            ("entries", kept["cache_directory"]),
            ("registries", kept["state_directory"]),
            ("key", kept["key"]),
        ],
    )
    output.table(("isolated drivers are held by", "here"), list(data["sandbox"].items()))
    if (crash := capsules.last_in_words()) is not None:
        output.line(crash)
    capsules.show_verdicts(output, found_wrong)
    if data["knobs"]:
        rows = [(k["name"], shown(k), k["default"], place(k["source"])) for k in data["knobs"]]
        output.table(("changed knob", "value", "default", "from"), rows, whole=("changed knob",))
    else:
        output.line("knobs: all at their defaults")
    output.problems(data["problems"])
    output.notes(data["notes"])
    output.json(data)
    if data["problems"]:
        raise Unfinished("; ".join(data["problems"]))


def examine() -> dict[str, Any]:
    """The report for `--json`."""
    from penstock.runtime.discovery import manager

    every = [describe_knob(name) for name in knobs.KNOBS]
    with without_nonsense():
        found = penstock.devices()
        delegates = fits()
    unwritable = unwritable_places()
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
        "places": places(),
        "sandbox": dict(sandbox.detect().lines()),
        "verdicts": [capsules.describe_verdict(v) for v in capsules.verdicts()],
        "knobs": [k for k in every if k["source"] != "default"],
        "settings_file": settings_place(),
        "problems": foreign_distribution()
        + problems(every)
        + unknown_places()
        + [place.text for place in unwritable if not place.used]
        + unknown_devices([d.name for d in found])
        + unknown_drivers(manager.drivers()),
        "notes": unknown_names()
        + doubts(found)
        + [place.text for place in unwritable if place.used],
    }


def fits() -> list[dict[str, Any]]:
    """Each built-in delegate, its device, whether it fits, and why; the most suitable first."""
    from penstock.delegates.fitting import fitting

    return [
        {"name": f.delegate, "device": f.device, "fits": f.fits, "why": f.why} for f in fitting()
    ]


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
        quota, period = (
            _read(cgroup / "cpu" / "cpu.cfs_quota_us"),
            _read(cgroup / "cpu" / "cpu.cfs_period_us"),
        )
        text = f"{quota} {period}"
    quota, _, period = text.partition(" ")
    if not quota.isdigit() or not (period or "").isdigit() or int(period) == 0:
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
