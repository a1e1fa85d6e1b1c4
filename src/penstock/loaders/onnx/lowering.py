"""Graphs to subgraphs: names to values, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock import errors
from penstock.interrupts import checkpoint
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call
from penstock.loaders.onnx.emitter import Emitter, Shared
from penstock.loaders.onnx.engine import TYPES, Budget, definition
from penstock.loaders.onnx.folding import fold
from penstock.loaders.onnx.graph import MAX_NODES, Function, Graph, GraphReader, Node
from penstock.loaders.onnx.operators import operators
from penstock.loaders.onnx.values import Value, constant

MAX_TRIALS: Final = 64
"""Greatest number of trial lowerings of branches, which find the ranks of their outputs."""

LOWERED_PER_NODE: Final = 50
LOWERED_ALLOWANCE: Final = 5_000
"""Bound of lowered nodes, for each node of the file and in all: calls lower bodies again."""

MAX_CALL_DEPTH: Final = 64

MALFORMED: Final = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)
"""Exceptions of arithmetic on malformed numbers."""

DOUBTED: Final = (errors.ShapeMismatch,)
"""The error of a branch whose outputs the rest of the graph does not fit."""


class Lowering:
    """State that all bodies of one model share."""

    def __init__(self, reader: GraphReader, functions: Mapping[tuple[str, str], Function]) -> None:
        self.reader, self.functions = reader, functions
        self.shared = Shared()
        self.budget: Budget = reader.budget
        self.limit = LOWERED_PER_NODE * (MAX_NODES - reader.nodes_left) + LOWERED_ALLOWANCE
        self.trials = 0
        self.supposing: int = 0
        self.emitted = 0

    def main(self, graph: Graph) -> Subgraph:
        """The entry subgraph, with the inputs' and outputs' names from the file."""
        emitter = Emitter(self.shared, name=graph.name)
        body = Body(self, emitter, graph, None)
        for tensor in graph.inputs:
            if tensor.name in graph.constants:
                continue
            if tensor.dtype is None:
                raise errors.NotLowerable(
                    f"is a {tensor.kind}; only tensors are taken", where=f"input {tensor.name!r}"
                )
            body.bind(tensor.name, emitter.input(tensor.dtype, tensor.shape, tensor.name))
        values = body.run()
        outputs = [
            output_operand(emitter, value, tensor.name, f"output {tensor.name!r}")
            for tensor, value in zip(graph.outputs, values, strict=True)
        ]
        return emitter.finish(outputs)


def output_operand(emitter: Emitter, value: Value, name: str, where: str) -> int:
    """A separate operand, with this name, for an output of the model."""
    if value.items is not None:
        raise errors.NotLowerable("is a sequence; only tensors are given", where=where)
    emitter.where = where
    if value.array is not None:
        return emitter.constant(value.array, name)
    index = emitter.get(value)
    operand = emitter.operands[index]
    if operand.lifetime is not Lifetime.TEMPORARY_VARIABLE or index in emitter.named:
        emitter.label = name
        order = range(len(operand.shape or ()))
        kind = "TRANSPOSE" if order else "RESHAPE"
        index = emitter.one(kind, [index, emitter.integers(order)], operand.dtype)
        operand = emitter.operands[index]
    emitter.named.add(index)
    emitter.operands[index] = replace(operand, name=name)
    return index


class Body:
    """Lowers one graph into an emitter. *outer* is the body around it."""

    def __init__(
        self, lowering: Lowering, emitter: Emitter, graph: Graph, outer: Body | None
    ) -> None:
        self.lowering, self.emitter, self.graph, self.outer = lowering, emitter, graph, outer
        self.budget: Budget = lowering.budget
        self.names: dict[str, Value] = {}
        self.depth: int = 0 if outer is None else outer.depth + 1
        if self.depth > MAX_CALL_DEPTH:
            raise errors.LimitExceeded("graphs or functions are nested too deeply")
        for name, array in graph.constants.items():
            self.names[name] = constant(array, name)

    @property
    def supposes(self) -> bool:
        return self.lowering.supposing > 0

    def inside(self, graph: Graph, emitter: Emitter) -> Body:
        """The body of a *graph* within this one, lowered into *emitter*."""
        return Body(self.lowering, emitter, graph, self)

    def bind(self, name: str, value: Value) -> None:
        if name:
            self.names[name] = value
            if not value.name:
                value.name = name

    def find(self, name: str, node: Node | None) -> Value:
        """The value of *name* in this graph or an outer one."""
        body: Body | None = self
        while body is not None:
            if name in body.names:
                return body.names[name]
            body = body.outer
        where = f"output {name!r}" if node is None else node.where
        if name in self.graph.later:
            raise errors.CyclicModel(f"reads {name!r}, which is only written later", where=where)
        raise errors.UnwrittenOperand(f"reads {name!r}, which nothing writes", where=where)

    def run(self, start: int = 0) -> list[Value]:
        """Lowers the nodes from *start* on. Returns the values of the graph's outputs."""
        for position in range(start, len(self.graph.nodes)):
            checkpoint()
            node = self.graph.nodes[position]
            self.lowering.emitted += 1
            if self.lowering.emitted > self.lowering.limit:
                raise errors.LimitExceeded(
                    "bodies and functions are entered too often", where=node.where
                )
            inputs = [self.find(name, node) if name else None for name in node.inputs]
            if node.key == "If":
                ended = self._if(node, inputs, position)
                if ended is not None:
                    return ended
                continue
            self._bind_all(node, self.lower(node, inputs))
        return [self.find(t.name, None) for t in self.graph.outputs]

    def _bind_all(self, node: Node, values: Sequence[Value]) -> None:
        if len(values) < len(node.outputs) and any(node.outputs[len(values) :]):
            raise node.refuse(f"output {len(values)} is not computed here")
        for name, value in zip(node.outputs, values, strict=False):
            self.bind(name, value)

    def lower(self, node: Node, inputs: list[Value | None]) -> Sequence[Value]:
        emitter = self.emitter
        emitter.label = node.name or next((n for n in node.outputs if n), node.op)
        emitter.index, emitter.where = node.index, node.where
        try:
            folded = fold(node, inputs, self.budget)
            if folded is not None and all(
                all(isinstance(v, bytes) for v in f.reshape(-1).tolist())
                for f in folded
                if f.dtype == object
            ):
                return [constant(f) for f in folded]
            function = self.lowering.functions.get((node.domain, node.op))
            if function is not None:
                return self._call(node, function, inputs)
            lower = operators().get(node.key)
            defined = self._defined(node, inputs) if lower is None else None
            if defined is not None:
                return self._call(node, defined, inputs)
            if lower is None:
                raise errors.UnknownOperator(
                    f"the operator {node.op!r} of {node.domain or 'ai.onnx'} is not known here",
                    where=node.where,
                )
            made = lower(Call(self, node, inputs))
        except errors.ModelError as error:
            raise error.at(node.where) from None
        except MALFORMED as error:
            raise errors.InvalidOperation(
                f"the node is malformed: {error}", where=node.where
            ) from error
        values = [made] if isinstance(made, Value) else list(made)
        if folded is not None:
            for value, known in zip(values, folded, strict=False):
                value.known = known
        return values

    def _defined(self, node: Node, inputs: Sequence[Value | None]) -> Function | None:
        """The function by which ONNX defines an operator without a lowering here."""
        if node.domain or any(v is not None and v.items is not None for v in inputs):
            return None
        numbers = {dtype: number for number, dtype in TYPES.items()}
        types = [None if v is None else (numbers[v.dtype], v.shape) for v in inputs]
        found = definition(node.proto, node.version, node.attributes, types)
        if found is None:
            return None
        body, defaults = found
        return self.lowering.reader.function(body, defaults, node.where)

    def _call(self, node: Node, function: Function, inputs: list[Value | None]) -> Sequence[Value]:
        """The outputs of *function*, whose nodes are lowered in place of *node*.

        `onnx.inliner` would expand every call at once and without a bound: functions that call each
        other twice make 2^n nodes of n functions. Here each lowered node counts against `limit`.
        """
        reader = GraphReader(function.opsets, self.budget)
        reader.nodes_left = self.lowering.reader.nodes_left
        graph = Graph(node.op, [], [], {}, [])
        reader.read_nodes(
            function.proto.node, graph, f"{node.where}, function {node.op}: ",
            {**function.defaults, **node.attributes},
        )  # fmt: skip
        self.lowering.reader.nodes_left = reader.nodes_left
        inner = Body(self.lowering, self.emitter, graph, None)
        inner.depth = self.depth + 1
        if inner.depth > MAX_CALL_DEPTH:
            raise errors.LimitExceeded("functions call each other too deeply", where=node.where)
        for name, value in zip(function.inputs, inputs, strict=False):
            if value is not None:
                inner.names[name] = value
        for given in graph.nodes:
            missing = {n for n in given.inputs if n in function.inputs and n not in inner.names}
            if missing:
                given.inputs = tuple("" if n in missing else n for n in given.inputs)
        inner.run()
        unused = Value(DType.FLOAT32, ())
        wanted = zip(function.outputs, node.outputs, strict=False)
        return [inner.find(name, None) if given else unused for name, given in wanted]

    def _if(self, node: Node, inputs: list[Value | None], position: int) -> list[Value] | None:
        """Lowers an If and binds its outputs.

        If the ranks of its branches differ, all later nodes become part of the branches, and the
        outputs of the graph are returned.
        """
        if not inputs or inputs[0] is None:
            raise node.invalid("the condition is missing")
        condition = inputs[0]
        branches = [node.graph(f"{name}_branch") for name in ("then", "else")]
        counts = [len(graph.outputs) for graph in branches]
        if counts[0] != counts[1]:
            raise node.invalid(f"its branches have {counts[0]} and {counts[1]} outputs")
        if condition.array is not None:
            if condition.array.size != 1:
                raise node.invalid(f"a condition of shape {condition.array.shape}")
            chosen = branches[0 if bool(condition.array.reshape(-1)[0]) else 1]
            self._bind_all(node, self.inline(chosen))
            return None
        mark = self.emitter.mark()
        failure: errors.ModelError | None = None
        made: list[tuple[Emitter, list[Value]]] = []
        try:
            made = [self.branch(partial(Body.inline, graph=graph)) for graph in branches]
            same = all(_alike(a, b) for a, b in zip(*(values for _, values in made), strict=True))
        except DOUBTED as error:
            failure, same = error, False
        if same:
            self._bind_all(node, self.emit_if(node, condition, made))
            return None
        self.emitter.back_to(mark)
        return self._split(node, condition, branches, position, failure)

    def inline(self, graph: Graph) -> list[Value]:
        """The outputs of a graph without inputs, lowered in place."""
        return Body(self.lowering, self.emitter, graph, self).run()

    def branch(self, fill: Callable[[Body], list[Value]]) -> tuple[Emitter, list[Value]]:
        """A subgraph under construction, filled by *fill* through a body inside this one."""
        emitter = Emitter(self.lowering.shared, self.emitter)
        return emitter, fill(self.inside(Graph("", [], [], {}, []), emitter))

    def _split(
        self,
        node: Node,
        condition: Value,
        branches: list[Graph],
        position: int,
        failure: errors.ModelError | None,
    ) -> list[Value]:
        names = dict(self.names)
        outcomes: list[errors.ModelError | None] = []

        def rest(inner: Body, graph: Graph) -> list[Value]:
            following = Body(self.lowering, inner.emitter, self.graph, self.outer)
            following.names = dict(names)
            following._bind_all(node, following.inline(graph))
            return following.run(position + 1)

        made = []
        for graph in branches:
            self.lowering.trials += 1
            if self.lowering.trials > MAX_TRIALS:
                raise errors.LimitExceeded("branches differ in rank too often", where=node.where)
            mark = self.emitter.mark()
            try:
                made.append(self.branch(partial(rest, graph=graph)))
                outcomes.append(None)
            except DOUBTED as error:
                self.emitter.back_to(mark)
                outcomes.append(error)
        if len(made) == 2:
            return self.emit_if(node, condition, made)
        if not made:
            raise failure or outcomes[0] or node.refuse("neither branch fits what follows")
        taken = outcomes.index(None)
        self.lowering.supposing += 1
        values = self.inline(branches[taken])
        self.lowering.supposing -= 1
        held = [guarded(self.emitter, node, v, condition, taken == 0) for v in values]
        self._bind_all(node, held)
        return self.run(position + 1)

    def emit_if(
        self, node: Node, condition: Value, made: list[tuple[Emitter, list[Value]]]
    ) -> list[Value]:
        emitter = self.emitter
        emitter.label = node.name or next((n for n in node.outputs if n), node.op)
        emitter.index, emitter.where = node.index, node.where
        outputs = [[e.get(v) for v in values] for e, values in made]
        dtypes = [[v.dtype for v in values] for _, values in made]
        if dtypes[0] != dtypes[1]:
            raise errors.InvalidOperation("the branches give different types", where=node.where)
        every = list(dict.fromkeys(v for e, _ in made for v in e.captured))
        targets = [
            self.lowering.shared.add(e.finish(o, captured_inputs(e, every, emitter)))
            for (e, _), o in zip(made, outputs, strict=True)
        ]
        arguments = [first_form(emitter, v) for v in every]
        attributes = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
        indexes = emitter.emit("IF", [emitter.get(condition), *arguments], dtypes[0], attributes)
        return [emitter.value(i) for i in indexes]


def first_form(emitter: Emitter, value: Value) -> int:
    """The first operand of a value, in any layout."""
    return next(iter(emitter.local(value).forms.values()))


def captured_inputs(inner: Emitter, every: Sequence[Value], outer: Emitter) -> list[int]:
    """The inputs of *inner* for all captured values *every*, including unused ones."""
    found = []
    for value in every:
        known = inner.captured.get(value)
        if known is None:
            shape = outer.shape(first_form(outer, value))
            found.append(inner.add(Operand(value.dtype, shape, Lifetime.SUBGRAPH_INPUT)))
        else:
            found.append(next(iter(known.forms.values())))
    return found


def _alike(a: Value, b: Value) -> bool:
    return a.items is None and b.items is None and a.rank is not None and a.rank == b.rank


def guarded(emitter: Emitter, node: Node, value: Value, condition: Value, wanted: bool) -> Value:
    """*value* if the condition is as *wanted*, otherwise NaN: the file defines no result."""
    if value.array is not None:
        return value
    if not value.dtype.is_float or value.items is not None:
        raise node.refuse(
            "its branches differ in rank, only one fits what follows, and its outputs are no floats"
        )
    layout = emitter.layout_of([value], value.rank or 0)
    operand, truth = emitter.get(value, layout), emitter.get(condition)
    if emitter.shape(truth) != ():
        truth = emitter.one("RESHAPE", [truth, emitter.integers([])], DType.BOOL)
    if not wanted:
        truth = emitter.one("LOGICAL_NOT", [truth], DType.BOOL)
    nothing = emitter.constant(np.array(np.nan).astype(value.dtype.numpy))
    held = emitter.one("SELECT_V2", [truth, operand, nothing], value.dtype)
    found = emitter.value(held, layout)
    found.known = value.known
    return found
