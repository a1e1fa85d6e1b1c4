"""`penstock run`: one model, one set of inputs, an answer in words."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import options, writing
from penstock.cli.failures import OutputError, Unfinished, UsageError
from penstock.cli.labels import model_labels, read_labels
from penstock.cli.output import Output, milliseconds, output_of
from penstock.cli.progress import compile_bar
from penstock.cli.receipts import show_cache, show_fallbacks
from penstock.cli.shapes import parse_shapes, shaped

if TYPE_CHECKING:
    from penstock import CompiledModel, ExecutionPlan, Outputs
    from penstock.cli.answers import Answer, Results
    from penstock.cli.feed import Fed
    from penstock.cli.opening import Loaded
    from penstock.ir import NDArray

EMPTY_DEVICE: Final = "null"

LABELLED: Final = frozenset({"classification", "detection", "segmentation"})
"""The tasks whose answers name classes."""

DRAWN: Final = frozenset({"detection", "segmentation", "pose"})
"""The tasks whose answers can be drawn into a picture."""


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
    normalise: options.Normalise = None,
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
    seed: options.Seed = 0,
    shape: options.Shapes = None,
    no_cache: options.NoCache = False,
) -> None:
    """Run MODEL once and say what it sees."""
    from penstock.cli import opening
    from penstock.cli.answers import TASKS, Results, answer
    from penstock.cli.feed import Wishes, feed, parse_normalisation
    from penstock.execution.interface import interface_of

    output = output_of(context)
    if task is not None and task not in TASKS:
        raise UsageError(f"--task {task!r} is not one of {', '.join(TASKS)}")
    if not 0 <= min_score <= 1:
        raise UsageError(f"--min-score {min_score:g} is not between 0 and 1")
    out_file = writing.target("--out", out, (*writing.PICTURES, *writing.ARRAYS))
    trace_file = writing.target("--trace", trace)
    wishes = Wishes(None if normalise is None else parse_normalisation(normalise), seed)
    given_labels = read_labels(Path(labels)) if labels is not None else None
    shapes = parse_shapes(shape)
    loaded = opening.load(model)
    opening.warn_of_settings(output)
    entered = loaded.model.signature_model(signature) if signature is not None else loaded.model
    operands = shaped(interface_of(entered, signature).inputs, shapes)
    fed = feed(inputs or (), operands, entered.metadata.inputs, wishes)
    if out_file is not None and fed.picture is None and not _takes_arrays(out_file):
        raise UsageError(f"--out {out}: no INPUT is a picture to draw in; .npz takes the outputs")
    with compile_bar(output) as progress:
        compiled, compile_ns = opening.compile_model(
            entered,
            loaded.path,
            devices=device,
            signature=signature,
            threads=threads,
            accuracy=accuracy,
            operands=operands,
            shapes=shapes,
            arrays=fed.arrays,
            assumed=fed.assumed,
            cache=not no_cache,
            progress=progress,
        )
    with compiled:
        if out_file is not None and not _takes_arrays(out_file):
            refuse_undrawable(out_file, compiled, signature, task, given_labels)
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
            given_labels if given_labels is not None else model_labels(entered.metadata),
            top,
            min_score,
        )
        found = answer(results, task)
        refused = ""
        if given_labels is not None and found.task not in LABELLED:
            fed.notes.append(
                f"--labels {labels} is not used: this is {found.task}, which has no classes to name; "
                "--task says which task it is"
            )
        try:
            if trace_file is not None:
                write_trace(trace_file, compiled, outputs, loaded)
            if out_file is not None:
                write_out(out_file, found, fed, results)
        except OutputError as error:
            refused = str(error)
        report(output, found, fed, compiled, outputs, times, refused)
    if refused:
        raise Unfinished(refused)


def refuse_undrawable(
    path: Path,
    compiled: CompiledModel,
    signature: str | None,
    task: str | None,
    labels: tuple[str, ...] | None,
) -> None:
    """Raises `OutputError` before the run where the outputs' shapes tell already that there will be nothing to draw."""
    import numpy as np

    from penstock.cli.answers import Results, recognise
    from penstock.execution.interface import interface_of
    from penstock.ir.types import static_shape

    interface = interface_of(compiled.model, signature)
    indexes = [compiled.model.entry.ordinary_outputs[i] for i in interface.output_positions]
    operands = tuple(compiled.model.operands[i] for i in indexes)
    shapes = [static_shape(o.shape) for o in operands]
    if any(shape is None for shape in shapes):
        return
    arrays = tuple(
        np.broadcast_to(np.zeros((), o.dtype.numpy), shape or ())
        for o, shape in zip(operands, shapes, strict=True)
    )
    found = task or recognise(
        Results(
            compiled.model,
            operands,
            tuple(indexes),
            arrays,
            labels or model_labels(compiled.model.metadata),
        )
    )
    if found not in DRAWN:
        raise nothing_to_draw(path, found)


def nothing_to_draw(path: Path, task: str) -> OutputError:
    """What an answer of that task cannot be."""
    return OutputError(
        path,
        f"only a detection, segmentation or pose can be drawn, and this is {task}; a name that "
        "ends in .npz takes the outputs of any model",
    )


def report(
    output: Output,
    found: Answer,
    fed: Fed,
    compiled: CompiledModel,
    outputs: Outputs,
    times: dict[str, int],
    refused: str = "",
) -> None:
    """The answer, what was assumed on the way, the plan in one line, the time. *refused*: what could not
    be written, for `--json`.
    """
    notes = [*empty_devices(compiled.plan), *compiled.receipt.notes, *fed.notes, *found.notes]
    found.show(output)
    output.notes(notes)
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
            **found.data,
            "inputs": fed.sources,
            "outputs": described,
            "plan": json.loads(compiled.plan.to_json()),
            "receipt": json.loads(outputs.receipt.to_json()),
            "compile_receipt": json.loads(compiled.receipt.to_json()),
            "notes": notes,
            "seconds": {name: ns / 1e9 for name, ns in times.items()},
        }
        | ({"error": {"type": OutputError.__name__, "message": refused}} if refused else {})
    )


def write_out(path: Path, found: Answer, fed: Fed, results: Results) -> None:
    """The outputs as `.npz`, or the picture with the answer drawn into it.

    Raises `OutputError` where there is nothing to draw, and when *path* cannot be written.
    """
    if _takes_arrays(path):
        names = [o.name for o in results.operands]
        keys = [n if n and names.count(n) == 1 else f"output_{i}" for i, n in enumerate(names)]
        named = {k: _plain(path, a) for k, a in zip(keys, results.arrays, strict=True)}
        # Given a name, NumPy adds ".npz" to one that ends in ".NPZ".
        writing.write(path, lambda: _save(path, named))
        return
    drawn = found.draw(fed.picture) if fed.picture is not None else None
    if drawn is None:
        raise nothing_to_draw(path, found.task)
    writing.write(path, lambda: drawn.save(path))


def _plain(path: Path, array: NDArray) -> NDArray:
    """*array* in a form that needs no pickling: strings as bytes of one length."""
    import numpy as np

    if not array.dtype.hasobject:
        return array
    items = array.reshape(-1).tolist()
    if any(item.endswith(b"\0") for item in items):
        raise OutputError(path, "strings that end in a zero byte have no form in an .npz file")
    return np.array(items, "S").reshape(array.shape)


def write_trace(path: Path, compiled: CompiledModel, outputs: Outputs, loaded: Loaded) -> None:
    """The Chrome trace of load, compile and run, on one clock."""
    from penstock.compilation.receipt import Span
    from penstock.compilation.trace import chrome_trace

    load = Span("load", Path(loaded.path).name, None, loaded.start_ns, loaded.load_ns)
    receipts = [compiled.receipt, outputs.receipt]
    text = json.dumps(chrome_trace(receipts, compiled.plan, [load]))
    writing.write(path, lambda: path.write_text(text, "utf-8"))


def empty_devices(plan: ExecutionPlan) -> list[str]:
    """A note where a step runs on the device that computes nothing."""
    if not any(step.device == EMPTY_DEVICE for step in plan.steps):
        return []
    return [f"device {EMPTY_DEVICE} computes nothing: the outputs mean nothing"]


def _takes_arrays(path: Path) -> bool:
    return path.suffix.lower() in writing.ARRAYS


def _save(path: Path, arrays: dict[str, NDArray]) -> None:
    import numpy as np

    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
