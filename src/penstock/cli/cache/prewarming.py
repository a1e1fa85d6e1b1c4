"""`penstock cache prewarm`: compiles ahead of the first start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import penstock
from penstock.cli import options
from penstock.cli.cache.directory import named_directory
from penstock.cli.cache.key import compile_arguments
from penstock.cli.cache.uncached import why_nothing_is_cached
from penstock.cli.failures import (
    WORK_FAILED,
    FileError,
    Unfinished,
    exit_code,
    message,
    name,
)
from penstock.cli.output import milliseconds, output_of
from penstock.cli.progress import compile_bar
from penstock.cli.shapes import assumed_shapes, in_words
from penstock.errors import ModelError, PenstockError

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.compilation import StepReceipt


def prewarm(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="A .tflite or .onnx file, or more.")
    ],
    device: options.Devices = None,
    preference: options.Preference = None,
    priority: options.Priority = None,
    accuracy: options.Accuracy = None,
    threads: options.Threads = None,
    signature: options.SignatureName = None,
    shape: options.Shapes = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Compile every MODEL into the cache, so that programs that ask for the same start from it.

    All but the directory is part of the key: give what those programs give. Dimensions that a model
    leaves unknown are taken for 1 where no --shape says more, as 'run' does.
    """
    from penstock.cache.location import default_directory
    from penstock.cli import opening

    output = output_of(context)
    arguments = compile_arguments(
        devices=device,
        preference=preference,
        priority=priority,
        accuracy=accuracy,
        threads=threads,
        signature=signature,
        shapes=shape,
    )
    # Without a place to keep anything the compiles would be in vain.
    arguments["cache"] = default_directory() if directory is None else named_directory(directory)
    opening.warn_of_settings(output)
    warmed = [compile_one(output, path, arguments) for path in models]
    problems = [problem for one in warmed for problem in one.problems()]
    output.table(
        ("model", "step", "device", "time", "outcome", "why"),
        [row for one in warmed for row in one.rows()],
        whole=("device", "time", "outcome"),
    )
    if len(problems) > 1:
        output.problems(problems)
    notes = [note for one in warmed for note in one.notes]
    output.notes(notes)
    output.json(
        {"models": [one.describe() for one in warmed], "problems": problems, "notes": notes}
    )
    if problems:
        code = max((exit_code(one.error) for one in warmed if one.error), default=WORK_FAILED)
        # Each is told once: one by the line that ends the command, several above it.
        told = problems[0] if len(problems) == 1 else f"{len(problems)} problems, named above"
        raise Unfinished("; ".join(problems) if output.as_json else told, code)


@dataclass(frozen=True, slots=True)
class Warmed:
    """What became of the *model* of that name: the compile's *steps*, or the *error* that it ended
    with; and *notes* on what was assumed, or why no step of it is cached.
    """

    model: str
    steps: tuple[StepReceipt, ...] = ()
    compiles: int = 0
    error: PenstockError | None = None
    notes: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, ...]]:
        if self.error is not None:
            return [(self.model, "", "", "", "failed", "")]
        return [
            (self.model, str(index), step.device, milliseconds(step.wall_ns), *outcome(step))
            for index, step in enumerate(self.steps)
        ]

    def problems(self) -> list[str]:
        """Why the model, or a step of it, is not in the cache."""
        if self.error is not None:
            text = message(self.error)
            return [text if text.startswith(self.model) else f"{self.model}: {text}"]
        return [
            f"{self.model}: step {index} on {step.device} {not_saved(step, self.model)}"
            for index, step in enumerate(self.steps)
            if step.cache.not_saved
        ] + [
            f"{self.model}: step {index} fell back from {step.fallback_from}: {step.error}"
            for index, step in enumerate(self.steps)
            if step.fallback_from is not None
        ]

    def describe(self) -> dict[str, Any]:
        """What `--json` says."""
        error = self.error
        return {
            "model": self.model,
            "compiles": self.compiles,
            "steps": [describe(step) for step in self.steps],
            "error": None if error is None else {"type": name(error), "message": message(error)},
        }


def compile_one(output: Output, path: str, arguments: dict[str, Any]) -> Warmed:
    """One compile into the cache."""
    from penstock.cli import opening

    notes: tuple[str, ...] = ()
    try:
        loaded = opening.load(path)
        given = arguments["shapes"]
        if likely := assumed_shapes(loaded.model, arguments["signature"], given):
            notes = (f"{path}: compiled for {in_words(likely)}; --shape gives another shape",)
        wanted = {**arguments, "shapes": {**likely, **(given or {})} or None}
        with (
            compile_bar(output, Path(path).name) as progress,
            penstock.compile(loaded.model, progress=progress, **wanted) as compiled,
        ):
            notes += tuple(why_nothing_is_cached(path, compiled, arguments["devices"]))
            return Warmed(path, compiled.receipt.steps, compiled.receipt.compiles, notes=notes)
    except ModelError as error:
        return Warmed(path, error=FileError(path, str(error)), notes=notes)
    except PenstockError as error:
        return Warmed(path, error=error, notes=notes)


def not_saved(step: StepReceipt, path: str) -> str:
    """Why a step was not saved, in words that name what to do where something can be done."""
    if step.cache.is_to_be_written:
        return (
            f"is compiled when it first runs: 'penstock run {path}' with the same options warms it"
        )
    return f"was not saved: {step.cache.not_saved}"


def outcome(step: StepReceipt) -> tuple[str, str]:
    """`hit`, `compiled, saved`, `compiled, not saved`, `not compiled` where the driver does that at
    the first run, or `not cached` for a device that has no cache files; and why it was no hit.
    """
    cache = step.cache
    if cache.outcome == "hit":
        return "hit", ""
    if cache.outcome == "off":
        return "not cached", cache.reason
    if cache.is_to_be_written:
        return "not compiled", cache.reason
    return f"compiled, {'saved' if cache.saved else 'not saved'}", cache.reason


def describe(step: StepReceipt) -> dict[str, Any]:
    """What `--json` says of a step."""
    return {
        "device": step.device,
        "operations": step.operations,
        "outcome": step.cache.outcome,
        "reason": step.cache.reason or None,
        "saved": step.cache.saved,
        "not_saved": step.cache.not_saved or None,
        "wall_ns": step.wall_ns,
        "fallback_from": step.fallback_from,
        "error": step.error,
    }
