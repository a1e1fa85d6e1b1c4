"""`ExecutionPlan`: the device and order of every operation, and the reasons against other
devices.
"""

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
    """The device of one operation.

    *index* is its index in the planned model's entry subgraph; *name* is `Subgraph.operation_name`.
    *refusals* has the reason for every other device. *accuracy* is the class that *device* declares
    for it.
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
        """*refusals* as text."""
        return MappingProxyType({name: str(why) for name, why in self.refusals.items()})

    def __hash__(self) -> int:
        return hash((self.index, self.type, self.name, self.device, self.accuracy))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.index, self.type, self.name, self.device, dict(self.refusals), self.accuracy)
        return Placement, fields


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


class Worst(Struct, frozen=True):
    """Upper bound of a step's time on any engine, in nanoseconds of one processor core.

    *total* is that of all operations. *most* is that of the longest, which has the index
    *operation* (`penstock.partitioning.work.times_of`).
    """

    total: float
    most: float
    operation: int


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


class Alternative(Struct, frozen=True):
    """The plan of one device alone, with the others as substitutes for what it does not support.

    *operations* is how many it runs, *steps* how many the plan has. *predicted_ns* and
    *predicted_energy* are as in `ExecutionPlan`.
    """

    device: str
    operations: int
    steps: int
    predicted_ns: int | None
    predicted_energy: int | None = None


class Measured(Struct, frozen=True):
    """The measurement of one candidate placement.

    *name* identifies it: a device's name for that device with the others as substitutes,
    "predicted" for the plan predicted to be best, else the assumption that was varied. *median_ns*
    and *spread_ns* (interquartile range) are for one run, out of *runs* runs. *energy_uj* and its
    spread are microjoules, if measured. *error* says why it was dropped.
    """

    name: str
    median_ns: int
    spread_ns: int
    runs: int
    energy_uj: float | None = None
    energy_spread_uj: float | None = None
    error: str | None = None


PREDICTED: Final = "predicted"
"""Name of the plan that was predicted to be best, among the measured ones."""


class Tuned(Struct, frozen=True):
    """The result of measuring placements on this machine: *candidates*, the *winner*'s name, and
    why.

    If nothing was measured, *candidates* is empty, the plan is the predicted one, and *reason* says
    why. *created* is the time of the measurement, in seconds since the epoch. *compiles* counts the
    driver compiles for it. *stored* says that an earlier call measured. *outcome* is "only" if
    there is no other placement, "unmeasured" if nothing was measured.
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
        from penstock.partitioning.show import show_plan

        return show_plan(self)

    def summary(self) -> str:
        """The plan in one line. Names the accuracy class if it is not the default."""
        from penstock.partitioning.show import summarize_plan

        return summarize_plan(self)

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        return line_of("ExecutionPlan", self.summary())

    def _repr_html_(self) -> str:
        """The table of steps for a notebook."""
        from penstock.partitioning.show import html_of_plan

        return html_of_plan(self)

    def to_json(self) -> str:
        """Everything but the models, as one JSON object.

        Its keys are `devices`, `steps`, `operations`, `forwards`, `temporaries`, `predicted_ns`,
        `predicted_energy`, `alternatives`, `tuned`, `accuracy`, `doubts`, `apart`.
        """
        return msgspec.json.encode(_as_builtins(self)).decode()

    def to_dot(self) -> str:
        """The operations as a Graphviz digraph, coloured by device, with one cluster for
        each step.
        """
        from penstock.partitioning.drawing import plan_to_dot

        return plan_to_dot(self)

    def to_svg(self) -> str:
        """The graph of `to_dot` as an SVG picture."""
        from penstock.partitioning.drawing import plan_to_svg

        return plan_to_svg(self)


class Ports(Struct, frozen=True):
    """The arguments of a step: each with its operand in the plan and the step's
    description of it.
    """

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
