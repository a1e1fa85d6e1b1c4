"""`penstock run`: runs a model once and explains the answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec.structs import replace

from penstock.cli import failures, files, options, schemes
from penstock.cli.declarations import option
from penstock.cli.failures import OutputError, Unfinished, UsageError
from penstock.cli.output import Output, milliseconds, show_cache, show_fallbacks

if TYPE_CHECKING:
    from penstock import CompiledModel, Outputs
    from penstock.cli.answers import Answer, Results
    from penstock.cli.feed import Fed
    from penstock.cli.schemes import Comparison

EMPTY_DEVICE: Final = "null"

LABELLED: Final = frozenset({"classification", "detection", "segmentation"})
"""Tasks whose answers name classes."""

DRAWN: Final = frozenset({"detection", "segmentation", "pose"})
"""Tasks whose answers can be drawn into a picture."""


def run(
    output: Output,
    model: options.ModelFile,
    inputs: options.Inputs = None,
    labels: Annotated[str | None, option("--labels F", "A label a line.")] = None,
    top: Annotated[int, option("--top N", "Classes or boxes shown.", least=1)] = 5,
    normalize: options.Normalize = None,
    rate: options.Rate = None,
    out: Annotated[
        str | None,
        option("--out F", "Write the picture with the answer drawn in, or .npz: the outputs."),
    ] = None,
    trace: Annotated[
        str | None, option("--trace F", "Write a Chrome trace (JSON) of the run.")
    ] = None,
    task: Annotated[
        str | None,
        option("--task NAME", "classification, detection, segmentation, pose or outputs."),
    ] = None,
    min_score: Annotated[
        float, option("--min-score S", "Least score of a box or key point, 0 to 1.")
    ] = 0.3,
    *,
    choices: options.Choices,
) -> None:
    """Run MODEL once and say what it sees.

    Pictures are prepared as the file says: by its metadata, by the quantization of its input, or by
    the arithmetic that it begins with. If the file says nothing, the best class under each usual
    preparation is shown with the --normalize that chooses it, with exit code 2 unless they agree.
    A detection, a segmentation or a pose then needs --normalize. A sound at another rate than 16000
    Hz needs --rate, unless the file says the rate.
    """
    from penstock.cli import answers, opening
    from penstock.execution.interface import interface_of

    if task is not None:
        opening.word("--task", task, tuple(answers.TASKS))
    if not 0 <= min_score <= 1:
        raise UsageError(f"--min-score {min_score:g} is not between 0 and 1")
    out_file = files.target("--out", out, (*files.PICTURES, *files.ARRAYS))
    trace_file = files.target("--trace", trace)
    given_labels = files.read_labels(labels) if labels is not None else None
    opened = opening.open_fed(output, model, inputs, choices, normalize, rate, random=False)
    fed = opened.fed
    if fed.questions and task != "outputs":
        raise UsageError("; ".join(fed.questions))
    fed.notes += fed.questions
    picture = out_file is not None and not files.takes_arrays(out_file)
    if picture and fed.picture is None:
        raise UsageError(f"--out {out}: no INPUT is a picture to draw in; .npz takes the outputs")
    compiled, compile_ns = opened.compile(output)
    with compiled:
        made, entry = compiled.model, compiled.model.entry
        interface = interface_of(made, choices.signature)
        indexes = tuple(entry.ordinary_outputs[i] for i in interface.output_positions)
        known = files.model_labels(made.metadata) if given_labels is None else given_labels
        # The results before the run have no arrays.
        results = answers.Results(made, interface.outputs, indexes, (), known, top, min_score)
        expected = zeros(results)
        likely = task or (None if expected is None else answers.recognise(expected))
        if likely is not None:
            if out_file is not None and picture and likely not in DRAWN:
                raise files.nothing_to_draw(out_file, likely)
            undecided = task is None and expected is not None and answers.may_be_classes(expected)
            schemes.refuse_unstated(fed, likely, may_be_classes=undecided)
        began = time.perf_counter_ns()
        outputs = compiled.run(fed.arrays, measure=trace_file is not None)
        run_ns = time.perf_counter_ns() - began
        times = {
            "load": opened.loaded.load_ns,
            "input": opened.input_ns,
            "compile": compile_ns,
            "run": run_ns,
            "start": opened.loaded.start_ns - output.began_ns,
        }
        results = replace(results, arrays=tuple(outputs))
        found = answers.answer(results, task)
        may_be = task is None and found.task == "outputs" and answers.may_be_classes(results)
        schemes.refuse_unstated(fed, found.task, may_be_classes=may_be)
        compared = schemes.compare(compiled, fed, results, found)
        if compared is not None and not compared.agree:
            compared.show(output, fed)
            raise Unfinished(compared.disagreement(), failures.USAGE)
        if may_be and fed.kinds & {"picture", "sound"}:
            fed.notes.append(
                "the file does not say what its output is: if it is a score for each class, --task "
                "classification shows the best ones (or --labels, which names them too)"
            )
        why = answers.why_undecided(results, found.task)
        error = Unfinished(f"{why}: {answers.REMEDY}", failures.USAGE) if why else None
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
                files.write_trace(trace_file, compiled, outputs, opened.loaded)
            if out_file is not None:
                files.write_out(out_file, found, fed, results)
        except OutputError as refused:
            error = error or Unfinished(str(refused))
        report(output, found, fed, compiled, outputs, times, compared, error, shown=not why)
    if error is not None:
        raise error


def zeros(results: Results) -> Results | None:
    """*results* of zeros, to recognise the task before the run; None if a shape is unknown."""
    import numpy as np

    from penstock.ir.types import static_shape

    arrays = []
    for operand in results.operands:
        shape = static_shape(operand.shape)
        if shape is None:
            return None
        arrays.append(np.broadcast_to(np.zeros((), operand.dtype.numpy), shape))
    return replace(results, arrays=tuple(arrays))


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
    `--json`. *times* are nanoseconds of stages; "other" is added to them, and they then add up to
    the time since the process began.
    """
    before = [*fed.notes, *(compared.notes(fed) if compared is not None else schemes.inferred(fed))]
    after = [*compiled.receipt.notes, *found.notes]
    if any(step.device == EMPTY_DEVICE for step in compiled.plan.steps):
        after.insert(0, f"device {EMPTY_DEVICE} computes nothing: the outputs mean nothing")
    output.notes(before)
    if shown:
        found.show(output)
    output.notes(after)
    output.line(f"plan: {compiled.plan.summary()}", "dim")
    show_cache(output, compiled.receipt)
    show_fallbacks(output, compiled.receipt, outputs.receipt)
    elapsed = time.perf_counter_ns() - output.began_ns
    times = {**times, "other": elapsed - sum(times.values())}
    stages = ", ".join(f"{name} {milliseconds(ns)}" for name, ns in times.items())
    output.line(f"time: {stages}; {milliseconds(elapsed)} in all", "dim")
    if not output.as_json:
        return
    from json import loads

    described: list[dict[str, Any]] = [
        {"name": o.name, "dtype": str(a.dtype), "shape": list(a.shape)}
        for o, a in zip(compiled.outputs, outputs, strict=True)
    ]
    kind = UsageError if error is not None and error.code == failures.USAGE else OutputError
    output.json(
        {
            "task": found.task,
            **(found.data if shown else dict.fromkeys(found.data)),
            **({} if compared is None else {"preparations": compared.data()}),
            "inputs": fed.sources,
            "outputs": described,
            "plan": loads(compiled.plan.to_json()),
            "receipt": loads(outputs.receipt.to_json()),
            "compile_receipt": loads(compiled.receipt.to_json()),
            "notes": [*before, *after],
            "seconds": {name: ns / 1e9 for name, ns in times.items()},
        }
        | ({} if error is None else {"error": {"type": kind.__name__, "message": str(error)}})
    )
