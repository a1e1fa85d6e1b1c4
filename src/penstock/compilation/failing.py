"""The error of a step that failed for good, in the words of the caller's model."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Final, TypeVar

from penstock.compilation.calls import describe, in_one_line
from penstock.compilation.receipt import Failure
from penstock.errors import FOREIGN, DeadObject, DriverError
from penstock.ir import Model
from penstock.partitioning.fallback import NOT_ALLOWED, WHOLE
from penstock.partitioning.plan import ExecutionStep

Kind = TypeVar("Kind", bound=DriverError)

LAST_CRASH: Final = "penstock doctor --last-crash"

LOST: Final = "no other device can repeat it without that buffer"

FORM: Final = re.compile(r"operation (\d+) \(([^\s,()]+)")
"""How drivers begin what they say of an operation: its number in the model that they were given, and its type."""


def final(
    error: Kind,
    step: ExecutionStep,
    device: str,
    others: Sequence[Failure] = (),
    *,
    allowed: bool = True,
    lost: bool = False,
) -> Kind:
    """*error* of *device* at *step* as its caller gets it: of the same class, its message begun with the operation
    of the planned model, or the first and last of several, and ended with why nothing repeats the step.

    *others* are the devices that failed at it too, as notes also where they said something else; *allowed* False says that the call allows no fall-back,
    *lost* that memory which the step reads or writes is gone with its device, so that nobody can repeat it.
    The original is its cause. An error that cannot be made anew gets the same words as a note.
    """
    words = in_one_line(error) or type(error).__name__
    said = in_model(step, f"{type(error).__name__}: {words}")
    place, words = _place(step, words)
    if isinstance(error, DeadObject):
        words = with_last_crash(words)
    why = LOST if lost else _why(step, others, said, allowed=allowed)
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
        if failure.error != said:
            made.add_note(f"{failure.device} failed at the same step: {failure.error}")
    return made


def in_model(step: ExecutionStep, words: str) -> str:
    """*words* about an operation of *step*, by its number in the planned model instead of the step's."""
    return renumbered(words, step.model, step.operations)


def failure_of(device: str, error: DriverError, step: ExecutionStep) -> Failure:
    """What receipts say of *device*, which failed at *step* with *error*."""
    return Failure(device, in_model(step, describe(error)), error.status)


def renumbered(words: str, part: Model, operations: Sequence[int]) -> str:
    """*words* about an operation of *part*, by its number in the model that *operations* were taken from."""
    found = FORM.search(words)
    if found is None or (at := int(found[1])) >= len(operations):
        return words
    inside = part.entry.operations
    if at >= len(inside) or found[2] not in (inside[at].key, inside[at].type):
        return words
    return f"{words[: found.start(1)]}{operations[at]}{words[found.end(1) :]}"


def with_last_crash(words: str) -> str:
    """*words* about the death of a driver's process, and where more is said of it."""
    return words if LAST_CRASH in words else f"{words}; {LAST_CRASH} says more"


def told(error: BaseException) -> str:
    """In one line what a driver said, without the words that `final` put around it: for who tries devices out."""
    if isinstance(error, DriverError) and error.said:
        return error.said
    return describe(error)


def _place(step: ExecutionStep, words: str) -> tuple[str, str]:
    """Which operation of the planned model *words* are about, or all of the step; and the rest of the words."""
    found = FORM.match(words)
    if found is not None and (at := int(found[1])) < len(step.operations):
        operation = step.model.entry.operations[at]
        end = words.find(": ", found.end())
        if found[2] in (operation.key, operation.type) and end >= 0:
            return _one(step, at), words[end + 2 :]
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
