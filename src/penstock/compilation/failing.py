"""Error messages for a step that no device could run, in terms of the caller's model.

A driver numbers the operations of the step that it received. `final_error` converts that number to
the operation's index in the planned model.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.compilation.calls import describe, in_one_line
from penstock.compilation.step_receipt import Failure
from penstock.errors import FOREIGN, DeadObject, DriverError
from penstock.ir import Model
from penstock.partitioning.fallback import NOT_ALLOWED
from penstock.partitioning.plan import WHOLE, ExecutionStep

Kind = TypeVar("Kind", bound=DriverError)

LAST_CRASH: Final = "penstock doctor --last-crash"
LOST: Final = "no other device can repeat it without that buffer"

_OPERATION: Final = re.compile(r"operation (0|[1-9][0-9]{0,8}) \(([^\s,()]+)")
"""Matches the index, in the driver's model, and the type of the operation that a message names."""

_BEGINNING: Final = "operation "


class DriverMessage(NamedTuple):
    """A driver's error message, split around the operation index that it contains.

    *operation* is an index in the driver's model; None if the message names no operation. *kind* is
    the operation's type. *before* and *after* are the text on both sides of the index.
    """

    before: str
    operation: int | None = None
    kind: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{'' if self.operation is None else self.operation}{self.after}"

    @property
    def cause(self) -> str:
        """The driver's text after "operation N (...): "; empty if the message does not begin so."""
        return self.after.partition(": ")[2] if self.before == _BEGINNING else ""

    def is_of(self, part: Model, count: int) -> bool:
        """Whether it names, with its type, one of the first *count* operations of *part*."""
        operations = part.entry.operations[:count]
        at = self.operation
        if at is None or at >= len(operations):
            return False
        return self.kind in (operations[at].key, operations[at].type)

    def renumbered(self, part: Model, operations: Sequence[int]) -> DriverMessage:
        """The message with the index converted to the model from which *part* was cut.

        *operations* gives, for each operation of *part*, its index in that model. A message that
        names no operation of *part* is returned unchanged.
        """
        if self.operation is None or not self.is_of(part, len(operations)):
            return self
        return self._replace(operation=operations[self.operation])


def parse_message(words: str) -> DriverMessage:
    """Splits *words* around the operation index, for which a driver's error has no field."""
    found = _OPERATION.search(words)
    if found is None:
        return DriverMessage(words)
    return DriverMessage(words[: found.start(1)], int(found[1]), found[2], words[found.end(1) :])


def final_error(
    error: Kind,
    step: ExecutionStep,
    device: str,
    others: Sequence[Failure] = (),
    *,
    allowed: bool = True,
    lost: bool = False,
) -> Kind:
    """A copy of *error* for the caller, of the same class, with *error* as its cause.

    Its message names the operation of the planned model, or the first and last one of *step*; the
    text of the driver of *device*; and why no other device runs the step.

    *others* are the fallback devices that failed too. Each of them with a different text also
    becomes a note. *allowed* is False if the call allows no fallback; *lost* if memory of the step
    was lost with its device. An error that cannot be copied gets the message as a note.
    """
    words = in_one_line(error) or type(error).__name__
    said = parse_message(f"{type(error).__name__}: {words}").renumbered(step.model, step.operations)
    place, words = _place(step, parse_message(words))
    if isinstance(error, DeadObject):
        words = with_last_crash(words)
    why = LOST if lost else _why(step, others, str(said), allowed=allowed)
    text = f"{place} on {device}: {words}; {why}"
    made = error
    try:
        made = copy.copy(error)
        made.args = (text, *error.args[1:])
        is_copied = str(made) == text
    except FOREIGN:  # an exception class of a driver may do anything
        is_copied = False
    if is_copied:
        made.__cause__ = error
    else:
        made = error
        error.add_note(text)
    made.said = said
    for failure in others:
        if failure.error != str(said):
            made.add_note(f"{failure.device} failed at the same step: {failure.error}")
    return made


def in_model(step: ExecutionStep, error: DriverError) -> str:
    """*error* in one line, with operation indexes of the planned model."""
    return str(parse_message(describe(error)).renumbered(step.model, step.operations))


def failure_of(device: str, error: DriverError, step: ExecutionStep) -> Failure:
    """The receipt's entry for *device*, which failed at *step* with *error*."""
    return Failure(device, in_model(step, error), error.status)


def with_last_crash(words: str) -> str:
    """*words* about a dead host process, and the command that shows the crash report."""
    return words if LAST_CRASH in words else f"{words}; {LAST_CRASH} says more"


def driver_message(error: BaseException) -> str:
    """The driver's error text in one line, without the parts that `final_error` added."""
    return str(_said_by(error))


def driver_message_in(error: BaseException, part: Model, operations: Sequence[int]) -> str:
    """As `driver_message`, with the operation index converted by `DriverMessage.renumbered`."""
    return str(_said_by(error).renumbered(part, operations))


def _said_by(error: BaseException) -> DriverMessage:
    """The driver's message that `final_error` stored in *error*, else the parsed error text."""
    if isinstance(error, DriverError) and isinstance(error.said, DriverMessage):
        return error.said
    return parse_message(describe(error))


def _place(step: ExecutionStep, said: DriverMessage) -> tuple[str, str]:
    """The operation that the driver named, else the whole step; and the rest of the message."""
    if said.operation is not None and said.cause and said.is_of(step.model, len(step.operations)):
        return f"operation {_named(step, said.operation)}", said.cause
    words = str(said)
    if len(step.operations) == 1:
        return f"operation {_named(step, 0)}", words
    if step.index == WHOLE:
        return "the whole model", words
    if not step.operations:
        return f"step {step.index}", words
    ends = (_named(step, 0), _named(step, len(step.operations) - 1))
    return f"step {step.index}, operations {' to '.join(ends)},", words


def _named(step: ExecutionStep, at: int) -> str:
    """Operation *at* of the step: its index in the planned model, its type and its name."""
    entry = step.model.entry
    name = entry.operation_name(at)
    return f"{step.operations[at]} ({entry.operations[at].key}, {name!r})"


def _why(step: ExecutionStep, others: Sequence[Failure], said: str, *, allowed: bool) -> str:
    if not allowed:
        return NOT_ALLOWED
    if not step.fallbacks:
        return step.no_fallback or "no other device may run it"
    if others:
        return "; ".join(
            f"{f.device} failed alike" if f.error == said else f"{f.device} failed too: {f.error}"
            for f in others
        )
    names, form = " and ".join(step.fallbacks), "devices {} do"
    if len(step.fallbacks) == 1:
        form = "device {} does"
    return f"fallback {form.format(names)} not support every operation of the step"
