"""`penstock run`: runs a model once and explains the answer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import failures, files, options, schemes
from penstock.cli.failures import OutputError, Unfinished, UsageError
from penstock.cli.files import (
    model_labels,
    nothing_to_draw,
    read_labels,
    takes_arrays,
    write_out,
    write_trace,
)
from penstock.cli.options import parse_shapes
from penstock.cli.output import (
    Output,
    milliseconds,
    output_of,
    show_cache,
    show_fallbacks,
)

if TYPE_CHECKING:
    from penstock import CompiledModel, ExecutionPlan, Outputs
    from penstock.cli.answers import Answer, Results
    from penstock.cli.feed import Fed
    from penstock.cli.schemes import Comparison

EMPTY_DEVICE: Final = "null"

LABELLED: Final = frozenset({"classification", "detection", "segmentation"})
"""Tasks whose answers name classes."""

DRAWN: Final = frozenset({"detection", "segmentation", "pose"})
"""Tasks whose answers can be drawn into a picture."""


def run(
    context: typer.Context,
    model: options.ModelFile,
    inputs: options.Inputs = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="F", help="A label a line.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, metavar="N", help="Classes or boxes shown.")
    ] = 5,
    normalize: options.Normalize = None,
    rate: options.Rate = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="F",
            help="Write the picture with the answer drawn in, or .npz: the outputs.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="F", help="Write a Chrome trace (JSON) of the run."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="classification, detection, segmentation, pose or outputs.",
        ),
    ] = None,
    min_score: Annotated[
        float,
        typer.Option("--min-score", metavar="S", help="Least score of a box or key point, 0 to 1."),
    ] = 0.3,
    device: options.Devices = None,
    signature: options.SignatureName = None,
    threads: options.Threads = None,
    accuracy: options.Accuracy = None,
    placement: options.Placement = None,
    seed: options.Seed = 0,
    shape: options.Shapes = None,
    no_cache: options.NoCache = False,
) -> None:
    """Run MODEL once and say what it sees.

    Pictures are prepared as the file says: by its metadata, by the quantization of its input, or by
    the arithmetic that it begins with. If the file says nothing, the best class under each usual
    preparation is shown with the --normalize that chooses it, with exit code 2 unless they agree.
    A detection, a segmentation or a pose then needs --normalize. A sound at another rate than 16000
    Hz needs --rate, unless the file says the rate.
    """
    from penstock.cli import opening
    from penstock.cli.answers import (
        REMEDY,
        TASKS,
        Results,
        answer,
        may_be_classes,
        recognise,
        why_undecided,
    )
    from penstock.cli.feed import Wishes, parse_normalization
    from penstock.execution.interface import interface_of

    output = output_of(context)
    if task is not None and task not in TASKS:
        raise UsageError(f"--task {task!r} is not one of {', '.join(TASKS)}")
    if not 0 <= min_score <= 1:
        raise UsageError(f"--min-score {min_score:g} is not between 0 and 1")
    out_file = files.target("--out", out, (*files.PICTURES, *files.ARRAYS))
    trace_file = files.target("--trace", trace)
    wishes = Wishes(None if normalize is None else parse_normalization(normalize), seed, rate)
    given_labels = read_labels(Path(labels)) if labels is not None else None
    shapes = parse_shapes(shape)
    policy = opening.policy_of(accuracy, placement)
    opened = opening.open_fed(output, model, inputs, wishes, signature, shapes, random=False)
    loaded, fed = opened.loaded, opened.fed
    if fed.questions and task != "outputs":
        raise UsageError("; ".join(fed.questions))
    fed.notes += fed.questions
    if out_file is not None and fed.picture is None and not takes_arrays(out_file):
        raise UsageError(f"--out {out}: no INPUT is a picture to draw in; .npz takes the outputs")
    compiled, compile_ns = opened.compile(
        output, devices=device, threads=threads, policy=policy, cache=not no_cache
    )
    with compiled:
        expected = expected_results(compiled, signature, given_labels)
        likely = task or (None if expected is None else recognise(expected))
        if likely is not None:
            if out_file is not None and not takes_arrays(out_file) and likely not in DRAWN:
                raise nothing_to_draw(out_file, likely)
            open_task = task is None and expected is not None and may_be_classes(expected)
            schemes.refuse_unstated(fed, likely, may_be_classes=open_task)
        began = time.perf_counter_ns()
        outputs = compiled.run(fed.arrays, measure=trace_file is not None)
        times = {
            "load": loaded.load_ns,
            "compile": compile_ns,
            "run": time.perf_counter_ns() - began,
        }
        interface = interface_of(compiled.model, signature)
        entry = compiled.model.entry
        results = Results(
            compiled.model,
            interface.outputs,
            tuple(entry.ordinary_outputs[i] for i in interface.output_positions),
            tuple(outputs),
            given_labels if given_labels is not None else model_labels(opened.model.metadata),
            top,
            min_score,
        )
        found = answer(results, task)
        open_task = task is None and found.task == "outputs" and may_be_classes(results)
        schemes.refuse_unstated(fed, found.task, may_be_classes=open_task)
        compared = schemes.compare(compiled, fed, results, found)
        if compared is not None and not compared.agree:
            compared.show(output, fed)
            raise Unfinished(compared.disagreement(), failures.USAGE)
        if open_task and fed.kinds & {"picture", "sound"}:
            fed.notes.append(
                "the file does not say what its output is: if it is a score for each class, --task "
                "classification shows the best ones (or --labels, which names them too)"
            )
        undecided = why_undecided(results, found.task)
        error = Unfinished(f"{undecided}: {REMEDY}", failures.USAGE) if undecided else None
        if given_labels is not None and found.mislabelled:
            error = error or Unfinished(
                f"--labels {labels}: {found.mislabelled}; the file needs a line for each class, "
                "the first for class 0",
                failures.USAGE,
            )
        if given_labels is not None and found.task not in LABELLED:
            fed.notes.append(
                f"--labels {labels} is not used: this is {found.task}, which has no classes to "
                "name; --task says which task it is"
            )
        try:
            if trace_file is not None:
                write_trace(trace_file, compiled, outputs, loaded)
            if out_file is not None:
                write_out(out_file, found, fed, results)
        except OutputError as refused:
            error = error or Unfinished(str(refused))
        report(output, found, fed, compiled, outputs, times, compared, error, shown=not undecided)
    if error is not None:
        raise error


def expected_results(
    compiled: CompiledModel, signature: str | None, labels: tuple[str, ...] | None
) -> Results | None:
    """Results of zeros, to recognise the task before the run; None if a shape is unknown."""
    import numpy as np

    from penstock.cli.answers import Results
    from penstock.execution.interface import interface_of
    from penstock.ir.types import static_shape

    interface = interface_of(compiled.model, signature)
    indexes = [compiled.model.entry.ordinary_outputs[i] for i in interface.output_positions]
    operands = tuple(compiled.model.operands[i] for i in indexes)
    shapes = [static_shape(o.shape) for o in operands]
    if any(shape is None for shape in shapes):
        return None
    arrays = tuple(
        np.broadcast_to(np.zeros((), o.dtype.numpy), shape or ())
        for o, shape in zip(operands, shapes, strict=True)
    )
    known = labels or model_labels(compiled.model.metadata)
    return Results(compiled.model, operands, tuple(indexes), arrays, known)


def report(
    output: Output,
    found: Answer,
    fed: Fed,
    compiled: CompiledModel,
    outputs: Outputs,
    times: dict[str, int],
    compared: Comparison | None = None,
    error: Unfinished | None = None,
    *,
    shown: bool = True,
) -> None:
    """Prints the assumptions, the answer, the plan, the cache and the times.

    *compared* are the answers under several schemes, which agree. *error* is the error that the
    command ends with, for `--json`. Without *shown* the answer decides nothing, and is null in
    `--json`.
    """
    before = [*fed.notes, *(compared.notes(fed) if compared is not None else schemes.inferred(fed))]
    after = [*empty_devices(compiled.plan), *compiled.receipt.notes, *found.notes]
    output.notes(before)
    if shown:
        found.show(output)
    output.notes(after)
    output.line(f"plan: {compiled.plan.summary()}", "dim")
    show_cache(output, compiled.receipt)
    show_fallbacks(output, compiled.receipt, outputs.receipt)
    output.line(
        "time: " + ", ".join(f"{name} {milliseconds(ns)}" for name, ns in times.items()), "dim"
    )
    described: list[dict[str, Any]] = [
        {"name": o.name, "dtype": str(a.dtype), "shape": list(a.shape)}
        for o, a in zip(compiled.outputs, outputs, strict=True)
    ]
    output.json(
        {
            "task": found.task,
            **(found.data if shown else dict.fromkeys(found.data)),
            **({} if compared is None else {"preparations": compared.data()}),
            "inputs": fed.sources,
            "outputs": described,
            "plan": json.loads(compiled.plan.to_json()),
            "receipt": json.loads(outputs.receipt.to_json()),
            "compile_receipt": json.loads(compiled.receipt.to_json()),
            "notes": [*before, *after],
            "seconds": {name: ns / 1e9 for name, ns in times.items()},
        }
        | ({} if error is None else {"error": {"type": error_type(error), "message": str(error)}})
    )


def error_type(error: Unfinished) -> str:
    """The error class that `--json` names if a run fails after everything was printed."""
    return (UsageError if error.code == failures.USAGE else OutputError).__name__


def empty_devices(plan: ExecutionPlan) -> list[str]:
    """A note if a step runs on the device that computes nothing."""
    if not any(step.device == EMPTY_DEVICE for step in plan.steps):
        return []
    return [f"device {EMPTY_DEVICE} computes nothing: the outputs mean nothing"]
