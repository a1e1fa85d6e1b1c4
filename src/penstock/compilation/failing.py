"""The error of a step that failed for good, in the words of the caller's model."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.compilation.calls import describe, in_one_line
from penstock.compilation.receipt import Failure
from penstock.errors import FOREIGN, DeadObject, DriverError
from penstock.ir import Model
from penstock.partitioning.fallback import NOT_ALLOWED, WHOLE
from penstock.partitioning.plan import ExecutionStep

Kind = TypeVar("Kind", bound=DriverError)

LAST_CRASH: Final = "penstock doctor --last-crash"

LOST: Final = "no other device can repeat it without that buffer"

_OPERATION: Final = re.compile(r"operation (0|[1-9][0-9]{0,8}) \(([^\s,()]+)")
"""How drivers begin what they say of an operation: its number in the model that they were given,
and its type.
"""


class Said(NamedTuple):
    """What a driver said, with the *operation* it named: its index in the model that the driver was
    given, None where it named none, and its type, *kind*. The words are *before*, the index and
    *after*.
    """

    before: str
    operation: int | None = None
    kind: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{'' if self.operation is None else self.operation}{self.after}"

    @property
    def cause(self) -> str:
        """What it said of the operation; empty where it began with something else."""
        return self.after.partition(": ")[2] if self.before == _BEGINNING else ""

    def is_of(self, part: Model, count: int) -> bool:
        """Whether it named one of the first *count* operations of *part*."""
        operations = part.entry.operations[:count]
        at = self.operation
        if at is None or at >= len(operations):
            return False
        return self.kind in (operations[at].key, operations[at].type)

    def renumbered(self, part: Model, operations: Sequence[int]) -> Said:
        """The same of the model that *operations* of *part* were taken from."""
        if self.operation is None or not self.is_of(part, len(operations)):
            return self
        return self._replace(operation=operations[self.operation])


_BEGINNING: Final = "operation "


def heard(words: str) -> Said:
    """What a driver said in *words*. Here alone they are read: an error of a driver carries no
    number.
    """
    found = _OPERATION.search(words)
    if found is None:
        return Said(words)
    return Said(words[: found.start(1)], int(found[1]), found[2], words[found.end(1) :])


def final(
    error: Kind,
    step: ExecutionStep,
    device: str,
    others: Sequence[Failure] = (),
    *,
    allowed: bool = True,
    lost: bool = False,
) -> Kind:
    """*error* of *device* at *step* as its caller gets it: of the same class, its message begun
    with the operation of the planned model, or the first and last of several, and ended with why
    nothing repeats the step.

    *others* are the devices that failed at it too, as notes also where they said something else;
    *allowed* False says that the call allows no fall-back, *lost* that memory which the step reads
    or writes is gone with its device, so that nobody can repeat it. The original is its cause. An
    error that cannot be made anew gets the same words as a note.
    """
    words = in_one_line(error) or type(error).__name__
    said = heard(f"{type(error).__name__}: {words}").renumbered(step.model, step.operations)
    place, words = _place(step, heard(words))
    if isinstance(error, DeadObject):
        words = with_last_crash(words)
    why = LOST if lost else _why(step, others, str(said), allowed=allowed)
    text = f"{place} on {device}: {words}; {why}"
    made = error
    try:
        made = copy.copy(error)
        made.args = (text, *error.args[1:])
        anew = str(made) == text
    except FOREIGN:  # a driver's own class may do anything
        anew = False
    if anew:
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
    """*error* in one line, about an operation of *step* by its number in the planned model instead
    of the step's.
    """
    return str(heard(describe(error)).renumbered(step.model, step.operations))


def failure_of(device: str, error: DriverError, step: ExecutionStep) -> Failure:
    """What receipts say of *device*, which failed at *step* with *error*."""
    return Failure(device, in_model(step, error), error.status)


def with_last_crash(words: str) -> str:
    """*words* about the death of a driver's process, and where more is said of it."""
    return words if LAST_CRASH in words else f"{words}; {LAST_CRASH} says more"


def told(error: BaseException) -> str:
    """In one line what a driver said, without the words that `final` put around it: for who tries
    devices out.
    """
    return str(_said_by(error))


def told_of(error: BaseException, part: Model, operations: Sequence[int]) -> str:
    """As `told` of *error* of *part*, about an operation by its number in the model that
    *operations* were taken from.
    """
    return str(_said_by(error).renumbered(part, operations))


def _said_by(error: BaseException) -> Said:
    if isinstance(error, DriverError) and isinstance(error.said, Said):
        return error.said
    return heard(describe(error))


def _place(step: ExecutionStep, said: Said) -> tuple[str, str]:
    """Which operation of the planned model the driver named, or all of the step; and the rest of
    the words.
    """
    if said.operation is not None and said.cause and said.is_of(step.model, len(step.operations)):
        return _one(step, said.operation), said.cause
    words = str(said)
    if len(step.operations) == 1:
        return _one(step, 0), words
    if step.index == WHOLE:
        return "the whole model", words
    if not step.operations:
        return f"step {step.index}", words
    ends = (_named(step, 0), _named(step, len(step.operations) - 1))
    return f"step {step.index}, operations {' to '.join(ends)},", words


def _one(step: ExecutionStep, at: int) -> str:
    return f"operation {_named(step, at)}"


def _named(step: ExecutionStep, at: int) -> str:
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
    names = " and ".join(step.fallbacks)
    return f"{names}, which might repeat it, {'does' if len(step.fallbacks) == 1 else 'do'} not support all of it"
