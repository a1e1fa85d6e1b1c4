"""`penstock bench`: latency and throughput of a model on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from penstock.cli import options
from penstock.cli.declarations import option
from penstock.cli.failures import UsageError
from penstock.cli.output import Output, milliseconds, show_cache, show_fallbacks, size

if TYPE_CHECKING:
    from penstock import CompiledModel, Receipt
    from penstock.ir import NDArray
    from penstock.partitioning.placements import Tuned

DEFAULT_RUNS: Final = 50


def bench(
    output: Output,
    model: options.ModelFile,
    inputs: options.Inputs = None,
    runs: Annotated[int, option("--runs N", "Most runs to measure.", least=1)] = DEFAULT_RUNS,
    seconds: Annotated[
        float, option("--seconds S", "Stop measuring after this long.", least=0.0)
    ] = 10.0,
    warmup: Annotated[int, option("--warmup N", "Runs before measuring.", least=0)] = 2,
    tune: Annotated[
        bool, option("--tune", "Measure candidate placements first, and keep the best.")
    ] = False,
    normalize: options.Normalize = None,
    *,
    choices: options.Choices,
) -> None:
    """Measure MODEL: latency (median, p90, p99), throughput, load and compile time, peak memory."""
    from msgspec import to_builtins

    from penstock.cli import opening

    if tune and choices.placement == "nnapi":
        raise UsageError("--tune measures placements; --placement nnapi leaves no choice")
    opened = opening.open_fed(output, model, inputs, choices, normalize)
    fed = opened.fed
    compiled, compile_ns = opened.compile(output, tune=tune)
    with compiled:
        durations, last = measure(
            output, compiled, fed.arrays, runs=runs, seconds=seconds, warmup=warmup
        )
        plan, receipt = compiled.plan, compiled.receipt
        described = json.loads(plan.to_json())
    data = {
        "load_ns": opened.loaded.load_ns,
        "compile_ns": compile_ns,
        "warmup": warmup,
        **summarise(durations),
        "peak_memory_bytes": peak_memory(),
    }
    output.table(("measure", "value"), table_rows(data))
    notes = [*receipt.notes, *fed.notes, *fed.assumption()]
    output.notes(notes)
    output.line(f"plan: {plan.summary()}", "dim")
    if plan.tuned is not None:
        show_tuned(output, plan.tuned)
    show_cache(output, receipt)
    show_fallbacks(output, receipt, last)
    output.json(
        {
            **data,
            "inputs": fed.sources,
            "notes": notes,
            "plan": described,
            "tuned": None if plan.tuned is None else to_builtins(plan.tuned),
            "compile_receipt": json.loads(receipt.to_json()),
            "receipt": json.loads(last.to_json()),
        }
    )


def show_tuned(output: Output, tuned: Tuned) -> None:
    """Prints the measured placements, by candidate."""
    from penstock.partitioning.placements import PREDICTED
    from penstock.partitioning.show import reasons_against

    when = "measured before" if tuned.stored else "measured now"
    if tuned.candidates:
        rows = [
            (
                f"{candidate.name} *" if candidate.name == tuned.winner else candidate.name,
                milliseconds(candidate.median_ns) if candidate.runs else "failed",
                milliseconds(candidate.spread_ns) if candidate.runs else "",
            )
            for candidate in tuned.candidates
        ]
        output.table(("placement", "median", "between quartiles"), rows)
        for reason in reasons_against(tuned):
            output.line(reason, "yellow")
    if not tuned.candidates and tuned.winner == PREDICTED:
        output.line(f"not tuned, nothing was measured: {tuned.reason}", "dim")
        return
    output.line(f"tuned ({when}): {tuned.winner}: {tuned.reason}", "dim")


def measure(
    output: Output,
    compiled: CompiledModel,
    arrays: Sequence[NDArray],
    *,
    runs: int,
    seconds: float,
    warmup: int,
) -> tuple[list[int], Receipt]:
    """Nanoseconds of each measured run (at most *runs*), and the last run's receipt."""
    durations: list[int] = []
    with output.progress() as progress:
        bar = progress.add_task("warm-up", total=warmup + runs)
        for _ in range(warmup):
            compiled.run(arrays)
            progress.advance(bar)
        progress.update(bar, description="measuring")
        end = time.perf_counter() + seconds
        outputs = None
        while outputs is None or (len(durations) < runs and time.perf_counter() < end):
            began = time.perf_counter_ns()
            outputs = compiled.run(arrays)
            durations.append(time.perf_counter_ns() - began)
            progress.advance(bar)
    return durations, outputs.receipt


def summarise(durations: Sequence[int]) -> dict[str, Any]:
    """Runs, median, p90, p99, least and greatest in nanoseconds, and runs a second."""
    import numpy as np

    values = np.array(durations, np.float64)
    median, p90, p99 = (float(v) for v in np.percentile(values, (50, 90, 99)))
    return {
        "runs": len(durations),
        "median_ns": median,
        "p90_ns": p90,
        "p99_ns": p99,
        "min_ns": float(values.min()),
        "max_ns": float(values.max()),
        "runs_per_second": len(durations) / (float(values.sum()) / 1e9),
    }


def table_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The measures for people."""
    memory = data["peak_memory_bytes"]
    times = ("load", "compile", "median", "p90", "p99")
    return [
        *((name, milliseconds(data[f"{name}_ns"])) for name in times),
        ("throughput", f"{data['runs_per_second']:.1f} runs/s"),
        ("peak memory", "not known on this system" if memory is None else size(memory)),
        ("measured runs", f"{data['runs']} after {data['warmup']} of warm-up"),
    ]


def peak_memory() -> int | None:
    """The process's peak memory in bytes; None if the system does not report it."""
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
