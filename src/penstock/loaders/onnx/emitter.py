"""`Emitter`: collects the operations of one subgraph, infers shapes, and fuses what TFLite fuses.

ONNX has normalisation and activation as nodes of their own. TFLite's layers have weights, a bias
and an activation for them: products and sums by channel and activation functions that follow a
layer are fused into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.errors import InvalidOperation, ModelError, UnknownOperator
from penstock.ir.infer import InferenceContext
from penstock.ir.operand import OMITTED, Lifetime, Operand, Origin
from penstock.ir.operation import Attributes, AttributeValue, Operation
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import DType, NDArray, Quantization, Shape
from penstock.loaders.onnx import values as forms
from penstock.loaders.onnx.values import Layout, Value, identity, inverse, is_uniform, uniform

CHANNELS: Final = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
"""Layers, and the output-channel dimension of their weights."""

ACTIVATED: Final = frozenset(
    {*CHANNELS, "ADD", "SUB", "MUL", "DIV", "MAX_POOL_2D", "AVERAGE_POOL_2D"}
)
FUSED: Final = {"RELU": "RELU", "RELU6": "RELU6", "RELU_N1_TO_1": "RELU_N1_TO_1"}
MAX_SPREAD: Final = 1 << 24
"""Greatest size to which weights of one repeated value grow, for factors by channel."""


def fused(
    emitter: Emitter, operations: Sequence[Operation], outputs: Sequence[int]
) -> list[Operation]:
    """*operations* of *emitter* after fusion. *outputs* are read from outside."""
    uses = Counter(i for o in operations for i in set(o.inputs))
    uses.update(outputs)
    done: list[Operation] = []
    writers: dict[int, int] = {}
    for operation in operations:
        place, whole = len(done), operation
        if operation.type in FUSED:
            candidates = [operation.inputs[0]]
        elif operation.type in {"MUL", "ADD"}:
            candidates = [i for i in operation.inputs if i not in emitter.arrays]
        else:
            candidates = []
        if len(candidates) == 1 and uses[candidates[0]] == 1 and candidates[0] in writers:
            at = writers[candidates[0]]
            both = _behind(emitter, operation, candidates[0], done[at])
            if both is not None:
                place, whole = at, both
        done[place : place + 1] = [whole]
        writers.update(dict.fromkeys(whole.outputs, place))
    return done


def _behind(
    emitter: Emitter, operation: Operation, between: int, layer: Operation
) -> Operation | None:
    """*layer*, which writes *between*, fused with *operation*; None if they cannot be fused."""
    if emitter.dtype(between) is not DType.FLOAT32:
        return None
    if layer.attributes.get("fused_activation_function") != "NONE":
        return None
    if emitter.shape(operation.outputs[0]) != emitter.shape(between):
        return None
    if operation.type not in FUSED:
        (other,) = (i for i in operation.inputs if i != between)
        return _scaled(emitter, layer, operation, emitter.arrays[other])
    if layer.type not in ACTIVATED:
        return None
    attributes = {**layer.attributes, "fused_activation_function": FUSED[operation.type]}
    return replace(layer, attributes=Attributes(attributes), outputs=operation.outputs)


def _scaled(
    emitter: Emitter, layer: Operation, operation: Operation, values: NDArray
) -> Operation | None:
    """*layer* multiplied by, or plus, one value or one value for each channel."""
    axis = CHANNELS.get(layer.type)
    if axis is None or layer.inputs[1] not in emitter.arrays:
        return None
    weights = emitter.arrays[layer.inputs[1]]
    count = weights.shape[axis]
    if values.size not in {1, count} or (values.size > 1 and values.shape[-1] != count):
        return None
    biased = len(layer.inputs) > 2 and emitter.operands[layer.inputs[2]].has_value
    if biased and layer.inputs[2] not in emitter.arrays:
        return None
    bias = emitter.arrays[layer.inputs[2]] if biased else np.zeros(count, np.float32)
    vector = np.broadcast_to(values.reshape(-1), (count,))
    if operation.type == "ADD":
        made = emitter.constant((bias + vector).astype(np.float32))
        biased_inputs = (layer.inputs[0], layer.inputs[1], made)
        return replace(layer, inputs=biased_inputs, outputs=operation.outputs)
    if is_uniform(weights) and bool((vector == vector[:1]).all()):
        one = weights[(0,) * weights.ndim] * vector[0]
        grown = uniform(np.asarray(one, np.float32), weights.shape)
    elif is_uniform(weights) and weights.size > MAX_SPREAD:
        return None
    else:
        shape = [count if i == axis else 1 for i in range(weights.ndim)]
        grown = weights * vector.reshape(shape)
    inputs: tuple[int, ...] = (layer.inputs[0], emitter.constant(grown))
    if biased:
        inputs += (emitter.constant((bias * vector).astype(np.float32)),)
    return replace(layer, inputs=inputs, outputs=operation.outputs)


MAX_FOLDED_BYTES: Final = 4096

STORED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})
MOVING: Final = frozenset({
    "RESHAPE", "EXPAND_DIMS", "SQUEEZE", "TRANSPOSE", "PAD", "PADV2", "MIRROR_PAD", "SLICE",
    "STRIDED_SLICE", "GATHER", "GATHER_ND", "TILE", "CONCATENATION", "SPLIT", "SPLIT_V",
    "REVERSE_V2", "BROADCAST_TO", "MAX_POOL_2D", "SELECT_V2", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH",
    "REVERSE_SEQUENCE", "DYNAMIC_UPDATE_SLICE",
})  # fmt: skip
"""Operations that move elements. Their results have the quantisation of their inputs."""


class Shared:
    """What the emitters of one model share: constants, and finished subgraphs by index."""

    def __init__(self) -> None:
        self.constants = forms.Constants()
        self.subgraphs: list[Subgraph | None] = [None]

    def add(self, subgraph: Subgraph) -> int:
        self.subgraphs.append(subgraph)
        return len(self.subgraphs) - 1


class Emitter:
    """One subgraph under construction. *label* and *index* identify the node being lowered."""

    def __init__(self, shared: Shared, parent: Emitter | None = None, name: str = "") -> None:
        self.shared, self.parent, self.name = shared, parent, name
        self.operands: list[Operand] = []
        self.operations: list[Operation] = []
        self.inputs: list[int] = []
        self.values: list[Value] = []
        self.captured: dict[Value, Value] = {}
        self.arrays: dict[int, NDArray] = {}
        self.label, self.index, self.where = "", 0, ""
        self.named: set[int] = set()
        self._omitted: int | None = None

    def add(self, operand: Operand) -> int:
        self.operands.append(operand)
        return len(self.operands) - 1

    def input(self, dtype: DType, shape: Shape, name: str = "") -> Value:
        index = self.add(Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name))
        self.inputs.append(index)
        form = identity(len(shape or ()))
        return self._kept(Value(dtype, shape, name=name, home=self, forms={form: index}))

    def constant(
        self, array: NDArray, name: str = "", quantization: Quantization | None = None
    ) -> int:
        index = self.add(self.shared.constants.operand(array, name, quantization))
        self.arrays[index] = array
        return index

    def integers(self, numbers: Iterable[int]) -> int:
        return self.constant(np.array(list(numbers), np.int32))

    def omitted(self) -> int:
        if self._omitted is None:
            self._omitted = self.add(OMITTED)
        return self._omitted

    def value(self, operand: int, layout: Layout | None = None) -> Value:
        """The value of *operand*, whose dimensions are in *layout*."""
        item = self.operands[operand]
        order = identity(len(item.shape or ())) if layout is None or item.shape is None else layout
        shape = forms.logical(item.shape, order)
        found = Value(item.dtype, shape, home=self, forms={order: operand})
        array = self.arrays.get(operand)
        if array is not None and item.quantization is None:
            found.array = array.transpose(inverse(order)) if layout else array
        return self._kept(found)

    def _kept(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def local(self, value: Value) -> Value:
        """*value* in this subgraph. A value of an outer graph becomes an input here."""
        if value.home is self or value.is_constant or value.items is not None:
            return value
        known = self.captured.get(value)
        if known is None:
            if self.parent is None:
                raise InvalidOperation(
                    f"{value.name!r} is in a graph that does not enclose this one"
                )
            outer = self.parent.local(value)
            layout, operand = next(iter(outer.forms.items()))
            shape = self.parent.operands[operand].shape
            index = self.add(Operand(value.dtype, shape, Lifetime.SUBGRAPH_INPUT, value.name))
            known = replace(value, home=self, forms={layout: index}, recipe=None)
            self.captured[value] = self._kept(known)
        return known

    def get(self, value: Value, layout: Layout | None = None) -> int:
        """The operand of *value* in *layout* (None: ONNX's). Adds a TRANSPOSE if needed."""
        if value.items is not None:
            raise InvalidOperation("a sequence is given where a tensor is needed")
        if value.array is not None:
            return self._constant_form(value, layout)
        value = self.local(value)
        order = identity(value.rank or 0) if layout is None else layout
        found = value.forms.get(order)
        if found is None:
            have, operand = next(iter(value.forms.items()))
            places = inverse(have)
            permutation = [places[axis] for axis in order]
            found = self.emit("TRANSPOSE", [operand, self.integers(permutation)], [value.dtype])[0]
            value.forms[order] = found
        return found

    def _constant_form(self, value: Value, layout: Layout | None) -> int:
        array = value.array
        if array is None:
            raise InvalidOperation("no constant")
        order = identity(array.ndim) if layout is None else layout
        if value.home is not self and value.home is not None:
            return self.constant(array.transpose(order) if layout else array, value.name)
        found = value.forms.get(order)
        if found is None or value.home is None:
            plain = order == identity(array.ndim)
            found = self.constant(array if plain else array.transpose(order), value.name)
            if value.home is self:
                value.forms[order] = found
        return found

    def layout_of(self, values: Sequence[Value], rank: int) -> Layout:
        """The layout that most of *values* already have; ONNX's own if there is a tie."""
        plain = identity(rank)
        votes: dict[Layout, int] = {}
        for value in values:
            if value.is_constant or value.items is not None or value.rank != rank:
                continue
            for layout in self.local(value).forms:
                votes[layout] = votes.get(layout, 0) + 1
        if not votes:
            return plain
        return max(votes, key=lambda layout: (votes[layout], layout == plain))

    def ranked(self, value: Value, rank: int) -> Value:
        """*value* with dimensions of 1 before its own, up to *rank*."""
        have = value.rank
        if have is None or have >= rank:
            return value
        if value.array is not None:
            shape = (1,) * (rank - have) + value.array.shape
            return forms.constant(forms.reshaped(value.array, shape))
        shape, operand = value.shape or (), self.get(value)
        if None not in shape:
            new = (*[1] * (rank - have), *(d or 0 for d in shape))
            inputs = [operand, self.integers(new)]
            return self.value(self.one("RESHAPE", inputs, value.dtype, {"new_shape": new}))
        for _ in range(rank - have):
            first = self.constant(np.array(0, np.int32))
            operand = self.one("EXPAND_DIMS", [operand, first], value.dtype)
        return self.value(operand)

    def emit(
        self,
        kind: str,
        inputs: Sequence[int | None],
        outputs: Sequence[DType | Operand],
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> list[int]:
        """Appends an operation. Returns its outputs, with the shapes that the row infers."""
        row = OPERATIONS.get(kind)
        if row is None:
            raise UnknownOperator(f"{kind!r} is not an operation of the vocabulary")
        given = [self.omitted() if i is None else i for i in inputs]
        quantization = None
        if kind in MOVING:
            # Elements that an operation only moves have the quantisation of its first such input.
            moved = (self.operands[index] for index in given)
            types = STORED.intersection(o for o in outputs[:1] if isinstance(o, DType))
            quantization = next((o.quantization for o in moved if o.dtype in types), None)
        indexes = []
        for output in outputs:
            made = output
            if isinstance(made, DType):
                made = Operand(made, None, name=self.label, quantization=quantization)
            indexes.append(self.add(made))
        operation = Operation(
            kind, tuple(given), tuple(indexes), row.complete(attributes or {}),
            Origin(0, self.index),
        )  # fmt: skip
        context = InferenceContext(self, operation)
        try:
            shapes = row.infer(context)
            row.check(operation, self.operands)
            values = None if row.fold is None else row.fold(context)
        except ModelError as error:
            raise error.at(self.where) from None
        for index, shape in zip(indexes, shapes, strict=True):
            self.operands[index] = replace(self.operands[index], shape=shape)
        if values is not None:
            for index, value in zip(indexes, values, strict=True):
                if value.nbytes <= MAX_FOLDED_BYTES:
                    self.operands[index] = replace(self.operands[index], shape=value.shape)
        self.operations.append(operation)
        return indexes

    def one(
        self,
        kind: str,
        inputs: Sequence[int | None],
        dtype: DType,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> int:
        """The only output of an operation."""
        return self.emit(kind, inputs, [dtype], attributes)[0]

    def shape(self, index: int) -> Shape:
        return self.operands[index].shape

    def dtype(self, index: int) -> DType:
        return self.operands[index].dtype

    def operand(self, index: int) -> Operand:
        return self.operands[index]

    def known_value(self, index: int) -> NDArray | None:
        return self.arrays.get(index)

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        found = self.shared.subgraphs[subgraph]
        if found is None:
            raise InvalidOperation(f"subgraph {subgraph} is not finished")
        return [found.operands[o].shape for o in found.outputs]

    def mark(self) -> tuple[int, int, int, int, int]:
        return (
            len(self.operands), len(self.operations), len(self.values), len(self.captured),
            len(self.shared.subgraphs),
        )  # fmt: skip

    def back_to(self, mark: tuple[int, int, int, int, int]) -> None:
        """Drops every operation emitted since *mark*."""
        operands, operations, values, captured, subgraphs = mark
        del self.operands[operands:], self.operations[operations:], self.values[values:]
        del self.shared.subgraphs[subgraphs:]
        for value in list(self.captured)[captured:]:
            del self.captured[value]
        for value in self.values:
            value.forms = {k: i for k, i in value.forms.items() if i < operands}
        self.arrays = {i: a for i, a in self.arrays.items() if i < operands}
        if self._omitted is not None and self._omitted >= operands:
            self._omitted = None

    def finish(self, outputs: Sequence[int], inputs: Sequence[int] | None = None) -> Subgraph:
        """The subgraph with these outputs, after fusion and without dead operations."""
        every = self.inputs if inputs is None else list(inputs)
        needed = live(self.operations, outputs)
        whole = live(fused(self, needed, outputs), outputs)
        return packed(self.operands, whole, every, outputs, self.name)


def live(operations: Sequence[Operation], outputs: Iterable[int]) -> list[Operation]:
    """The operations that *outputs* need."""
    needed, kept = set(outputs), []
    for operation in reversed(operations):
        if needed.intersection(operation.outputs):
            kept.append(operation)
            needed.update(operation.inputs)
    kept.reverse()
    return kept


def packed(
    operands: Sequence[Operand],
    operations: Sequence[Operation],
    inputs: Sequence[int],
    outputs: Sequence[int],
    name: str,
) -> Subgraph:
    """A subgraph of these operations and their operands. All *inputs* remain."""
    needed = {*inputs, *outputs}
    for operation in operations:
        needed.update(operation.inputs, operation.outputs)
    order = {old: new for new, old in enumerate(sorted(needed))}
    ends = set(outputs)
    left = []
    for old in order:
        operand = operands[old]
        if old in ends and operand.lifetime is Lifetime.TEMPORARY_VARIABLE:
            operand = replace(operand, lifetime=Lifetime.SUBGRAPH_OUTPUT)
        left.append(operand)
    return Subgraph(
        tuple(left),
        tuple(
            replace(
                o,
                inputs=tuple(order[i] for i in o.inputs),
                outputs=tuple(order[i] for i in o.outputs),
            )
            for o in operations
        ),
        tuple(order[i] for i in inputs),
        tuple(order[i] for i in outputs),
        (),
        name,
    )
