"""`penstock doctor --capsule` and `--forget`: failures put into a file, and verdicts on drivers
taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.cli import writing
from penstock.cli.cache.directory import when
from penstock.cli.failures import FileError, OutputError, Unfinished, UsageError, os_reason
from penstock.cli.output import Output
from penstock.errors import CacheError, CapsuleError, counted

if TYPE_CHECKING:
    from penstock.cache.driver_verdicts import DriverVerdict
    from penstock.capsules import Capsule
    from penstock.hal import AccuracyClass

ALL: Final = "all"
MOST_TYPES: Final = 4


def write_capsule(
    output: Output,
    name: str,
    *,
    model: str | None,
    device: str | None,
    inputs: Sequence[str],
    accuracy: str | None,
    names: bool,
    seed: int | None,
) -> None:
    """Writes the capsule *name*: of the failure kept last, or with *model* and *device* of one
    brought about now.
    """
    target = writing.target("--capsule", name)
    if target is None:
        raise UsageError("--capsule needs the name of a file")
    if (model is None) != (device is None):
        raise UsageError("--model and --device go together: which network fails, and where")
    if model is None and (inputs or accuracy is not None or names or seed is not None):
        raise UsageError("--input, --accuracy, --names and --seed need --model and --device")
    if model is None or device is None:
        capsule, source = _last()
    else:
        from penstock.capsules.crashes import with_crash

        made = _brought_about(output, model, device, inputs, accuracy, names=names, seed=seed or 0)
        capsule = with_crash(made) or made
        source = "brought about now"
    _write(target, capsule)
    output.line(capsule.show())
    output.line(f"written: {target} ({counted(target.stat().st_size, 'byte')}; {source})")
    case = capsule.manifest.case
    if case is None:
        output.line(
            "it cannot be replayed: --model MODEL --device NAME brings the failure about with its step",
            "dim",
        )
    elif case.left_out is None:
        output.line(f"penstock replay {target} repeats it", "dim")
    else:
        output.line(
            f"penstock replay {target} repeats it with inputs that it draws; the knob keep_failure_data keeps the inputs of "
            "failures to come",
            "dim",
        )
    output.json({"written": str(target), "source": source, **describe(capsule)})


def describe(capsule: Capsule) -> dict[str, Any]:
    """What `--json` says of a capsule: its manifest, without plan and receipt."""
    import msgspec

    # Neither is decoded: a capsule may come from anywhere, and they from whoever made it.
    left_out = dict.fromkeys(("plan", "receipt"), msgspec.Raw(b"null"))
    manifest = msgspec.structs.replace(capsule.manifest, **left_out)
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    return {key: value for key, value in told.items() if key not in left_out}


def _write(target: Path, capsule: Capsule) -> None:
    from penstock import capsules

    try:
        capsules.write(target, capsule)
    except OSError as error:
        raise OutputError(target, os_reason(error)) from None


def _last() -> tuple[Capsule, str]:
    """The failure or crash that was kept last. Raises `Unfinished` where there is none."""
    from penstock import capsules, knobs
    from penstock.capsules import evidence
    from penstock.capsules.crashes import with_crash

    path = evidence.last()
    try:
        found = with_crash(None if path is None else capsules.read(path))
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    except CapsuleError as error:
        raise FileError(path, str(error)) from error
    if found is None:
        why = "" if knobs.keep_failures() else " (the knob keep_failures is off)"
        raise Unfinished(
            f"no failure of a driver was kept here{why}; --model and --device bring one about"
        )
    return found, "kept when it happened"


def _brought_about(
    output: Output,
    model: str,
    device: str,
    inputs: Sequence[str],
    accuracy: str | None,
    *,
    names: bool,
    seed: int,
) -> Capsule:
    from penstock.cli import opening
    from penstock.cli.feed import Wishes, feed, slots_of
    from penstock.distribution import FALLBACK_DEVICE
    from penstock.execution.inputs import in_order
    from penstock.execution.interface import interface_of
    from penstock.runtime.reproducing import reproduce

    policy = opening.policy_of(accuracy)
    opening.check_devices([device])
    if device == FALLBACK_DEVICE:
        raise UsageError(f"--device {FALLBACK_DEVICE}: it is what the others are compared with")
    loaded = opening.load(model).model
    opening.warn_of_settings(output)
    interface = interface_of(loaded, None)
    given = list(inputs) or (["random"] if interface.inputs else [])
    fed = feed(given, slots_of(loaded, interface, interface.inputs), Wishes(None, seed))
    kind: AccuracyClass = "faithful" if policy is None else cast("AccuracyClass", accuracy)
    with output.progress() as bar:
        task = bar.add_task(f"{device}: computing the reference", total=None)
        found = reproduce(
            loaded,
            in_order(fed.arrays, interface),
            device,
            accuracy=kind,
            names=names,
            progress=lambda part: bar.update(task, description=f"{device}: {part}"),
        )
    output.notes([*fed.notes, *fed.assumption()])
    if found.capsule is None:
        output.line(found.comparison.show())
        output.json({"written": None, **found.comparison.to_builtins()})
        raise Unfinished(f"nothing failed on {device}, and no capsule was written")
    return found.capsule


def verdicts() -> list[DriverVerdict]:
    """What shadow verification found here, the newest first; none where that cannot be read."""
    from penstock.cache.driver_verdicts import DriverVerdicts

    try:
        return DriverVerdicts().every()
    except CacheError:
        return []


def show_verdicts(output: Output, found: Sequence[DriverVerdict]) -> None:
    """A table of the verdicts, where there are any."""
    if found:
        output.table(
            ("verdict", "device", "version", "operation", "what", "found"),
            [
                (
                    v.short,
                    v.device,
                    v.version,
                    in_words(v.types),
                    f"{v.fault}: {v.reason}",
                    when(v.created),
                )
                for v in found
            ],
            whole=("verdict",),
        )


def in_words(types: Sequence[str]) -> str:
    """The first few types of operations, and how many more there are."""
    more = len(types) - MOST_TYPES
    return ", ".join(types[:MOST_TYPES]) + (f" and {more} more" if more > 0 else "")


def describe_verdict(verdict: DriverVerdict) -> dict[str, Any]:
    """What `--json` says of a verdict."""
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(verdict)
    return told


def forget(output: Output, beginning: str) -> None:
    """Removes the one verdict whose key begins so, or with "all" every one. Raises `UsageError` for
    none, or several.
    """
    from penstock.cache.driver_verdicts import DriverVerdicts

    store = DriverVerdicts()
    if beginning == ALL:
        count = store.clear()
        output.line(f"{counted(count, 'verdict')} forgotten")
        output.json({"forgotten": count})
        return
    found = [v for v in store.every() if beginning and v.key.startswith(beginning)]
    if len(found) != 1:
        count_text = "no verdict begins" if not found else f"{len(found)} verdicts begin"
        raise UsageError(f"--forget {beginning}: {count_text} so; 'penstock doctor' lists them")
    store.remove(found[0].key)
    output.line(
        f"forgotten: {in_words(found[0].types)} on {found[0].device}, version {found[0].version}"
    )
    output.json({"forgotten": 1, "verdict": describe_verdict(found[0])})
