"""`penstock plan`: the device of each operation, and why the others did not get it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from penstock.cli import files, options
from penstock.cli.declarations import option
from penstock.cli.failures import FileError, Unfinished, UsageError
from penstock.cli.options import assumed_shapes, in_words, parse_shapes, shaped
from penstock.cli.output import Output
from penstock.errors import DriverError, ModelError, PlacementError, counted

if TYPE_CHECKING:
    from penstock.ir import Model
    from penstock.partitioning import ExecutionPlan
    from penstock.partitioning.policy import Policy

WIDTH: Final = 80
"""Columns of a line."""

NAME_WIDTH: Final = 48
"""Columns of an operation's name in a table; `--json` has all of it."""


def plan(
    output: Output,
    model: options.ModelFile,
    dot: Annotated[
        str | None,
        option("--dot F", "Write the graph, coloured by device, for Graphviz (-: to stdout)."),
    ] = None,
    svg: Annotated[
        str | None,
        option("--svg F", "Write the graph, coloured by device, as SVG (-: to stdout)."),
    ] = None,
    device: options.Devices = None,
    signature: options.SignatureName = None,
    accuracy: options.Accuracy = None,
    placement: options.Placement = None,
    shape: options.Shapes = None,
) -> None:
    """Show the steps of MODEL, where each operation runs, and why the other devices did not get it.

    MODEL is compiled as by 'run', and the result is cached. If a device fails to compile a step,
    the plan shows the device that took it, with the reason; the exit code is still 0. An unknown
    dimension of MODEL counts as 1 unless --shape sets it.
    """
    from penstock.cli import opening
    from penstock.execution.interface import interface_of
    from penstock.runtime.compile_arguments import shapes_by_position

    if dot == svg == "-":
        raise UsageError("--dot and --svg cannot both go to stdout; name a file for one")
    given = parse_shapes(shape)
    to_stdout = "-" in (dot, svg)
    if to_stdout and output.as_json:
        raise UsageError("--json and a picture cannot both go to stdout")
    dot_file, svg_file = (
        None if name == "-" else files.target(option, name, endings)
        for option, name, endings in (("--dot", dot, ()), ("--svg", svg, (".svg",)))
    )
    choices = options.Choices(
        device, signature, accuracy=accuracy, placement=placement, shape=shape
    )
    policy = opening.policy_of(accuracy, placement)
    loaded = opening.load(model, choices, policy)
    opening.warn_of_settings(output)
    try:
        entered = loaded.model.signature_model(signature) if signature else loaded.model
        shaped(interface_of(entered, signature).inputs, given)
        likely = assumed_shapes(loaded.model, signature, given)
    except ModelError as error:
        raise FileError(loaded.path, str(error)) from error
    try:
        compiled, _ = opening.compile_model(loaded, choices, policy, {**likely, **given}, likely)
    except PlacementError as error:
        interface = interface_of(entered, signature)
        shapes = shapes_by_position(interface, {**likely, **given})
        report_refusals(output, *refusals(entered, device, policy, shapes), error)
    with compiled:
        made, notes = compiled.plan, compiled.receipt.notes
    if dot_file is not None:
        files.write_text(dot_file, made.to_dot())
    if svg_file is not None:
        files.write_text(svg_file, made.to_svg())
    if to_stdout:
        output.picture((made.to_dot() if dot == "-" else made.to_svg()).rstrip("\n"))
        return
    for line in made.show().splitlines():
        output.line(line)
    output.notes(note for note in notes if made.slow is None or note != str(made.slow))
    explained = explained_steps(made)
    for step in explained:
        output.line(f"how {step['device']} computes step {step['step']}:")
        for line in how_lines(step["operations"]):
            output.line(line)
    if likely:
        output.line(f"planned for {in_words(likely)}; --shape gives another shape", "dim")
    output.json({"plan": json.loads(made.to_json()), "how": explained, "notes": notes})


def explained_steps(plan: ExecutionPlan) -> list[dict[str, Any]]:
    """For each step whose device says how it computes operations: the operations, in words."""
    from penstock.hal import PrepareConfig
    from penstock.hal.stages import explanations
    from penstock.runtime.discovery import manager

    devices = {name: manager.by_name(name) for name in {step.device for step in plan.steps}}
    found: list[dict[str, Any]] = []
    for step in plan.steps:
        device = devices[step.device]
        if device is None or step.control is not None:
            continue
        try:
            words = explanations(device, step.model, PrepareConfig(options=step.options))
        except DriverError as error:
            words = (f"not known: {error}",) * len(step.operations)
        rows = [
            {"index": index, "type": plan.operations[index].type, "how": how}
            for index, how in zip(step.operations, words, strict=False)
        ]
        if rows:
            found.append({"step": step.index, "device": step.device, "operations": rows})
    return found


def how_lines(operations: Sequence[dict[str, Any]]) -> list[str]:
    """`  0-3, 5: CONV_2D x5: dense`, operations of one type and words in one line."""
    from penstock.partitioning.show import ranges, wrapped

    groups: dict[tuple[str, str], list[int]] = {}
    for operation in operations:
        groups.setdefault((operation["type"], operation["how"]), []).append(operation["index"])
    lines: list[str] = []
    for (kind, how), indexes in groups.items():
        count = f" x{len(indexes)}" if len(indexes) > 1 else ""
        lines += wrapped(f"  {ranges(indexes)}: {kind}{count}: {how}", "    ", WIDTH)
    return lines


def refusals(
    model: Model,
    devices: Sequence[str] | None,
    policy: Policy | None,
    shapes: Mapping[int, Sequence[int]],
) -> tuple[list[dict[str, Any]], str]:
    """For each operation, as in `--json`: the *devices* that support it, and the others' reasons.

    *shapes* are those of inputs, by position.

    Also returns a remedy, "" if none is known.
    """
    from penstock.ir import infer_shapes
    from penstock.partitioning.greedy import laxer_class
    from penstock.partitioning.policy import Policy
    from penstock.partitioning.support import collect_support
    from penstock.runtime import manager
    from penstock.runtime.planning import trusted

    policy = policy or Policy()
    chosen = trusted(manager.choose(devices or None), policy)
    table = collect_support(infer_shapes(model, shapes), chosen, policy)
    operations = table.model.operations
    answers = [
        {
            "index": index,
            "type": operation.key,
            "name": table.model.entry.operation_name(index),
            "devices": [table.candidates[k].name for k in table.takers(index)],
            "reasons": {name: str(why) for name, why in table.refusals(index).items()},
        }
        for index, operation in enumerate(operations)
    ]
    unsupported = [index for index in range(len(operations)) if not table.takers(index)]
    return answers, laxer_class(table, unsupported)


def report_refusals(
    output: Output, operations: list[dict[str, Any]], remedy: str, error: PlacementError
) -> NoReturn:
    """Prints every device's answer for every operation.

    Raises `Unfinished` with *remedy* at its end, or *error* itself if every operation has a device.
    """
    unsupported = [o for o in operations if not o["devices"]]
    if not unsupported:
        raise error
    output.table(
        ("operation", "type", "name", "may run on", "not on"),
        [
            (
                *(o["index"], o["type"], short(o["name"])),
                ", ".join(o["devices"]) or "no device",
                "; ".join(f"{name}: {why}" for name, why in o["reasons"].items()),
            )
            for o in operations
        ],
    )
    types = ", ".join(dict.fromkeys(o["type"] for o in unsupported))
    text = (
        f"no plan: {len(unsupported)} of {counted(len(operations), 'operation')} "
        f"{'has' if len(unsupported) == 1 else 'have'} no device ({types}){remedy}"
    )
    described = {"type": type(error).__name__, "message": text}
    output.json({"plan": None, "operations": operations, "error": described})
    raise Unfinished(text) from error


def short(name: str) -> str:
    """The first of the names that converters join with `;`, or its end if it is long."""
    first = name.partition(";")[0]
    return first if len(first) <= NAME_WIDTH else "..." + first[3 - NAME_WIDTH :]
