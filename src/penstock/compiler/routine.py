"""Routines: computations whose control flow depends on data, as statements over scalar variables.

A nest of loops computes every point. What suppresses boxes, keeps a heap or ends early is a routine
instead: assignments, loads, stores, loops and branches. It reads whole tensors and writes one, a
vector that it also uses as memory of its own; kernels behind it take their results out of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.compiler.expression import Expression
from penstock.ir import DType


class Assign(Struct, frozen=True):
    """*variable* becomes *value* of the variables *arguments*."""

    variable: int
    value: Expression
    arguments: tuple[int, ...] = ()


OWN: Final = -1
"""The tensor that a routine writes, as the source of a `Load`."""


class Load(Struct, frozen=True):
    """*variable* becomes the element of a tensor whose number is the variable *index*. *source* is
    the place of the tensor in `Routine.reads`, or `OWN` for the written one.

    The number counts row-major. Code clamps it to the tensor, so that no read leaves it; the
    interpreter raises an error instead.
    """

    variable: int
    source: int
    index: int


class Store(Struct, frozen=True):
    """The element of the written tensor whose number is the variable *index* becomes the variable
    *value*. The number is clamped as that of `Load`.
    """

    index: int
    value: int


class While(Struct, frozen=True):
    """Runs *before*, and then *body*, for as long as the variable *condition* is true after
    *before*.
    """

    before: Block
    condition: int
    body: Block


class If(Struct, frozen=True):
    """Runs *body* if the variable *condition* is true."""

    condition: int
    body: Block


Statement: TypeAlias = "Assign | Load | Store | While | If"
Block: TypeAlias = "tuple[Statement, ...]"


class Routine(Struct, frozen=True):
    """Statements over *variables*, given by their types, which begin at 0 (False).

    *reads* are the tensors that are loaded from, besides the written one. *turns* is about how many
    turns all loops have, at most.
    """

    variables: tuple[DType, ...]
    reads: tuple[int, ...]
    body: Block
    turns: int = 1


def blocks_of(statement: Statement) -> tuple[Block, ...]:
    """The blocks inside a statement."""
    if isinstance(statement, While):
        return statement.before, statement.body
    return (statement.body,) if isinstance(statement, If) else ()


def statements(block: Block) -> Iterator[Statement]:
    """All statements of *block*, those inside others included."""
    for statement in block:
        yield statement
        for inner in blocks_of(statement):
            yield from statements(inner)


def assigned(block: Block) -> list[int]:
    """The variables that *block* changes, in order."""
    return sorted({s.variable for s in statements(block) if isinstance(s, Assign | Load)})
