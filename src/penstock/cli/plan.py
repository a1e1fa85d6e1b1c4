"""`penstock plan`: which operation runs where, and why not elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from penstock.cli import options, writing
from penstock.cli.failures import FileError, Unfinished, UsageError
from penstock.cli.output import Output, output_of
from penstock.cli.shapes import assumed_shapes, in_words, parse_shapes, shaped
from penstock.errors import ModelError, PlacementError, counted
from penstock.ipc.text import printable

NAME_WIDTH: Final = 48
"""Columns of an operation's name in a table; `--json` has all of it."""


def plan(
    context: typer.Context,
    model: options.ModelFile,
    dot: Annotated[
        str | None,
        typer.Option(
            "--dot",
            metavar="F",
            help="Write the graph, coloured by device, for Graphviz (-: to stdout).",
        ),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option(
            "--svg", metavar="F", help="Write the graph, coloured by device, as SVG (-: to stdout)."
        ),
    ] = None,
    device: options.Devices = None,
    signature: options.SignatureName = None,
    accuracy: options.Accuracy = None,
    shape: options.Shapes = None,
) -> None:
    """Show the steps of MODEL, where each operation runs, and why the other devices did not get it.

    MODEL is compiled for that, as by 'run', and kept in the cache: what a device fails to compile
    goes to another, and the plan shows it where it went, with the reason; the exit code is 0 all
    the same. Dimensions that MODEL leaves unknown are taken for 1 where no --shape says more.
    """
    from penstock.cli import opening
    from penstock.execution.interface import interface_of

    output = output_of(context)
    if dot == svg == "-":
        raise UsageError("--dot and --svg cannot both go to stdout; name a file for one")
    given = parse_shapes(shape)
    to_stdout = "-" in (dot, svg)
    if to_stdout and output.as_json:
        raise UsageError("--json and a picture cannot both go to stdout")
    dot_file, svg_file = (
        None if name == "-" else writing.target(option, name, endings)
        for option, name, endings in (("--dot", dot, ()), ("--svg", svg, (".svg",)))
    )
    loaded = opening.load(model)
    opening.warn_of_settings(output)
    try:
        entered = loaded.model.signature_model(signature) if signature else loaded.model
        shaped(interface_of(entered, signature).inputs, given)
        likely = assumed_shapes(loaded.model, signature, given)
    except ModelError as error:
        raise FileError(loaded.path, str(error)) from error
    try:
        compiled, _ = opening.compile_model(
            loaded.model,
            loaded.path,
            devices=device,
            signature=signature,
            accuracy=accuracy,
            shapes={**likely, **given},
            assumed=likely,
        )
    except PlacementError as error:
        from penstock.cli.refusals import refused

        answers, remedy = refused(loaded.model, device, signature, opening.policy_of(accuracy))
        report_refusals(output, answers, error, remedy)
    with compiled:
        made = compiled.plan
    if dot_file is not None:
        _write(dot_file, made.to_dot())
    if svg_file is not None:
        _write(svg_file, made.to_svg())
    if to_stdout:
        typer.echo(printable((made.to_dot() if dot == "-" else made.to_svg()).rstrip("\n")))
        return
    for line in made.show().splitlines():
        output.line(line)
    if likely:
        output.line(f"planned for {in_words(likely)}; --shape gives another shape", "dim")
    output.json({"plan": json.loads(made.to_json())})


def report_refusals(
    output: Output, operations: list[dict[str, Any]], error: PlacementError, remedy: str
) -> NoReturn:
    """What every device says of every operation, where some operation has no device. Raises
    `Unfinished`, which ends with *remedy*.
    """
    homeless = [o for o in operations if not o["devices"]]
    if not homeless:
        raise error
    output.table(
        ("operation", "type", "name", "may run on", "not on"),
        [
            (
                o["index"],
                o["type"],
                short(o["name"]),
                ", ".join(o["devices"]) or "no device",
                "; ".join(f"{name}: {why}" for name, why in o["reasons"].items()),
            )
            for o in operations
        ],
    )
    types = ", ".join(dict.fromkeys(o["type"] for o in homeless))
    text = f"no plan: {len(homeless)} of {counted(len(operations), 'operation')} {'has' if len(homeless) == 1 else 'have'} no device ({types}){remedy}"
    described = {"type": type(error).__name__, "message": text}
    output.json({"plan": None, "operations": operations, "error": described})
    raise Unfinished(text) from error


def short(name: str) -> str:
    """The first of the names that converters join with `;`, or its end where it is long."""
    first = name.partition(";")[0]
    return first if len(first) <= NAME_WIDTH else "..." + first[3 - NAME_WIDTH :]


def _write(path: Path, text: str) -> None:
    writing.write(path, lambda: path.write_text(text, "utf-8"))
