"""Stored failures: `penstock replay`, and `doctor --capsule`, `--forget` and `--last-crash`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec

from penstock.cli import failures, files
from penstock.cli.cache.directory import when
from penstock.cli.compare import DEFAULT_CLASS, comparing
from penstock.cli.declarations import argument, option
from penstock.cli.failures import Unfinished, UsageError
from penstock.cli.options import Accuracy, Choices
from penstock.cli.output import Output, shortened
from penstock.errors import BadSetting, CacheError, CapsuleError, counted

if TYPE_CHECKING:
    from penstock.cache.verdicts import DriverVerdict
    from penstock.capsules import Capsule
    from penstock.hal import AccuracyClass
    from penstock.ipc.crash_records import Crash


SHOWN_OPERATIONS: Final = 4
LONGEST_NAME: Final = 60
"""Characters of an operation's name in the list of a crash's operations."""


def show_last_crash(output: Output) -> None:
    """Prints the newest stored crash, or that there is none."""
    from penstock.ipc.crash_records import crash_directory, last_crash

    crash = last_crash()
    if crash is None:
        output.line(
            f"no process of an isolated driver has died: nothing is kept in {crash_directory()}"
        )
        output.json({"crash": None})
        return
    rows = [
        ("driver", f"{crash.driver} ({crash.entry})"),
        ("process", f"{crash.pid} {crash.how}" if crash.pid else crash.how),
        ("when", _when(crash.when)),
        ("deaths in a row", str(crash.deaths)),
        ("quarantined", _quarantine(crash)),
    ]
    for call in crash.underway:
        where = f" on {call.device}, version {call.version}" if call.device else ""
        rows.append(("call under way", f"{call.call}{where}"))
        if call.model:
            rows.append(("its model", call.model))
            rows.append(("its operations", _few(call.operations)))
    if not crash.underway:
        rows.append(("call under way", "none"))
    output.line("what the process wrote last:" if crash.output else "the process wrote nothing")
    for line in crash.output.splitlines():
        output.line(f"  {line}")
    output.table(("crash", ""), rows, whole=("crash",))
    output.json({"crash": msgspec.to_builtins(crash)})


def _few(operations: Sequence[str]) -> str:
    """The first of *operations*, and the number of the others."""
    from penstock.ipc.crash_records import MOST_OPERATIONS

    text = ", ".join(shortened(one, LONGEST_NAME) for one in operations[:SHOWN_OPERATIONS])
    more = len(operations) - SHOWN_OPERATIONS
    if more <= 0:
        return text
    least = "at least " if len(operations) >= MOST_OPERATIONS else ""
    return f"{text}, and {least}{more} more (--json has their names)"


def last_in_words() -> str | None:
    """The newest crash in one line; None if there is none, or a setting hides where it lies."""
    from penstock.ipc.crash_records import last_crash

    try:
        crash = last_crash()
    except BadSetting:
        return None
    if crash is None:
        return None
    text = f"the last crash: driver {crash.driver} {crash.how}, {_when(crash.when)}"
    if crash.quarantined:
        text += f", quarantined: {_quarantine(crash)}"
    return f"{text} (doctor --last-crash says more)"


def _quarantine(crash: Crash) -> str:
    """Whether the crash caused a quarantine, of which process, and for how long."""
    if not crash.quarantined:
        return "no"
    from penstock.ipc.supervision import QUARANTINE_SECONDS

    end = crash.when + QUARANTINE_SECONDS
    until = time.strftime("%H:%M:%S", time.localtime(end))
    if (left := end - time.time()) <= 0:
        return f"until {until}, over now"
    whose = f"process {crash.program.pid}" if crash.program else "the program that used it"
    ended = crash.program.ended() if crash.program else None
    if ended:
        return f"no longer: it was of {whose} alone, which has ended"
    text = f"until {until}, {max(1, round(left))} s more, in {whose} alone"
    return f"{text}; ending that lifts it" if ended is False else f"{text}, unless that has ended"


def _when(when: float) -> str:
    ago = max(0, int(time.time() - when))
    for unit, seconds in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if ago >= 2 * seconds:
            return f"{ago // seconds} {unit} ago"
    return f"{counted(ago, 'second')} ago"


ALL: Final = "all"
MOST_TYPES: Final = 4


class Reproduction(msgspec.Struct, frozen=True):
    """A failure that is reproduced now: the network, the device, and how it runs."""

    model: Annotated[str | None, option("--model MODEL", "The network that fails.")] = None
    device: Annotated[str | None, option("--device -d NAME", "The device that it fails on.")] = None
    inputs: Annotated[
        list[str] | None,
        option("--input INPUT", "As 'run' takes them; repeat for several."),
    ] = None
    accuracy: Accuracy = None
    names: Annotated[bool, option("--names", "Keep the network's own names in the capsule.")] = (
        False
    )
    seed: Annotated[
        int | None, option("--seed N", "Seed of random inputs (default: 0).", least=0)
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any option is given."""
        return any(
            v is not None and v is not False and v != [] for v in msgspec.structs.astuple(self)
        )


def write_capsule(output: Output, name: str, wanted: Reproduction) -> None:
    """Writes the capsule *name*, of the last stored failure or one that is reproduced now."""
    from penstock import capsules
    from penstock.capsules.making import with_crash

    target = files.target("--capsule", name)
    if target is None:
        raise UsageError("--capsule needs the name of a file")
    model, device = wanted.model, wanted.device
    if (model is None) != (device is None):
        raise UsageError("--model and --device go together: which network fails, and where")
    if model is None and wanted.is_given:
        raise UsageError("--input, --accuracy, --names and --seed need --model and --device")
    if model is None or device is None:
        capsule, source = _last()
    else:
        made = _reproduced(output, model, device, wanted)
        capsule = with_crash(made) or made
        source = "brought about now"
    files.write(target, lambda: capsules.write(target, capsule))
    output.line(capsule.show())
    output.line(f"written: {target} ({counted(target.stat().st_size, 'byte')}; {source})")
    case = capsule.manifest.case
    if case is None:
        output.line(
            "it cannot be replayed: --model MODEL --device NAME brings the failure about with its "
            "step",
            "dim",
        )
    else:
        drawn = (
            " with inputs that it draws; the knob keep_failure_data keeps the inputs of failures "
            "to come"
        )
        output.line(f"penstock replay {target} repeats it{drawn if case.left_out else ''}", "dim")
    output.json({"written": str(target), "source": source, **describe(capsule)})


def describe(capsule: Capsule) -> dict[str, Any]:
    """The capsule for `--json`: its manifest without plan and receipt."""
    # Plan and receipt are not decoded, because a capsule may come from an untrusted source.
    left_out = dict.fromkeys(("plan", "receipt"), msgspec.Raw(b"null"))
    manifest = msgspec.structs.replace(capsule.manifest, **left_out)
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    return {key: value for key, value in data.items() if key not in left_out}


def _last() -> tuple[Capsule, str]:
    """The last stored failure or crash. Raises `Unfinished` if there is none."""
    from penstock import capsules, knobs
    from penstock.capsules import evidence
    from penstock.capsules.making import with_crash

    path = evidence.last()
    with failures.opening(path, CapsuleError):
        found = with_crash(None if path is None else capsules.read(path))
    if found is None:
        why = "" if knobs.keep_failures() else " (the knob keep_failures is off)"
        raise Unfinished(
            f"no failure of a driver was kept here{why}; --model and --device bring one about"
        )
    return found, "kept when it happened"


def _reproduced(output: Output, model: str, device: str, wanted: Reproduction) -> Capsule:
    from penstock.cli import opening
    from penstock.distribution import FALLBACK_DEVICE
    from penstock.execution.inputs import in_order
    from penstock.runtime.reproducing import reproduce

    opening.policy_of(wanted.accuracy)
    opening.check_devices([device])
    if device == FALLBACK_DEVICE:
        raise UsageError(f"--device {FALLBACK_DEVICE}: it is what the others are compared with")
    accuracy = wanted.accuracy
    choices = Choices(accuracy=accuracy, seed=wanted.seed or 0)
    opened = opening.open_fed(output, model, wanted.inputs, choices)
    fed = opened.fed
    with comparing(output, device) as progress:
        found = reproduce(
            opened.loaded.model,
            in_order(fed.arrays, opened.interface),
            device,
            accuracy=cast("AccuracyClass", accuracy or DEFAULT_CLASS),
            names=wanted.names,
            progress=progress,
        )
    output.notes([*fed.notes, *fed.assumption()])
    if found.capsule is None:
        output.line(found.comparison.show())
        output.json({"written": None, **found.comparison.to_builtins()})
        raise Unfinished(f"nothing failed on {device}, and no capsule was written")
    return found.capsule


def verdicts() -> list[DriverVerdict]:
    """The verdicts of shadow verification, newest first; none if they cannot be read."""
    from penstock.cache.verdicts import DriverVerdicts

    try:
        return DriverVerdicts().every()
    except (CacheError, BadSetting):
        return []


def show_verdicts(output: Output, found: Sequence[DriverVerdict]) -> None:
    """Prints a table of the verdicts, if there are any."""
    rows = [
        (v.short, v.device, v.version, in_words(v.types), f"{v.fault}: {v.reason}", when(v.created))
        for v in found
    ]
    if rows:
        columns = ("verdict", "device", "version", "operation", "what", "found")
        output.table(columns, rows, whole=("verdict",))


def in_words(types: Sequence[str]) -> str:
    """The first operation types, and the number of the others."""
    more = len(types) - MOST_TYPES
    return ", ".join(types[:MOST_TYPES]) + (f" and {more} more" if more > 0 else "")


def forget(output: Output, beginning: str) -> None:
    """Removes the one verdict with this prefix, or "all"; otherwise raises `UsageError`."""
    from penstock.cache.verdicts import DriverVerdicts

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
    output.json({"forgotten": 1, "verdict": msgspec.to_builtins(found[0])})


def replay(
    output: Output,
    file: Annotated[str, argument("FILE", "A capsule that 'doctor --capsule' wrote.")],
    device: Annotated[
        str | None,
        option("--device -d NAME", "Run it there, not on the device that failed."),
    ] = None,
    runs: Annotated[int, option("--runs N", "Runs before it counts as gone.", least=1)] = 3,
    timeout: Annotated[
        float | None, option("--timeout S", "Seconds that each run may take.", least=0.001)
    ] = None,
) -> None:
    """Run the step in the capsule FILE again, and say whether its failure repeats.

    Exit code 0 when it does not, 1 when it does, or the step cannot be run.
    """
    from penstock import capsules
    from penstock.cli import opening
    from penstock.runtime.comparison import distance_to_builtins
    from penstock.runtime.reproducing import replay as run_again

    if not file:
        raise UsageError("FILE is empty; it must be the name of a capsule")
    with failures.opening(file, CapsuleError):
        capsule = capsules.read(file)
    failed = capsule.manifest.failure.device.name
    try:
        opening.check_devices([failed if device is None else device])
    except UsageError as error:
        if device is not None:
            raise
        raise UsageError(
            f"the capsule's device is not here: {error}; --device runs it on another"
        ) from None
    opening.warn_of_settings(output)
    output.line(capsule.show())
    try:
        found = run_again(capsule, device, tries=runs, timeout=timeout)
    except CapsuleError as error:
        raise failures.FileError(file, str(error)) from error
    output.line(found.show(), "red" if found.repeats else "")
    data = msgspec.structs.asdict(found)
    data["distance"] = None if found.distance is None else distance_to_builtins(found.distance)
    output.json({**data, "capsule": describe(capsule)})
    if found.repeats:
        raise Unfinished(f"the failure repeats on {found.device}")
