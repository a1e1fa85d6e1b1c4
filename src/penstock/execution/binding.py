"""Runs some of whose inputs and outputs are no arrays of the host."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.errors import InputError
from penstock.execution.copying import Copying
from penstock.memory.bound import BoundMemory

if TYPE_CHECKING:
    from penstock.execution.run import Run
    from penstock.ir import NDArray


def bound_operands(
    inputs: Sequence[int],
    given: Sequence[Any],
    outputs: Sequence[int],
    out: Sequence[Any] | None,
    not_computed: Container[int],
) -> dict[int, BoundMemory]:
    """Operand -> what stands for it, of the *given* inputs and the *out* that are no arrays; of the
    outputs only those that a step computes.

    Raises `InputError` where one is an input and an output of the run, or two outputs (NNAPI
    section 6.5), and where what is written overlaps other memory of the run.
    """
    bound = {i: m for i, m in zip(inputs, given, strict=True) if isinstance(m, BoundMemory)}
    read = [m.owner for m in bound.values()]
    written: list[Any] = []
    for i, memory in zip(outputs, out or (), strict=out is not None):
        if not isinstance(memory, BoundMemory):
            continue
        if any(memory.owner is other for other in written):
            raise InputError(f"{memory.name} is given for two outputs of one run")
        if any(memory.owner is other for other in read):
            raise InputError(f"{memory.name} is given as an input and as an output of one run")
        written.append(memory.owner)
        if i not in not_computed:
            bound.setdefault(i, memory)
    _check_apart([*map(_array, given)], [*map(_array, out or ())])
    return bound


def _array(given: Any) -> NDArray | None:
    return given.array if isinstance(given, BoundMemory) else given


def _check_apart(read: Sequence[NDArray | None], written: Sequence[NDArray | None]) -> None:
    """Raises `InputError` where memory that is written overlaps other memory of the run."""
    targets = [a for a in written if a is not None]
    sources = [a for a in read if a is not None]
    if any(np.may_share_memory(a, b) for a, b in combinations(targets, 2)):
        raise InputError("two arrays of out= share memory")
    if any(np.may_share_memory(a, b) for a in targets for b in sources):
        raise InputError("an array of out= shares memory with an input")


def fetch_all(
    operands: Iterable[int],
    step: int | None,
    values: dict[int, NDArray],
    bound: Mapping[int, BoundMemory],
    copies: list[CopyReceipt],
    device: str,
) -> None:
    """Puts those of *operands* that are bound, and not in *values* yet, there."""
    copying = Copying(step, device, copies)
    for operand in operands:
        if operand in bound and operand not in values:
            values[operand] = copying.fetch(bound[operand], operand)


def put_all(
    operands: Iterable[int | None],
    step: int | None,
    values: Mapping[int, NDArray],
    bound: Mapping[int, BoundMemory],
    copies: list[CopyReceipt],
    device: str,
) -> None:
    """Copies the *operands* that a step has left in *values* where they are bound to go."""
    copying = Copying(step, device, copies)
    for operand in operands:
        if operand is not None and operand in bound:
            copying.put(bound[operand], values[operand], operand)


def lose(outputs: Sequence[int], run: Run) -> None:
    """*run* has failed: what its steps have written of bound *outputs* is no value."""
    written = {operand for step in run.steps for operand in step.prepared.step.outputs}
    for operand in written.intersection(outputs):
        if run.bound is not None and operand in run.bound:
            run.bound[operand].lost()


def deliver(
    outputs: Sequence[int],
    constants: Mapping[int, NDArray],
    values: dict[int, NDArray],
    out: Sequence[Any] | None,
    bound: Mapping[int, BoundMemory],
    copies: list[CopyReceipt],
) -> dict[int, Any]:
    """Position -> what the caller gave, of the *outputs* that go into bound memory: those that no
    step has put there are copied. The other outputs are in *values* or *constants* afterwards.
    """
    found: dict[int, BoundMemory] = {}
    copying = Copying(None, "the runtime", copies)
    for position, operand in enumerate(outputs):
        given = None if out is None else out[position]
        if isinstance(given, BoundMemory):
            found[position] = given
            if bound.get(operand) is given:
                continue
        if operand not in constants and operand not in values:
            values[operand] = copying.fetch(bound[operand], operand)
        if isinstance(given, BoundMemory):
            source = constants[operand] if operand in constants else values[operand]
            copying.put(given, source, operand)
    return {position: memory.result for position, memory in found.items()}
