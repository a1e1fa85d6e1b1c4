"""Shape inference over a whole model: from the shapes of its inputs to those of every operand.

The rules are the `infer` functions of the operation table. Values of small shape computations are
folded. So a RESHAPE whose target is computed by SHAPE, STRIDED_SLICE and PACK has a known shape.
Other shapes are known only at run time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.arguments import check_kind
from penstock.errors import InputError, InvalidOperation, LimitExceeded, ModelError, Place
from penstock.interrupts import checkpoint
from penstock.ir.model import Model
from penstock.ir.operand import Operand
from penstock.ir.operation import Attributes, Operation
from penstock.ir.operations import spec_of
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import DType, NDArray, Shape
from penstock.ir.validate import MAX_DEPTH

MAX_FOLDED_BYTES: Final = 4096
"""Greatest size, in bytes, of a value that is followed. Shape computations are small."""

MAX_CALLED_OPERATIONS: Final = 200_000
"""Greatest number of operations of referenced subgraphs that one inference visits."""

Call: TypeAlias = tuple[int, tuple[Shape, ...]]
"""A subgraph and the shapes of its inputs."""


def infer_shapes(model: Model, inputs: Mapping[int, Sequence[int]] | None = None) -> Model:
    """*model* with the shape of every operand of its entry subgraph inferred.

    *inputs* maps positions in `model.inputs` to full shapes for this use. They replace the declared
    shapes, as in TFLite's non-strict resize. Other inputs keep their shapes. Declared shapes of
    temporaries and outputs are replaced, not trusted. Raises `ShapeMismatch`, with the operation's
    place, if shapes contradict each other.
    """
    check_kind(model, Model, "shapes are inferred of a Model")
    entry = model.entry
    shapes: dict[int, Shape] = {i: entry.operands[i].shape for i in entry.inputs}
    for position, given in (inputs or {}).items():
        if not 0 <= position < len(entry.ordinary_inputs):
            raise InputError(f"input {position} of {len(entry.ordinary_inputs)}")
        index = entry.ordinary_inputs[position]
        shapes[index] = tuple(given)
    inferred = infer_subgraph(model, model.main, [shapes[i] for i in entry.inputs])
    return model if inferred is entry else model.with_entry(inferred)


class Inferred(Struct):
    """Inferred shapes of the subgraphs of one model. Each is inferred once for the same inputs."""

    shapes: dict[Call, list[Shape]] = field(default_factory=dict)
    operations: int = 0

    def output_shapes(self, model: Model, call: Call) -> list[Shape]:
        shapes = self.shapes[call]
        return [shapes[i] for i in model.subgraphs[call[0]].outputs]


def infer_subgraph(
    model: Model, subgraph: int, inputs: Sequence[Shape], known: Inferred | None = None
) -> Subgraph:
    """A subgraph with the shape of every operand inferred from the shapes of its inputs. Returns
    the same object if no shape changes.

    Raises `ShapeMismatch` as `infer_shapes` does. *known* has the results of earlier calls for the
    same model, and new results are added to it.
    """
    graph = model.subgraphs[subgraph]
    shapes = _run(model, (subgraph, tuple(inputs)), Inferred() if known is None else known)
    changed = False
    operands = []
    for operand, shape in zip(graph.operands, shapes, strict=True):
        if operand.is_constant or operand.shape == shape:
            operands.append(operand)
        else:
            operands.append(replace(operand, shape=shape))
            changed = True
    return replace(graph, operands=tuple(operands)) if changed else graph


def _run(model: Model, call: Call, known: Inferred) -> list[Shape]:
    """The shapes of all operands of a subgraph. Not recursive: subgraphs may be nested deeper than
    Python's stack.
    """
    if call in known.shapes:
        return known.shapes[call]
    stack = [_Inference(model, call, known)]
    while stack:
        inference = stack[-1]
        try:
            inference.run()
        except _NeededFirst as needed:
            if len(stack) > MAX_DEPTH:
                raise LimitExceeded(
                    f"subgraphs enter each other more than {MAX_DEPTH} deep"
                ) from None
            stack.append(_Inference(model, needed.call, known))
            continue
        stack.pop()
        known.shapes[inference.call] = inference.shapes
    return known.shapes[call]


class _NeededFirst(Exception):  # no error: inference goes on there
    """The subgraph whose output shapes an operation waits for."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


class _Inference:
    """The inference of one subgraph for one set of input shapes."""

    def __init__(self, model: Model, call: Call, known: Inferred) -> None:
        self.model, self.call, self.known = model, call, known
        self.index, inputs = call
        self.subgraph: Subgraph = model.subgraphs[self.index]
        self.shapes: list[Shape] = [o.shape for o in self.subgraph.operands]
        self.values: dict[int, NDArray] = {}
        self._next = 0
        for index, shape in zip(self.subgraph.inputs, inputs, strict=True):
            self.shapes[index] = shape

    def run(self) -> None:
        """Infers the shapes of all operands. Continues at the operation that raised
        `_NeededFirst`.
        """
        operations = self.subgraph.operations
        while self._next < len(operations):
            checkpoint()
            operation = operations[self._next]
            try:
                self.follow(operation)
            except ModelError as error:
                raise error.at(Place(self.index, self._next, type=operation.type)) from None
            self._next += 1

    def follow(self, operation: Operation) -> None:
        """Infers the output shapes and values of *operation* from earlier shapes and values."""
        spec = spec_of(operation)
        context = InferenceContext(self, operation)
        for output, shape in zip(operation.outputs, spec.infer(context), strict=True):
            self.shapes[output] = shape
        if spec.fold is not None and (values := spec.fold(context)) is not None:
            for output, value in zip(operation.outputs, values, strict=True):
                if value.nbytes <= MAX_FOLDED_BYTES:
                    self.values[output] = value
                    self.shapes[output] = value.shape

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        """Output shapes of a referenced subgraph."""
        call = subgraph, tuple(inputs)
        if call not in self.known.shapes:
            if not 0 <= subgraph < len(self.model.subgraphs):
                raise InvalidOperation(f"runs subgraph {subgraph}, which does not exist")
            target = self.model.subgraphs[subgraph]
            if len(inputs) != len(target.inputs):
                raise InvalidOperation(
                    f"gives {len(inputs)} inputs to subgraph {subgraph}, which takes "
                    f"{len(target.inputs)}"
                )
            self.known.operations += len(target.operations)
            if self.known.operations > MAX_CALLED_OPERATIONS:
                raise LimitExceeded("subgraphs enter each other too often")
            raise _NeededFirst(call)
        return self.known.output_shapes(self.model, call)

    def operand(self, index: int) -> Operand:
        return self.subgraph.operands[index]

    def shape(self, index: int) -> Shape:
        return self.shapes[index]

    def known_value(self, index: int) -> NDArray | None:
        operand = self.subgraph.operands[index]
        return self.model.constant(operand) if operand.is_constant else self.values.get(index)


class Shapes(Protocol):
    """The known shapes and values of a subgraph's operands during inference."""

    def operand(self, index: int) -> Operand:
        """Operand *index* as declared in the model."""

    def shape(self, index: int) -> Shape:
        """The shape of an operand, as far as it is inferred."""

    def known_value(self, index: int) -> NDArray | None:
        """The value of an operand, if it is known."""

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        """The shapes of a subgraph's outputs for these shapes of its inputs."""


class InferenceContext:
    """`ShapeContext` for one operation of a subgraph."""

    def __init__(self, shapes: Shapes, operation: Operation) -> None:
        self._shapes, self.operation = shapes, operation
        self.attributes: Attributes = operation.attributes

    @property
    def input_count(self) -> int:
        return len(self.operation.inputs)

    @property
    def output_count(self) -> int:
        return len(self.operation.outputs)

    def has(self, index: int) -> bool:
        inputs = self.operation.inputs
        return index < len(inputs) and self._shapes.operand(inputs[index]).has_value

    def shape(self, index: int) -> Shape:
        return self._shapes.shape(self.operation.inputs[index]) if self.has(index) else None

    def dtype(self, index: int) -> DType:
        return self._shapes.operand(self.operation.inputs[index]).dtype

    def value(self, index: int) -> NDArray | None:
        return self._shapes.known_value(self.operation.inputs[index]) if self.has(index) else None

    def declared(self, index: int) -> Shape:
        return self._shapes.operand(self.operation.outputs[index]).shape

    def output_dtype(self, index: int) -> DType:
        return self._shapes.operand(self.operation.outputs[index]).dtype

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        return self._shapes.subgraph_outputs(subgraph, inputs)


def follow(
    model: Model, subgraph: int, given: Mapping[int, NDArray], wanted: Collection[int]
) -> dict[int, NDArray]:
    """Values of the operands *wanted* of a subgraph, as far as they follow from shapes, constants
    and the values *given* of other operands.

    The `fold` functions of the operation table compute them. Only operations that the wanted values
    depend on are evaluated. The subgraph's shapes are used unchanged. The result is empty if they
    contradict each other.
    """
    graph = model.subgraphs[subgraph]
    known = Inferred()
    call = subgraph, tuple(graph.operands[i].shape for i in graph.inputs)
    inference = _Inference(model, call, known)
    inference.values.update(given)
    needed, chosen = set(wanted) - given.keys(), []
    for operation in reversed(graph.operations):
        if not needed.isdisjoint(operation.outputs):
            chosen.append(operation)
            needed.update(i for i in operation.inputs if i not in given)
    try:
        for operation in reversed(chosen):
            ports = (*operation.inputs, *operation.outputs)
            if all(graph.operands[i].quantization is None for i in ports):
                _follow(inference, operation)
    except ModelError:
        return {}
    return {i: value for i in wanted if (value := inference.known_value(i)) is not None}


def _follow(inference: _Inference, operation: Operation) -> None:
    """The result of `_Inference.follow`, after inference of the subgraphs that it needs."""
    while True:
        try:
            return inference.follow(operation)
        except _NeededFirst as needed:
            _run(inference.model, needed.call, inference.known)
