"""Control flow within control flow: each level enters the next, by one branch or by all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import numpy as np

from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.ir.builder import SubgraphBuilder

Kind: TypeAlias = Literal["IF", "WHILE", "CALL"]

FLAG, VALUE = DType.BOOL, DType.FLOAT32
SHAPE: Final = (2,)
KINDS: Final[tuple[Kind, ...]] = ("IF", "WHILE", "CALL")
RESULT: Final = [(VALUE, SHAPE)]
Make: TypeAlias = Callable[[SubgraphBuilder, int, int], list[int]]
X: Final = np.array([1, -2], np.float32)


def nested(kind: Kind, depth: int, *, shared: bool = False) -> Model:
    """*depth* subgraphs, each entered by the one before; the last doubles x. The inputs are a flag
    and x.

    IF: the other branch negates x, unless both branches are one *shared* subgraph. WHILE: each loop
    has one round where the flag is true. CALL: where *shared*, each level enters the next twice.
    """
    b = ModelBuilder()
    levels = Levels(b, kind, shared)
    for level in range(depth - 1):
        levels.add(f"level {level}")
    flag, x = b.input(FLAG, (), "flag"), b.input(VALUE, SHAPE, "x")
    return b.build(levels.enter(b, flag, x)[-1:])


class Levels:
    """The subgraphs, from the innermost on: *inner* is the last. Each takes a flag and a value; it
    gives a value, and before it, where it is the body of a loop, a flag that ends the loop.
    """

    def __init__(self, b: ModelBuilder, kind: Kind, shared: bool) -> None:
        self._b, self._kind, self._shared = b, kind, shared
        self.inner = self._subgraph("innermost", self._doubled)
        self._other = self.inner
        if kind == "IF" and not shared:
            self._other = self._subgraph("other", lambda g, _, x: g.operation("NEG", [x], RESULT))
        elif kind == "WHILE":
            self._other = self._subgraph("condition", lambda _, flag, __: [flag])

    def add(self, name: str) -> None:
        """One level more."""
        self.inner = self._subgraph(name, self.enter)

    def enter(self, graph: SubgraphBuilder, flag: int, x: int) -> list[int]:
        """The operation of *graph* that enters the last subgraph: its results."""
        inner = self.inner
        if self._kind == "IF":
            other = inner if self._shared else self._other
            branches = {"then_subgraph_index": inner, "else_subgraph_index": other}
            return graph.operation("IF", [flag, flag, x], RESULT, branches)
        if self._kind == "WHILE":
            parts = {"cond_subgraph_index": self._other, "body_subgraph_index": inner}
            return graph.operation("WHILE", [flag, x], [(FLAG, ()), *RESULT], parts)
        made = graph.operation("CALL", [flag, x], RESULT, {"subgraph": inner})
        if self._shared:
            made = graph.operation("MAXIMUM", [*made, *self._again(graph, flag, x)], RESULT)
        return made

    def _again(self, graph: SubgraphBuilder, flag: int, x: int) -> list[int]:
        return graph.operation("CALL", [flag, x], RESULT, {"subgraph": self.inner})

    def _doubled(self, graph: SubgraphBuilder, flag: int, x: int) -> list[int]:
        total = graph.operation("ADD", [x, x], RESULT)
        if self._kind != "WHILE":
            return total
        off = graph.constant(np.array(False))
        return [*graph.operation("LOGICAL_AND", [flag, off], [(FLAG, ())]), *total]

    def _subgraph(self, name: str, make: Make) -> int:
        graph = self._b.subgraph(name)
        flag, x = graph.input(FLAG, (), "flag"), graph.input(VALUE, SHAPE, "x")
        return self._b.add_subgraph(graph.finish(make(graph, flag, x)))


def answer(kind: Kind, flag: bool, *, shared: bool = False) -> NDArray:
    """What `nested` of any depth gives for `X`."""
    if kind == "CALL" or shared or flag:
        return X + X
    return -X if kind == "IF" else X
