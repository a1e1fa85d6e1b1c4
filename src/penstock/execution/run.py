"""State of one run in progress: its limits, its values, and the record for its receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.arguments import LONGEST_SECONDS, check_kind, deadline_of, is_number
from penstock.compilation.calls import report_of
from penstock.compilation.prepared import PreparedStep
from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import (
    CacheOutcome,
    Failure,
    KernelReceipt,
    Span,
    StepReceipt,
)
from penstock.errors import DriverError, InputError, InvalidArgument, MissedDeadlineTransient
from penstock.execution.arena import NO_PLACES, Places
from penstock.hal import (
    PRIORITIES,
    CancelToken,
    ExecutionConfig,
    ExecutionResult,
    ExtensionAttribute,
    OperationTiming,
    Priority,
    RemoteResult,
    Timing,
    check_deadline,
)
from penstock.ir import NDArray
from penstock.memory.copies import CopyReceipt
from penstock.partitioning.plan import WHOLE

if TYPE_CHECKING:
    from penstock.execution.relay import Relay
    from penstock.hal import Device, PrepareConfig
    from penstock.memory.bound import BoundMemory
    from penstock.partitioning.plan import ExecutionPlan


class Alternatives(Struct, frozen=True):
    """The *devices* of fallbacks, prepared with *config*, if *allowed*; failures go with *plan*."""

    devices: Mapping[str, Device]
    config: PrepareConfig
    allowed: bool
    plan: ExecutionPlan


NO_VALUES: Final[dict[int, NDArray]] = {}
"""The values of a run that has ended."""


class StepTrace(Struct, frozen=True):
    """An executed step: device, times (`perf_counter_ns`), and the devices that failed before."""

    prepared: PreparedStep
    began_ns: int
    ended_ns: int
    result: ExecutionResult
    failures: tuple[Failure, ...] = ()
    inner: tuple[InnerStep, ...] = ()


class InnerStep(Struct):
    """Record of a step inside a branch: its *first* run, the number of *runs*, their total time."""

    part: str
    first: StepTrace
    runs: int
    wall_ns: int


class InnerSteps:
    """Records of the steps inside branches. Repeated runs of a step are added up in one record."""

    def __init__(self) -> None:
        self.steps: dict[tuple[object, ...], InnerStep] = {}

    def add(self, part: str, steps: Sequence[StepTrace]) -> None:
        """Adds one run of the branch *part*."""
        for step in steps:
            prepared = step.prepared
            key = (part, prepared.step.index, prepared.device.name, step.failures)
            spent = step.ended_ns - step.began_ns
            known = self.steps.get(key)
            if known is None:
                self.steps[key] = InnerStep(part, step, 1, spent)
            else:
                known.runs += 1
                known.wall_ns += spent


class FoldedCopy(CopyReceipt, frozen=True):
    """The sum of equal copies in the rounds of a loop; *start_ns* is that of the first."""

    def __post_init__(self) -> None:
        """Overrides the notification of `CopyReceipt`: each single copy was already reported."""


def fold_copies(copies: list[CopyReceipt]) -> None:
    """Adds up, in place, the copies with the same reason, source, destination, step and operand."""
    groups: dict[tuple[object, ...], list[CopyReceipt]] = {}
    for copy in copies:
        key = (copy.source, copy.destination, copy.reason, copy.step, copy.operand)
        groups.setdefault(key, []).append(copy)
    copies.clear()
    for first, *others in groups.values():
        if not others:
            copies.append(first)
            continue
        nbytes = sum(copy.nbytes for copy in (first, *others))
        wall_ns = sum(copy.wall_ns for copy in (first, *others))
        copies.append(FoldedCopy(**{**asdict(first), "nbytes": nbytes, "wall_ns": wall_ns}))


class Run(Struct):
    """One run of a plan, or of a branch *within* another run. Used by one thread at a time.

    *config* has the deadline and the cancel token. *values* maps operands of the planned model to
    arrays. *places* are preallocated buffers that are reused from run to run. *bound* are operands
    in memory other than host arrays, such as device buffers. *relay* launches the run's only step
    behind fences.

    The other fields go into the receipt. *failures* are those at the step that no fallback device
    could run. *notes* become text when the receipt is made. Times are of `time.perf_counter_ns`.
    """

    config: ExecutionConfig
    began_ns: int = 0
    ended_ns: int = 0
    within: bool = False
    values: dict[int, NDArray] = {}
    places: Places = NO_PLACES
    bound: Mapping[int, BoundMemory] | None = None
    relay: Relay | None = None
    steps: list[StepTrace] = []
    copies: list[CopyReceipt] = []
    compiles: int = 0
    spans: tuple[Span, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[object, ...] = ()

    @property
    def has_begun(self) -> bool:
        """Whether a driver has executed a step of this run, or of the run that contains it."""
        return self.within or len(self.steps) > 0

    def check(self) -> None:
        """Raises if the run must stop (NNAPI section 7.3).

        `Cancelled` once the token is set. Once the deadline has passed, `MissedDeadlinePersistent`
        before the first driver call and `MissedDeadlineTransient` after it.
        """
        if self.config.cancel is not None:
            self.config.cancel.check()
        if self.config.deadline_ns is None:
            return
        if self.has_begun:
            self.check_end()
        else:
            check_deadline(self.config.deadline_ns)

    def check_end(self) -> None:
        """Raises `MissedDeadlineTransient` if the deadline has passed."""
        if self.config.deadline_ns is not None and monotonic_ns() >= self.config.deadline_ns:
            raise MissedDeadlineTransient("the run took longer than its timeout")

    def end(self) -> None:
        """Ends the run: records the time and drops the references to its memory."""
        self.ended_ns = perf_counter_ns()
        self.values, self.places = NO_VALUES, NO_PLACES
        if self.bound is not None:
            self.bound = None

    def receipt(self) -> Receipt:
        """The receipt of the run, up to `end`, or up to now if the run has not ended."""
        return Receipt(
            tuple(map(step_receipt, self.steps)),
            self.compiles,
            tuple(self.copies),
            (self.ended_ns or perf_counter_ns()) - self.began_ns,
            self.began_ns,
            self.spans,
            notes=tuple(map(str, self.notes)),
        )


def step_receipt(run: StepTrace) -> StepReceipt:
    """The receipt entry of one executed step."""
    step = run.prepared.step
    # The unavailable driver failed at compile time, so its failure also belongs to this run.
    failures = run.failures or tuple(f for f in run.prepared.receipt.failures if f.is_unavailable)
    first = failures[0] if failures else None
    timing: object = run.result.timing
    in_driver = timing.in_driver_ns if isinstance(timing, Timing) else None
    on_device = timing.on_device_ns if isinstance(timing, Timing) else None
    return StepReceipt(
        run.prepared.device.name,
        step.operations,
        run.ended_ns - run.began_ns,
        in_driver if isinstance(in_driver, int) else None,
        _cache_outcome(run.prepared),
        None if first is None else first.device,
        None if first is None else first.error,
        failures,
        None if step.index == WHOLE else step.index,
        run.began_ns,
        _kernels(run, timing.operations) if isinstance(timing, Timing) else (),
        tuple(
            replace(
                step_receipt(inner.first), part=inner.part, runs=inner.runs, wall_ns=inner.wall_ns
            )
            for inner in run.inner
        ),
        simulated=run.prepared.receipt.simulated,
        device_ns=on_device if isinstance(on_device, int) else None,
    )


def _kernels(run: StepTrace, timings: object) -> tuple[KernelReceipt, ...]:
    """The kernel timings that the driver reported; empty if any of them is invalid."""
    if not isinstance(timings, tuple) or not all(_makes_sense(k, run.prepared) for k in timings):
        return ()
    step = run.prepared.step
    entry = step.model.entry
    return tuple(
        KernelReceipt(
            kernel.name,
            tuple(step.operations[i] for i in kernel.operations),
            tuple(
                f"{entry.operations[i].type} {entry.operation_name(i)}" for i in kernel.operations
            ),
            run.began_ns + kernel.start_ns,
            kernel.duration_ns,
        )
        for kernel in timings
    )


def _makes_sense(kernel: object, prepared: PreparedStep) -> bool:
    try:
        checked = msgspec.convert(msgspec.to_builtins(kernel), OperationTiming)
    except (msgspec.ValidationError, TypeError):
        return False
    return all(0 <= i < len(prepared.step.operations) for i in checked.operations)


def _cache_outcome(prepared: PreparedStep) -> CacheOutcome:
    """The cache outcome of the step's compile, updated if the entry was written since."""
    compiled = prepared.receipt.cache
    if compiled.not_saved and not compiled.is_to_be_written:
        return compiled
    report = report_of(prepared.prepared)
    if not (compiled.not_saved or report.later or report.save == "failed"):
        return compiled
    from penstock.compilation.cache_faults import fault_in

    unsaved = fault_in(report.reason, later=report.later)
    now = replace(compiled, not_saved=unsaved.words, not_saved_code=unsaved.code)
    if report.later:
        return now if report.reason else compiled
    if compiled.not_saved:
        return replace(now, saved=report.save != "failed")
    return now if report.save == "failed" else compiled


def execution_config(
    plain: ExecutionConfig,
    timeout: float | None = None,
    cancel: CancelToken | None = None,
    measure: bool = False,
    priority: Priority | None = None,
    loop_timeout: float | None = None,
    extension_attributes: Sequence[ExtensionAttribute] = (),
) -> ExecutionConfig:
    """*plain* with the options of one call; times are in seconds.

    Raises `InputError` for an invalid option, `MissedDeadlinePersistent` if *timeout* leaves no
    time.
    """
    if measure is not False and measure is not True:
        raise InputError(f"measure must be true or false, not {measure!r}")
    if cancel is not None:
        check_kind(cancel, CancelToken, "cancel must be a CancelToken")
    if priority is None:
        priority = plain.priority
    elif priority not in PRIORITIES:
        raise InputError(f"priority {priority!r} is not one of {', '.join(PRIORITIES)}")
    loop_timeout_ns = plain.loop_timeout_ns
    if loop_timeout is not None:
        if not is_number(loop_timeout) or loop_timeout <= 0:
            text = f"loop_timeout must be a number of seconds above 0, not {loop_timeout!r}"
            raise InputError(text)
        # None: only the run's deadline limits loops.
        loop_timeout_ns = int(loop_timeout * 1e9) if loop_timeout <= LONGEST_SECONDS else None
    return replace(
        plain,
        deadline_ns=deadline_of(timeout, monotonic_ns()),
        measure=measure,
        cancel=cancel,
        priority=priority,
        loop_timeout_ns=loop_timeout_ns,
        attributes=checked_attributes(extension_attributes),
    )


def checked_attributes(attributes: Sequence[ExtensionAttribute]) -> tuple[ExtensionAttribute, ...]:
    """*attributes* as a tuple for drivers. Raises `InputError` for an invalid one."""
    check_kind(
        attributes,
        (tuple, list),
        "extension_attributes is a list of penstock.hal.ExtensionAttribute",
    )
    if attributes:
        from penstock.hal.capabilities import check_attributes

        try:
            check_attributes(attributes)
        except InvalidArgument as error:
            raise InputError(f"extension_attributes: {error}") from None
    return tuple(attributes)


def note_lost(prepared: PreparedStep, error: DriverError, run: Run) -> None:
    """Adds the copies made for an execution that failed with *error* to the receipt of *run*."""
    if error.copies:
        note_copies(prepared, RemoteResult(copies=error.copies), run)


def note_copies(prepared: PreparedStep, result: ExecutionResult, run: Run) -> None:
    """Adds the copies of *result*, and its incidents if it is remote, to the receipt of *run*."""
    step, device = prepared.step, prepared.device.name
    for copy in result.copies:
        operands = step.outputs if copy.out else step.inputs
        places = (device, "host") if copy.out else ("host", device)
        operand = operands[copy.argument] if 0 <= copy.argument < len(operands) else None
        why = "has memory of its own" if copy.by_driver else "lives in another process"
        reason = f"device {device} {why}"
        run.copies.append(
            CopyReceipt(
                copy.nbytes, *places, reason, step.index, operand, copy.start_ns, copy.wall_ns
            )
        )
    if not isinstance(result, RemoteResult):
        return
    for incident in result.incidents:
        # Every model of a dead process reports the same incident; the receipt has it once.
        if (note := f"device {device}: {incident}") not in run.notes:
            run.notes += (note,)
