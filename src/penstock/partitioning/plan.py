"""`ExecutionPlan`: who runs what, in which order, and why no other device does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from penstock.errors import Refusal, counted
from penstock.hal import AccuracyClass
from penstock.ir import Model, Operand
from penstock.memory.layout import ArenaLayout


class Placement(Struct, frozen=True):
    """Where one operation runs.

    *index* counts the operations of the planned model's entry subgraph; *name* is
    `Subgraph.operation_name`. *refusals* says, for every device that did not get it, why;
    *accuracy* is the class that *device* declares for it.
    """

    index: int
    type: str
    name: str
    device: str
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    accuracy: AccuracyClass = "faithful"

    def __post_init__(self) -> None:
        force_setattr(self, "refusals", MappingProxyType(dict(self.refusals)))

    @property
    def reasons(self) -> Mapping[str, str]:
        """*refusals* in words."""
        return MappingProxyType({name: str(why) for name, why in self.refusals.items()})

    def __hash__(self) -> int:
        return hash((self.index, self.type, self.name, self.device, self.accuracy))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.index, self.type, self.name, self.device, dict(self.refusals), self.accuracy)
        return Placement, fields


class Control(Struct, frozen=True):
    """An IF or a WHILE that the runtime carries out itself (NNAPI sections 4.3 to 4.5), with each
    subgraph that it runs planned as a model of its own.

    *kind* "IF" has the *branches* (then, else), "WHILE" has (condition, body). The entry inputs and
    outputs of each branch's model are the subgraph's, in order, and have no state; their shapes are
    known.

    "IF": the first element of the operation's first input chooses. The branch's inputs are the
    operation's other inputs, its outputs the operation's outputs; the other branch does not run.

    "WHILE": evaluating, running, done. The carried values begin as the operation's inputs.
    Evaluating runs the condition on them; where its only output's first element is false the
    carried values are the operation's outputs, and it is done. Else, once the time since the loop
    began has been compared with the loop timeout of the run (past it `MissedDeadlineTransient`,
    which nothing repeats), running the body on them makes the next ones, and it evaluates again.
    What the body writes never lies where it reads.

    An error of a branch is the step's.
    """

    kind: Literal["IF", "WHILE"]
    branches: tuple[ExecutionPlan, ...]

    @property
    def parts(self) -> tuple[str, str]:
        """What each of the branches is to it."""
        return ("then", "else") if self.kind == "IF" else ("condition", "body")


class Worst(Struct, frozen=True):
    """What a step may take any engine at worst, in nanoseconds of one processor core: all of its
    operations together (*total*), and *most* of them the operation with the index *operation*
    (`penstock.partitioning.work.times_of`).
    """

    total: float
    most: float
    operation: int


class ExecutionStep(Struct, frozen=True):
    """A partition with its boundary: the *operations* (indexes into the planned model's entry
    subgraph) that *device* runs as one *model*.

    *inputs* and *outputs* give, for each of the step model's entry inputs and outputs (state ports
    included) in order, the operand of the planned model's entry subgraph that it stands for. No
    operand is listed twice, and every output is computed by an operation of the step.

    *fallbacks* names the devices that may repeat the step where *device* fails, in the order in
    which they are tried, "reference" the last: the policy lets each of them run every operation,
    and the plan keeps its coverage whichever steps go to "reference".
    """

    index: int
    device: str
    operations: tuple[int, ...]
    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fallbacks: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    """What the step's device is told beside the model, as part of `PrepareConfig.options`: which of
    its outputs are rounded in another step (`penstock.ir.rounding`).
    """

    predicted_ns: int | None = None
    """Nanoseconds that a run of the step is predicted to take, its dispatch and transfers included;
    None where its device declares no execution time.
    """
    control: Control | None = None
    """How the runtime carries the step out, which then is one IF or WHILE. *device*, "reference",
    may run *model* as a whole all the same: it is the same computation.
    """
    no_fallback: str = ""
    """Why *fallbacks* is empty, in words; empty where it is not."""
    worst: Worst | None = None
    """What it may take at worst; None where that was not asked."""

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        operations = counted(len(self.operations), "operation")
        return line_of("ExecutionStep", f"step {self.index} on {self.device}, {operations}")


class Alternative(Struct, frozen=True):
    """The plan of one device alone, with the others behind it for what it does not take.

    *operations* is how many it takes, *steps* how many the plan has; *predicted_ns* and
    *predicted_energy* are as of `ExecutionPlan`.
    """

    device: str
    operations: int
    steps: int
    predicted_ns: int | None
    predicted_energy: int | None = None


class Measured(Struct, frozen=True):
    """One candidate placement as it was measured.

    *name* says which: a device's name for that device with the others behind it, "predicted" for
    the plan that was predicted to be best, else what it was made to try. *median_ns* and
    *spread_ns*, the distance between the quartiles, are of a run, out of so many *runs*;
    *energy_uj* and its spread are microjoules, where they were counted. *error* says why it is out.
    """

    name: str
    median_ns: int
    spread_ns: int
    runs: int
    energy_uj: float | None = None
    energy_spread_uj: float | None = None
    error: str | None = None


PREDICTED: Final = "predicted"
"""The name of the plan that was predicted to be best, among those measured."""


class Tuned(Struct, frozen=True):
    """What measuring placements on this machine gave: the *candidates*, the *winner* among them by
    name, and why.

    No *candidates* where nothing was measured; the plan is then the predicted one, and *reason*
    says why. *created* is when they were measured, in seconds since the epoch. *compiles* is how
    many driver compiles that took; *stored* says that an earlier call measured them. *outcome* is
    "only" where there is no other placement, "unmeasured" where nothing was measured.
    """

    candidates: tuple[Measured, ...]
    winner: str
    reason: str
    compiles: int = 0
    stored: bool = False
    created: float | None = None
    outcome: Literal["measured", "only", "unmeasured"] = "measured"


class ExecutionPlan(Struct, frozen=True):
    """How *model* runs on *devices* (NNAPI section 4.4).

    *devices* are the names that were considered, in the order of placement. The *steps* run one
    after another; each finds its inputs among the model's inputs and what earlier steps wrote.
    *operations* has one `Placement` for each operation of the entry subgraph. *temporaries* gives a
    place to each operand that one step writes and a later one reads, save entry outputs.

    A step that would compute nothing that is read is left out; its operations stand in *operations*
    all the same.

    *predicted_ns* is what a run is predicted to take in nanoseconds, None where a device declares
    no execution time for something it runs. *predicted_energy* is given for "low_power": the energy
    that the reference takes in so many nanoseconds. *alternatives* has each device considered, by
    itself. *tuned* is there where the placement was measured. *accuracy* is the class that the
    policy asks for: every operation's own is at least as strict.
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
    """(device, why) of each device of a step whose declared accuracy classes may not hold here
    (`Capabilities.accuracy_doubt`)."""
    apart: tuple[tuple[str, str], ...] = ()
    """(device, why) of each device that runs in a process of its own for this plan alone: what it
    runs here may take longer than a call without an end may in the caller's process.
    """

    @property
    def forwards(self) -> tuple[tuple[int, int], ...]:
        """(position among the entry outputs, operand) of each output, state outputs included, that
        no operation computes: it is an input or a constant, and whoever runs the plan passes it on.
        """
        entry = self.model.entry
        computed = {o for operation in entry.operations for o in operation.outputs}
        return tuple((k, i) for k, i in enumerate(entry.outputs) if i not in computed)

    def show(self) -> str:
        """The plan as text in 80 columns: a table of the steps, then where the operations run and
        each other device's reason against them. Operations that differ in nothing but predicted
        durations share a line.
        """
        from penstock.partitioning.show import show_plan

        return show_plan(self)

    def summary(self) -> str:
        """The plan in one line; it names an accuracy class other than the default."""
        from penstock.partitioning.show import summarize_plan

        return summarize_plan(self)

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        return line_of("ExecutionPlan", self.summary())

    def _repr_html_(self) -> str:
        """The table of steps that a notebook shows."""
        from penstock.partitioning.show import html_of_plan

        return html_of_plan(self)

    def to_json(self) -> str:
        """Everything but the models, as one JSON object: `devices`, `steps`, `operations`,
        `forwards`, `temporaries`, `predicted_ns`, `predicted_energy`, `alternatives`, `tuned`,
        `accuracy`, `doubts`, `apart`.
        """
        return msgspec.json.encode(_as_builtins(self)).decode()

    def to_dot(self) -> str:
        """The operations as a Graphviz digraph, coloured by device, a cluster a step."""
        from penstock.partitioning.drawing import plan_to_dot

        return plan_to_dot(self)

    def to_svg(self) -> str:
        """The same graph as an SVG picture."""
        from penstock.partitioning.drawing import plan_to_svg

        return plan_to_svg(self)


class Ports(Struct, frozen=True):
    """The arguments of a step: each with its operand of the plan, and as the step describes it."""

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
    return {
        "devices": plan.devices,
        "steps": [
            {
                "index": step.index,
                "device": step.device,
                "operations": step.operations,
                "inputs": step.inputs,
                "outputs": step.outputs,
                "fallbacks": step.fallbacks,
                "no_fallback": step.no_fallback,
                "predicted_ns": step.predicted_ns,
                "control": _control_as_builtins(step.control),
            }
            for step in plan.steps
        ],
        "operations": [
            {
                "index": placement.index,
                "type": placement.type,
                "name": placement.name,
                "device": placement.device,
                "accuracy": placement.accuracy,
                "reasons": dict(placement.reasons),
                "codes": {name: why.code for name, why in placement.refusals.items()},
            }
            for placement in plan.operations
        ],
        "forwards": plan.forwards,
        "temporaries": {
            "nbytes": plan.temporaries.nbytes,
            "alignment": plan.temporaries.alignment,
            "offsets": {str(key): place for key, place in plan.temporaries.offsets.items()},
            "dynamic": plan.temporaries.dynamic,
        },
        "predicted_ns": plan.predicted_ns,
        "predicted_energy": plan.predicted_energy,
        "alternatives": plan.alternatives,
        "tuned": plan.tuned,
        "accuracy": plan.accuracy,
        "doubts": dict(plan.doubts),
        "apart": dict(plan.apart),
    }


def _control_as_builtins(control: Control | None) -> dict[str, Any] | None:
    if control is None:
        return None
    return {"kind": control.kind, "branches": [_as_builtins(branch) for branch in control.branches]}
