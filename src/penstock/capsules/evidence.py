"""Stores the last driver failures as capsules in the state directory, readable by the user only."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakSet

from msgspec import Struct
from msgspec.structs import replace

from penstock import knobs
from penstock.capsules.archive import Capsule, Stage
from penstock.errors import Unreadable
from penstock.hal import AccuracyClass, Device
from penstock.ir import NDArray
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.sealed.places import make_private_directory, state_directory

log = Log(__name__)

FAILURES: Final = "failures"
"""The directory of stored failures below the state directory."""

MOST_KEPT: Final = 8
MOST_KEPT_BYTES: Final = 64 << 20
"""A larger failure is stored without its step."""
TOO_LARGE: Final = "the step has {} bytes, too many to be kept"
ENDING: Final = ".capsule"

_writers: WeakSet[threading.Thread] = WeakSet()


class StepFailure(Struct, frozen=True, eq=False):
    """The failure of *device* at *step*.

    *inputs* are copies if the knob `keep_failure_data` is on, else None. *shapes* are their shapes
    in either case, with 1 for a dimension that was not yet known.
    """

    stage: Stage
    step: ExecutionStep
    device: Device
    error: str
    shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[NDArray, ...] | None = None


def noted(
    stage: Stage,
    step: ExecutionStep,
    device: Device,
    error: str,
    values: Mapping[int, NDArray] | None = None,
) -> tuple[StepFailure, ...]:
    """The failure, to be stored later; empty if the knob `keep_failures` is off.

    *values* has the operands of the planned model. Raises nothing.
    """
    import numpy as np

    with _failing_quietly():
        if not knobs.keep_failures():
            return ()
        inputs = None
        if values is None:
            dimensions = [operand.shape or () for operand in step.model.inputs]
            shapes = tuple(tuple(1 if n is None else n for n in shape) for shape in dimensions)
        else:
            shapes = tuple(np.shape(values[i]) for i in step.inputs)
            if knobs.keep_failure_data():
                inputs = tuple(np.array(values[i]) for i in step.inputs)
        return (StepFailure(stage, step, device, error, shapes, inputs),)
    return ()


@contextmanager
def _failing_quietly() -> Iterator[None]:
    """Logs an exception in its block: evidence must not change the caller's result."""
    try:
        yield
    except Exception as failed:  # noqa: BLE001  # whatever it is
        log.debug("a failure is not kept: %r", failed)


def keep(
    failure: StepFailure, plan: ExecutionPlan, receipt: str | None, accuracy: AccuracyClass
) -> None:
    """Stores *failure* of a step of *plan*. Raises nothing if it cannot be stored."""
    with _failing_quietly():
        _save(_capsule(failure, plan, receipt, accuracy), state_directory())


def keep_soon(
    failure: StepFailure, plan: ExecutionPlan, receipt: Callable[[], str], accuracy: AccuracyClass
) -> None:
    """Stores as `keep` does, in a background thread, so that no run waits for the disk.

    *receipt* is called in that thread. A program that ends waits for pending writes.
    """
    try:
        state = state_directory()
    except Unreadable as failed:
        log.debug("a failure is not kept: %r", failed)
        return

    def write() -> None:
        with _failing_quietly():
            _save(_capsule(failure, plan, receipt(), accuracy), state)

    context = contextvars.copy_context()
    writer = threading.Thread(target=context.run, args=(write,), name="penstock-evidence")
    _writers.add(writer)
    try:
        writer.start()
    except RuntimeError:
        write()


def wait() -> None:
    """Waits until this process's pending writes have ended."""
    for writer in list(_writers):
        if writer.is_alive() and writer is not threading.current_thread():
            writer.join()


def keep_capsule(capsule: Capsule) -> None:
    """Stores a capsule. Its arrays are dropped if the knob `keep_failure_data` is off."""
    with _failing_quietly():
        if knobs.keep_failures():
            kept = capsule if knobs.keep_failure_data() else _without_arrays(capsule)
            _save(kept, state_directory())


def last() -> str | None:
    """The path of the last stored failure; None if there is none."""
    wait()
    try:
        directory = os.path.join(state_directory(), FAILURES)
    except Unreadable:
        return None
    names = _names(directory)
    return os.path.join(directory, names[-1]) if names else None


def clear() -> int:
    """Removes the stored failures; returns their number. Raises `OSError`."""
    wait()
    directory = os.path.join(state_directory(), FAILURES)
    names = _names(directory)
    for name in names:
        os.unlink(os.path.join(directory, name))
    return len(names)


def _capsule(
    failure: StepFailure, plan: ExecutionPlan, receipt: str | None, accuracy: AccuracyClass
) -> Capsule:
    from penstock.capsules.making import Case, FailureDetails, make

    step, case, no_case = failure.step, None, ""
    # The bytes of the constants, which are part of the model's file.
    operands = (o for subgraph in step.model.subgraphs for o in subgraph.operands)
    nbytes = sum(place.length for place in {o.location for o in operands} if place is not None)
    if nbytes > MOST_KEPT_BYTES:
        no_case = TOO_LARGE.format(nbytes)
    else:
        case = Case(step.model, failure.inputs, shapes=failure.shapes)
    details = FailureDetails(failure.stage, plan.model, step.operations, failure.error)
    return make(
        details,
        failure.device,
        accuracy=accuracy,
        plan=plan,
        receipt=receipt,
        case=case,
        no_case=no_case,
    )


def _save(capsule: Capsule, state: str) -> None:
    from penstock.capsules.archive import dump

    content = dump(capsule)
    if len(content) > MOST_KEPT_BYTES:
        no_case = TOO_LARGE.format(len(content))
        content = dump(Capsule(replace(capsule.manifest, case=None, no_case=no_case)))
    directory = os.path.join(state, FAILURES)
    make_private_directory(directory)
    name = os.path.join(directory, f"{time.time_ns():020}-{os.getpid()}{ENDING}")
    temporary = f"{name}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, name)
    except BaseException:
        os.unlink(temporary)
        raise
    for old in _names(directory)[:-MOST_KEPT]:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, old))


def _without_arrays(capsule: Capsule) -> Capsule:
    """*capsule* with the shapes of its inputs instead of its arrays."""
    case = capsule.manifest.case
    if case is None:
        return capsule
    shapes = tuple(a.shape for a in capsule.inputs) if case.left_out is None else case.left_out
    left_out = replace(case, inputs=(), expected=(), got=(), left_out=shapes)
    return Capsule(replace(capsule.manifest, case=left_out), capsule.model)


def _names(directory: str) -> list[str]:
    """The names of stored failures, the newest last. Empty if the directory is unreadable."""
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(ENDING))
    except OSError:
        return []
