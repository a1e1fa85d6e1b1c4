"""`penstock replay`: whether a capsule's failure repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import FileError, Unfinished, UsageError, os_reason
from penstock.cli.output import output_of
from penstock.errors import CapsuleError

if TYPE_CHECKING:
    from penstock.capsules import Capsule


def replay(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A capsule that 'doctor --capsule' wrote.")
    ],
    device: Annotated[
        str | None,
        typer.Option(
            "--device", "-d", metavar="NAME", help="Run it there, not on the device that failed."
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option("--runs", min=1, metavar="N", help="Runs before it counts as gone.")
    ] = 3,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0.001, metavar="S", help="Seconds that each run may take."),
    ] = None,
) -> None:
    """Run the step in the capsule FILE again, and say whether its failure repeats.

    Exit code 0 when it does not, 1 when it does, or the step cannot be run.
    """
    import msgspec

    from penstock.cli import opening
    from penstock.cli.capsules import describe
    from penstock.runtime.departures import distance_to_builtins
    from penstock.runtime.replaying import replay as run_again

    output = output_of(context)
    capsule = read(file)
    failed = capsule.manifest.failure.device.name
    check_device(failed if device is None else device, named=device is not None)
    opening.warn_of_settings(output)
    output.line(capsule.show())
    try:
        found = run_again(capsule, device, tries=runs, timeout=timeout)
    except CapsuleError as error:
        raise FileError(file, str(error)) from error
    output.line(found.show(), "red" if found.repeats else "")
    told = msgspec.structs.asdict(found)
    told["distance"] = None if found.distance is None else distance_to_builtins(found.distance)
    output.json({**told, "capsule": describe(capsule)})
    if found.repeats:
        raise Unfinished(f"the failure repeats on {found.device}")


def read(file: str) -> Capsule:
    """Raises `FileError` for what is no capsule."""
    from penstock import capsules

    if not file:
        raise UsageError("FILE is empty; it must be the name of a capsule")
    try:
        return capsules.read(file)
    except OSError as error:
        raise FileError(file, os_reason(error)) from None
    except CapsuleError as error:
        raise FileError(file, str(error)) from error


def check_device(name: str, *, named: bool) -> None:
    """Raises `UsageError` where no device has that name."""
    from penstock.cli import opening

    try:
        opening.check_devices([name])
    except UsageError as error:
        if named:
            raise
        raise UsageError(
            f"the capsule's device is not here: {error}; --device runs it on another"
        ) from None
