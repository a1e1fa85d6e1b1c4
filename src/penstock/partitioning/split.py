"""Cuts some operations out of a model as a model of their own, with boundary values.

The inputs and outputs of a cut are in NNAPI's order (section 4.4). Inputs: main inputs, then values
of other cuts, then main outputs that other cuts write. Outputs: main outputs, then values for other
cuts. Each group keeps the model's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import LimitExceeded
from penstock.hal import Capabilities
from penstock.interrupts import polled
from penstock.ir import Lifetime, Model, Subgraph
from penstock.ir.transforms import (
    referenced_by,
    renumber_references,
    renumbered,
    renumbered_subgraphs,
)
from penstock.memory import layout
from penstock.partitioning.plan import ExecutionStep

MOST_CARRIED: Final = 1 << 18
"""Limit of the subgraph operands and operations that all cuts copy, beyond the model's own."""


class Cut(Struct, frozen=True):
    """*operations* as a model; *inputs* and *outputs* are the original operands, each once."""

    operations: tuple[int, ...]
    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Cutter:
    """Cuts one model any number of times; *readers* are the operations that count as such."""

    def __init__(self, model: Model, readers: Iterable[int] | None = None) -> None:
        entry = model.entry
        self._model, self._entry = model, entry
        self._input_position = {operand: at for at, operand in enumerate(entry.inputs)}
        self._output_position = {
            operand: at for at, operand in reversed(list(enumerate(entry.outputs)))
        }
        self._room = MOST_CARRIED + sum(map(size_of, model.subgraphs))
        self._readers: dict[int, set[int]] = {}
        for index in range(len(entry.operations)) if readers is None else readers:
            for operand in entry.operations[index].inputs:
                self._readers.setdefault(operand, set()).add(index)

    def cut(self, operations: Sequence[int]) -> Cut:
        """The cut with these operations, which must be in a valid execution order.

        It contains copies of all subgraphs that they enter. Raises `LimitExceeded` if the cuts
        together copy too much.
        """
        entry = self._entry
        inside = frozenset(operations)
        chosen = [entry.operations[i] for i in operations]
        written = {operand for operation in chosen for operand in operation.outputs}
        read = {operand for operation in chosen for operand in operation.inputs}
        operands = entry.operands
        crossing = [
            i for i in read - written if operands[i].has_value and not operands[i].is_constant
        ]
        leaving = [i for i in written if self._leaves(i, inside)]
        inputs = sorted(crossing, key=self._input_order)
        outputs = sorted(leaving, key=self._output_order)
        lifetimes = {i: operands[i].lifetime for i in read}
        lifetimes |= dict.fromkeys(written, Lifetime.TEMPORARY_VARIABLE)
        lifetimes |= dict.fromkeys(inputs, Lifetime.SUBGRAPH_INPUT)
        lifetimes |= dict.fromkeys(outputs, Lifetime.SUBGRAPH_OUTPUT)
        kept = sorted(read | written)
        number = {old: new for new, old in enumerate(kept)}
        referenced = referenced_by(self._model, chosen)
        self._room -= sum(size_of(self._model.subgraphs[index]) for index in referenced)
        if self._room < 0:
            raise LimitExceeded(
                f"its parts carry more than {MOST_CARRIED} operands and operations of subgraphs "
                "that several of them enter"
            )
        subgraph = Subgraph(
            tuple(
                operands[i]
                if operands[i].lifetime is lifetimes[i]
                else replace(operands[i], lifetime=lifetimes[i])
                for i in polled(kept)
            ),
            tuple(renumbered(operation, number, referenced) for operation in polled(chosen)),
            tuple(number[i] for i in inputs),
            tuple(number[i] for i in outputs),
            name=entry.name,
        )
        model = Model((subgraph, *renumbered_subgraphs(self._model, referenced)), self._model.pools)
        return Cut(tuple(operations), model, tuple(inputs), tuple(outputs))

    def _leaves(self, operand: int, inside: frozenset[int]) -> bool:
        readers = self._readers.get(operand, ())
        return operand in self._output_position or any(reader not in inside for reader in readers)

    def _input_order(self, operand: int) -> tuple[int, int]:
        if operand in self._input_position:
            return 0, self._input_position[operand]
        if operand in self._output_position:
            return 2, self._output_position[operand]
        return 1, operand

    def _output_order(self, operand: int) -> tuple[int, int]:
        if operand in self._output_position:
            return 0, self._output_position[operand]
        return 1, operand


def extract(model: Model, index: int) -> Model:
    """Subgraph *index* and everything that it refers to as a separate model with the same ports."""
    subgraph = model.subgraphs[index]
    referenced = referenced_by(model, subgraph.operations)
    own = replace(
        subgraph, operations=tuple(renumber_references(o, referenced) for o in subgraph.operations)
    )
    return Model((own, *renumbered_subgraphs(model, referenced)), model.pools)


def size_of(subgraph: Subgraph) -> int:
    """The number of operands and operations of *subgraph*."""
    return len(subgraph.operands) + len(subgraph.operations)


def plan_temporaries(
    model: Model, steps: Sequence[ExecutionStep], capabilities: Mapping[str, Capabilities]
) -> layout.ArenaLayout:
    """The arena layout of operands that a step writes and a later one reads, except entry outputs.

    An operand lives from the step that writes it to its last reader. Alignment and padding are the
    strictest that these steps' devices prefer (*capabilities*, by name; NNAPI section 6.8).
    """
    users: dict[int, list[ExecutionStep]] = {}
    outputs = frozenset(model.entry.outputs)
    for step in steps:
        users |= {operand: [step] for operand in step.outputs if operand not in outputs}
        for operand in step.inputs:
            if operand in users:
                users[operand].append(step)
    requests, dynamic = [], []
    for operand, involved in users.items():
        nbytes = layout.array_nbytes(model.operands[operand])
        if nbytes is None:
            dynamic.append(operand)
            continue
        wishes = [capabilities[step.device] for step in involved]
        alignment = max(layout.MIN_ALIGNMENT, *(wish.alignment for wish in wishes))
        padding = max(wish.padding for wish in wishes)
        first, last = involved[0].index, involved[-1].index
        requests.append(layout.ArenaRequest(operand, nbytes, first, last, alignment, padding))
    return layout.plan_arena(requests, dynamic)
