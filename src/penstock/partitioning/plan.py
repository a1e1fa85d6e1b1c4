"""`ExecutionPlan`: the device and order of every operation, and the reasons against others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from penstock.errors import counted
from penstock.hal import AccuracyClass
from penstock.ir import Model, Operand
from penstock.ir.types import is_static
from penstock.memory.layout import ArenaLayout
from penstock.partitioning.placements import Alternative, Placement, Slow, Tuned, Worst

if TYPE_CHECKING:
    from penstock.partitioning.drawing import Graph

LEAST_WIDTH: Final = 60
"""Minimum width of a nested branch of control flow."""

SHIPPED_COSTS: Final = "shipped tables ('penstock calibrate' measures this machine)"
"""What predictions rest on where this machine was not measured."""

OPEN: Final = (
    "shapes: some are not known; each run has the plan of its own shapes, as has a compile with "
    "shapes="
)

WHOLE: Final = -1
"""Index of the pseudo-step that is the whole model (`partitioning.fallback.whole_step`)."""


class Control(Struct, frozen=True):
    """An IF or WHILE that the runtime carries out (NNAPI sections 4.3 to 4.5).

    Each subgraph that it runs is planned as a separate model. *kind* "IF" has the *branches* (then,
    else), "WHILE" has (condition, body). The entry inputs and outputs of each branch's model are
    the subgraph's, in order. They have no state, and their shapes are known.

    "IF": the first element of the operation's first input selects the branch. The branch's inputs
    are the operation's other inputs, and its outputs the operation's outputs. The other branch does
    not run.

    "WHILE": the carried values start as the operation's inputs. Each round runs the condition on
    them. If the first element of its only output is false, the carried values are the operation's
    outputs, and the loop ends. Otherwise the time since the start of the loop is compared with the
    run's loop timeout; past it `MissedDeadlineTransient` is raised, which is never retried. Then
    the body computes the next carried values. The body never writes to the memory that it reads.

    An error of a branch is the step's.
    """

    kind: Literal["IF", "WHILE"]
    branches: tuple[ExecutionPlan, ...]

    @property
    def parts(self) -> tuple[str, str]:
        """The role of each of the branches."""
        return ("then", "else") if self.kind == "IF" else ("condition", "body")


class ExecutionStep(Struct, frozen=True):
    """A partition with its boundary: the *operations* that *device* runs as one *model*.

    *operations* are indexes in the planned model's entry subgraph. *inputs* and *outputs* map each
    entry input and output of the step's model, in order and with state ports, to an operand of that
    subgraph. No operand is listed twice, and every output is computed by an operation of the step.

    *fallbacks* are the devices that may run the step if *device* fails, in the order of attempts,
    "reference" last. The policy allows each of them to run every operation. The plan keeps its
    coverage whichever steps fall back to "reference".
    """

    index: int
    device: str
    operations: tuple[int, ...]
    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fallbacks: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    """Options for the step's device, added to `PrepareConfig.options`.

    They name the outputs that are rounded in another step (`penstock.ir.rounding`).
    """

    predicted_ns: int | None = None
    """Predicted nanoseconds of a run of the step, including dispatch and transfers.

    None if its device declares no execution time.
    """
    control: Control | None = None
    """How the runtime carries out the step, which is then one IF or WHILE.

    *device*, "reference", can also run *model* as a whole: the computation is the same.
    """
    no_fallback: str = ""
    """Why *fallbacks* is empty, as text; empty if it is not."""
    worst: Worst | None = None
    """The upper bound of its time; None if it was not requested."""

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        operations = counted(len(self.operations), "operation")
        return line_of("ExecutionStep", f"step {self.index} on {self.device}, {operations}")

    def row(self, operations: tuple[Placement, ...]) -> tuple[str, ...]:
        """Its number, device, operations, inputs, outputs, prediction and fallbacks, as text."""
        from penstock.partitioning.show import duration, ranges, types_of

        return (
            str(self.index),
            self.device,
            f"{ranges(self.operations)}: {types_of(operations[i] for i in self.operations)}",
            str(len(self.inputs)),
            str(len(self.outputs)),
            "" if self.predicted_ns is None else duration(self.predicted_ns),
            ", ".join(self.fallbacks),
        )


class ExecutionPlan(Struct, frozen=True):
    """How *model* runs on *devices* (NNAPI section 4.4).

    *devices* are the names considered, in order of placement. The *steps* run one after another;
    the inputs of each are the model's inputs and outputs of earlier steps. *operations* has one
    `Placement` for each operation of the entry subgraph. *temporaries* is the arena layout of
    operands that one step writes and a later one reads, except entry outputs. A step whose results
    are never read is left out, but its operations are in *operations*.

    *predicted_ns* is the predicted time of a run in nanoseconds; None if a device declares no
    execution time for an operation it runs. *predicted_energy* is set for "low_power", in units of
    the reference's energy in one nanosecond. *alternatives* has each device alone. *tuned* is set
    if the placement was measured. *accuracy* is the class that the policy requires; every
    operation's own is at least as strict.
    """

    model: Model
    devices: tuple[str, ...]
    steps: tuple[ExecutionStep, ...]
    operations: tuple[Placement, ...]
    temporaries: ArenaLayout
    predicted_ns: int | None = None
    predicted_energy: int | None = None
    alternatives: tuple[Alternative, ...] = ()
    tuned: Tuned | None = None
    accuracy: AccuracyClass = "faithful"
    doubts: tuple[tuple[str, str], ...] = ()
    """(device, reason) of each used device whose declared accuracy classes may not hold on this
    machine.

    See `Capabilities.accuracy_doubt`.
    """
    apart: tuple[tuple[str, str], ...] = ()
    """(device, reason) of each device that runs in a host process for this plan only.

    What it runs here may take longer than a call in the caller's process may, because such a call
    cannot be stopped.
    """
    slow: Slow | None = None
    """Set by `penstock.compile` if most multiply-accumulates are on the reference device."""
    basis: str = ""
    """What predictions rest on, beside the costs that devices declare."""

    @property
    def assignment(self) -> tuple[str, ...]:
        """The device of each operation of the entry subgraph, in order."""
        return tuple(placement.device for placement in self.operations)

    @property
    def forwards(self) -> tuple[tuple[int, int], ...]:
        """(position among the entry outputs, operand) of each output that no operation computes.

        It is an input or a constant, and the runtime passes it on. State outputs are included.
        """
        entry = self.model.entry
        computed = {o for operation in entry.operations for o in operation.outputs}
        return tuple((k, i) for k, i in enumerate(entry.outputs) if i not in computed)

    def show(self) -> str:
        """The plan as text in 80 columns.

        A table of the steps comes first, then where the operations run, with each other device's
        reason against them. Operations that differ only in predicted durations share a line.
        """
        from penstock.partitioning.show import WIDTH

        return "\n".join(_lines(self, WIDTH)) + "\n"

    def summary(self) -> str:
        """The plan in one line. Names the accuracy class if it is not the default.

        If most multiply-accumulates are on the reference device it begins with that, and with the
        first remedy.
        """
        from penstock.partitioning.show import DEFAULT_CLASS

        placed = Counter(placement.device for placement in self.operations)
        shares = ", ".join(f"{name} {placed[name]}" for name in self.devices if placed[name])
        text = f"{counted(len(self.steps), 'step')}, {counted(len(self.operations), 'operation')}"
        text += f" ({shares})" if shares else ""
        if self.is_open:
            text += ", before shapes are known"
        if self.accuracy != DEFAULT_CLASS:
            text += f", {self.accuracy}"
        if self.temporaries.nbytes:
            text += f", {counted(self.temporaries.nbytes, 'byte')} between steps"
        if unknown := len(self.temporaries.dynamic):
            text += f", {counted(unknown, 'value')} of unknown size between steps"
        return text if self.slow is None else f"{self.slow.summary}; {text}"

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        return line_of("ExecutionPlan", self.summary(), self.warning)

    @property
    def is_open(self) -> bool:
        """Whether an input has unknown dimensions: a run with known ones has a plan of its own."""
        return any(not is_static(operand.shape) for operand in self.model.inputs)

    @property
    def warning(self) -> str:
        """That most multiply-accumulates are on the reference device; empty if they are not."""
        return "" if self.slow is None else self.slow.summary

    def _repr_html_(self) -> str:
        """The table of steps for a notebook."""
        from penstock.ir.model import MAX_ROWS, html_table
        from penstock.partitioning.show import STEP_COLUMNS

        rows = (step.row(self.operations) for step in self.steps[: MAX_ROWS + 1])
        title = f"{self.summary()}; {describe_prediction(self)}".removesuffix("; ")
        return html_table(title, [STEP_COLUMNS, *rows])

    def to_json(self) -> str:
        """Everything but the models, as one JSON object.

        Its keys are `devices`, `steps`, `operations`, `forwards`, `temporaries`, `predicted_ns`,
        `predicted_energy`, `alternatives`, `tuned`, `accuracy`, `doubts`, `apart`, `slow`, `basis`.
        """
        return msgspec.json.encode(_as_builtins(self)).decode()

    def to_dot(self) -> str:
        """The operations as a Graphviz digraph, coloured by device, with a cluster a step."""
        from penstock.partitioning.drawing import to_dot

        return to_dot(_graph(self))

    def to_svg(self) -> str:
        """The graph of `to_dot` as an SVG picture."""
        from penstock.partitioning.drawing import to_svg

        return to_svg(_graph(self), self.summary())


class Ports(Struct, frozen=True):
    """The arguments of a step: each one's operand in the plan, and the step's operand."""

    step: int
    inputs: tuple[tuple[int, Operand], ...]
    outputs: tuple[tuple[int, Operand], ...]


def ports_of(step: ExecutionStep) -> Ports:
    """The arguments of *step*, in order."""
    entry = step.model.entry
    return Ports(
        step.index,
        tuple(zip(step.inputs, (entry.operands[i] for i in entry.inputs), strict=True)),
        tuple(zip(step.outputs, (entry.operands[i] for i in entry.outputs), strict=True)),
    )


def _as_builtins(plan: ExecutionPlan) -> dict[str, Any]:
    """The fields of *plan* but its models, as values that msgspec encodes."""
    step_fields = ("index", "device", "operations", "inputs", "outputs", "fallbacks", "no_fallback")
    placement_fields = ("index", "type", "name", "device", "accuracy")
    steps = []
    for step in plan.steps:
        found = {name: getattr(step, name) for name in (*step_fields, "predicted_ns", "control")}
        if (control := step.control) is not None:
            branches = [_as_builtins(branch) for branch in control.branches]
            found["control"] = {"kind": control.kind, "branches": branches}
        steps.append(found)
    return {
        **{name: getattr(plan, name) for name in plan.__struct_fields__ if name != "model"},
        "steps": steps,
        "operations": [
            {
                **{name: getattr(placement, name) for name in placement_fields},
                "reasons": dict(placement.reasons),
                "codes": {name: why.code for name, why in placement.refusals.items()},
            }
            for placement in plan.operations
        ],
        "forwards": plan.forwards,
        "temporaries": {**asdict(plan.temporaries), "offsets": dict(plan.temporaries.offsets)},
        "doubts": dict(plan.doubts),
        "apart": dict(plan.apart),
    }


def describe_prediction(plan: ExecutionPlan) -> str:
    """The predicted time of a run, as planned and on each device alone; empty if unknown."""
    from penstock.partitioning.show import duration

    if plan.predicted_ns is None:
        return ""
    text = f"predicted: {duration(plan.predicted_ns)} a run"
    if plan.basis:
        text += f" by {plan.basis}"
    if plan.predicted_energy is not None:
        text += f", the energy of {duration(plan.predicted_energy)} of the reference"
    alone, idle, count = [], [], len(plan.operations)
    for one in plan.alternatives:
        if one.predicted_ns is None:
            continue
        if not one.operations and count:
            idle.append(one.device)
            continue
        share = f" with {one.operations} of {counted(count, 'operation')}"
        share = "" if one.operations == count else share
        alone.append(f"{one.device} {duration(one.predicted_ns)}{share}")
    if len(alone) + len(idle) < 2:
        return text
    if alone:
        text += f"; first choice alone: {', '.join(alone)}"
    if idle:
        text += f"; not {', '.join(idle)}, which may run none of the operations: reasons below"
    return text


def _lines(plan: ExecutionPlan, width: int) -> list[str]:
    from penstock.partitioning import show

    texts = [
        f"plan: {plan.summary()}",
        show.describe_accuracy(plan.accuracy, plan.operations),
        "" if plan.slow is None else str(plan.slow),
        *(f"{device}: {doubt}" for device, doubt in plan.doubts),
        *(f"{device} runs in a process of its own: {why}" for device, why in plan.apart),
        describe_prediction(plan),
        OPEN if plan.is_open else "",
    ]
    if plan.tuned is not None:
        texts.append(show.describe_tuned(plan.tuned))
    lines = [line for text in texts if text for line in show.wrapped(text, "  ", width)]
    for reason in () if plan.tuned is None else show.reasons_against(plan.tuned):
        lines += show.wrapped(f"  {reason}", "    ", width)
    lines += show.table([step.row(plan.operations) for step in plan.steps], width)
    run = {i for step in plan.steps for i in step.operations}
    if idle := [placement.index for placement in plan.operations if placement.index not in run]:
        text = f"not run, because nothing reads the results: {show.ranges(idle)}"
        lines += show.wrapped(text, "  ", width)
    if plan.forwards:
        operands = plan.model.operands
        named = ", ".join(f"{at} (%{i} {operands[i].name!r})" for at, i in plan.forwards)
        lines += show.wrapped(f"outputs that are inputs or constants: {named}", "  ", width)
    if plan.operations:
        lines.append("operations:")
    for group in show.groups_of(plan.operations):
        lines += group.lines(width)
    for step in plan.steps:
        if step.control is None:
            continue
        for part, branch in zip(step.control.parts, step.control.branches, strict=True):
            lines.append(f"{part} of {step.control.kind} {step.operations[0]}:")
            lines += [f"  {line}" for line in _lines(branch, max(width - 2, LEAST_WIDTH))]
    return lines


def _graph(plan: ExecutionPlan) -> Graph:
    """The operations, inputs and outputs of *plan* as nodes, and the values between them."""
    from penstock.ir.model import show_operand
    from penstock.partitioning.drawing import COLOURS, PLAIN, Edge, Graph, Node

    entry = plan.model.entry
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(plan.devices)}
    home = {i: step.index for step in plan.steps for i in step.operations}
    nodes: list[Node] = []
    edges: list[Edge] = []
    writer: dict[int, tuple[str, int | None]] = {}
    for index in entry.inputs:
        operand = entry.operands[index]
        label = f"input {operand.name}".rstrip()
        nodes.append(Node(f"in{index}", label, show_operand(operand), PLAIN, is_operation=False))
        writer[index] = f"in{index}", None

    def connect(operand: int, target: str, step: int | None) -> None:
        if operand not in writer:
            return
        source, other = writer[operand]
        described = entry.operands[operand]
        label = f"{described.name or f'%{operand}'}: {show_operand(described)}"
        edges.append(Edge(source, target, label, other != step))

    for placement, operation in zip(plan.operations, entry.operations, strict=True):
        key, step = f"op{placement.index}", home.get(placement.index)
        reasons = [f"not on {device}: {why}" for device, why in placement.reasons.items()]
        where = f"on {placement.device}" if step is not None else "not run: nothing reads it"
        detail = "\n".join([f"{placement.name or placement.type} {where}", *reasons])
        colour = PLAIN if step is None else colours.get(placement.device, PLAIN)
        nodes.append(Node(key, f"{placement.index} {placement.type}", detail, colour, step))
        for read in dict.fromkeys(operation.inputs):
            connect(read, key, step)
        writer.update(dict.fromkeys(operation.outputs, (key, step)))
    for position, index in enumerate(entry.outputs):
        operand = entry.operands[index]
        label = f"output {operand.name}".rstrip()
        key = f"out{position}"
        nodes.append(Node(key, label, show_operand(operand), PLAIN, is_operation=False))
        connect(index, key, None)
    steps = tuple(
        (f"step {step.index} on {step.device}", colours.get(step.device, PLAIN))
        for step in plan.steps
    )
    used = {placement.device for placement in plan.operations}
    legend = tuple((name, colour) for name, colour in colours.items() if name in used)
    return Graph(tuple(nodes), tuple(edges), steps, legend)
