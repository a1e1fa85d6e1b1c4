"""`penstock calibrate`: measures what operations cost on the devices of this machine."""

from __future__ import annotations

from typing import Annotated, Any

from penstock.cli import options
from penstock.cli.declarations import argument, option
from penstock.cli.failures import Unfinished
from penstock.cli.output import Output


def calibrate(
    output: Output,
    models: Annotated[
        list[str] | None,
        argument("MODEL", "Measure the kinds of operations of these models first."),
    ] = None,
    device: options.Devices = None,
    threads: options.Threads = None,
    accuracy: options.Accuracy = None,
    seconds: Annotated[
        float | None,
        option(
            "--seconds S",
            "Time for each device: by default 3, and 30 for one that computes "
            "in another process or beside the processor.",
            least=0.1,
        ),
    ] = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Measure what operations cost on each device, so that plans know this machine.

    Small models are timed, and the costs kept beside the compilation cache. Compiles that follow
    place operations by them. They hold for this version of the device, this processor, and the
    class and number of threads given. Exit code 1: a device ran none of the models, or its costs
    could not be kept.
    """
    from msgspec import to_builtins

    from penstock.cache.cache import Cache
    from penstock.cli import opening
    from penstock.partitioning.costs import cell_of
    from penstock.partitioning.policy import Policy
    from penstock.runtime.calibration.calibrating import calibrate as measure
    from penstock.runtime.discovery import manager
    from penstock.threads import allowed_threads

    policy = opening.policy_of(accuracy) or Policy()
    opening.check_devices(device or ())
    loaded = [opening.load(path).model for path in models or ()]
    cells = {cell_of(g, o) for model in loaded for g in model.subgraphs for o in g.operations}
    place, count = str(Cache(directory).directory), allowed_threads(threads)
    found = []
    chosen = manager.choose(device or None)
    with output.progress() as progress:
        bar = progress.add_task("measuring", total=len(chosen))
        for one in chosen:
            progress.update(bar, description=f"measuring {one.name}")
            found.append(
                measure(
                    one, place, accuracy=policy.accuracy, num_threads=count, seconds=seconds,
                    cells=cells,
                )
            )  # fmt: skip
            progress.advance(bar)
    output.table(
        ("device", "models timed", "time", "a step", "kept"),
        [
            (
                each.device,
                str(each.samples),
                f"{each.seconds:.1f} s",
                "" if each.costs is None else f"{each.costs.step_ns / 1e3:.1f} us",
                "nothing to keep" if each.costs is None else each.not_kept or "yes",
            )
            for each in found
        ],
    )
    output.line(f"{policy.accuracy}, threads: {count}, kept in {place}", "dim")
    rows: list[dict[str, Any]] = [
        {
            "device": each.device,
            "samples": each.samples,
            "seconds": each.seconds,
            "costs": to_builtins(each.costs),
            "not_kept": each.not_kept,
        }
        for each in found
    ]
    output.json(
        {"directory": place, "accuracy": policy.accuracy, "threads": count, "devices": rows}
    )
    if failed := [each.device for each in found if each.costs is None or each.not_kept]:
        raise Unfinished(f"no costs are kept for {', '.join(failed)}")
