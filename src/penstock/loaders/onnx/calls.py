"""The interface that lowerings of operators use, and the table of lowerings.

A lowering gets a `Call`: a node and the values of its inputs. It computes with `Tensor`s, operands
of the subgraph under construction. Arithmetic on them appends operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, Self

import numpy as np

from penstock.errors import NotLowerable, ShapeMismatch
from penstock.ir.operand import Operand
from penstock.ir.operation import AttributeValue
from penstock.ir.types import DType, NDArray, Shape, is_static, static_shape
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.engine import Budget
from penstock.loaders.onnx.graph import Graph, Node
from penstock.loaders.onnx.values import Layout, Value, identity


class GraphBody(Protocol):
    """One graph while it is lowered (`lowering.Body`), as the lowerings of operators see it."""

    emitter: Emitter
    budget: Budget

    @property
    def supposes(self) -> bool:
        """Whether a branch is lowered that the condition may not take."""
        ...

    def inside(self, graph: Graph, emitter: Emitter) -> Self:
        """The body of a *graph* within this one, lowered into *emitter*."""
        ...

    def bind(self, name: str, value: Value) -> None: ...

    def run(self) -> list[Value]: ...

    def emit_if(
        self, node: Node, condition: Value, made: list[tuple[Emitter, list[Value]]]
    ) -> list[Value]: ...


MAIN: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT64})
"""Plain types of TFLite's arithmetic. StableHLO operations compute the others."""

ARITHMETIC: Final[dict[str, tuple[str, frozenset[DType]]]] = {
    "ADD": ("STABLEHLO_ADD", MAIN),
    "SUB": ("STABLEHLO_SUBTRACT", MAIN),
    "MUL": ("STABLEHLO_MULTIPLY", MAIN),
    "DIV": ("STABLEHLO_DIVIDE", MAIN - {DType.INT64}),
    "POW": ("STABLEHLO_POWER", MAIN - {DType.INT64}),
    "MAXIMUM": ("STABLEHLO_MAXIMUM", MAIN),
    "MINIMUM": ("STABLEHLO_MINIMUM", MAIN),
}
"""The StableHLO operation for each function of two operands, and the types of TFLite's own."""

COMPARED: Final = MAIN | {DType.BFLOAT16, DType.INT16}
DIRECTIONS: Final = {
    "EQUAL": "EQ", "NOT_EQUAL": "NE", "GREATER": "GT", "GREATER_EQUAL": "GE", "LESS": "LT",
    "LESS_EQUAL": "LE",
}  # fmt: skip
FAR: Final = 2**31 - 1
"""The end of a slice without an end."""


def _combining(kind: str) -> Callable[[Tensor, Tensor | float], Tensor]:
    return lambda self, other: self.combine(kind, other)


def _comparing(kind: str) -> Callable[[Tensor, Tensor | float], Tensor]:
    return lambda self, other: self.compare(kind, other)


class Tensor:
    """An operand of the subgraph under construction. Numbers in arithmetic become constants."""

    __slots__ = ("call", "index")

    def __init__(self, call: Call, index: int) -> None:
        self.call, self.index = call, index

    @property
    def dtype(self) -> DType:
        return self.call.emitter.dtype(self.index)

    @property
    def shape(self) -> Shape:
        return self.call.emitter.shape(self.index)

    @property
    def dims(self) -> tuple[int | None, ...]:
        return self.shape or ()

    def value(self, layout: Layout | None = None) -> Value:
        """The value of this operand, whose dimensions are in *layout*."""
        return self.call.emitter.value(self.index, layout)

    def like(self, other: Tensor | float) -> Tensor:
        """*other* as an operand: a number becomes a constant of this type."""
        return other if isinstance(other, Tensor) else self.call.scalar(other, self.dtype)

    def combine(self, kind: str, other: Tensor | float) -> Tensor:
        """A function of two broadcast operands: TFLite's operation, else StableHLO's."""
        call, b, dtype = self.call, self.like(other), self.dtype
        if dtype is not b.dtype:
            raise call.node.invalid(f"operands of two types, {dtype.value} and {b.dtype.value}")
        call.require_numbers(dtype)
        stable, plain = ARITHMETIC[kind]
        if dtype in plain:
            return call.emit(kind, [self, b])
        return call.emit(stable, call.broadcast([self, b]))

    __add__, __sub__ = _combining("ADD"), _combining("SUB")
    __mul__, __truediv__ = _combining("MUL"), _combining("DIV")
    __pow__ = _combining("POW")
    maximum, minimum = _combining("MAXIMUM"), _combining("MINIMUM")

    def __rsub__(self, other: float) -> Tensor:
        return self.like(other) - self

    def __rtruediv__(self, other: float) -> Tensor:
        return self.like(other) / self

    def __neg__(self) -> Tensor:
        return self.fn("NEG")

    def __abs__(self) -> Tensor:
        return self.fn("ABS")

    def compare(self, kind: str, other: Tensor | float) -> Tensor:
        """A comparison of two broadcast operands."""
        call, b, dtype = self.call, self.like(other), self.dtype
        if dtype is not b.dtype:
            raise call.node.invalid("operands of two types are compared")
        texts = kind in {"EQUAL", "NOT_EQUAL"} and dtype in {DType.BOOL, DType.STRING}
        if dtype in COMPARED or texts:
            return call.emit(kind, [self, b], DType.BOOL)
        return call.emit(
            "STABLEHLO_COMPARE", call.broadcast([self, b]), DType.BOOL,
            comparison_direction=f"STABLEHLO_COMPARISON_DIRECTION_{DIRECTIONS[kind]}",
            compare_type="STABLEHLO_COMPARISON_TYPE_NOTYPE",
        )  # fmt: skip

    equals = _comparing("EQUAL")
    __lt__, __gt__ = _comparing("LESS"), _comparing("GREATER")

    def fn(self, kind: str, dtype: DType | None = None, /, **attributes: AttributeValue) -> Tensor:
        return self.call.emit(kind, [self], dtype, **attributes)

    def cast(self, dtype: DType) -> Tensor:
        have = self.dtype
        if have is dtype:
            return self
        return self.fn("CAST", dtype, in_data_type=have.name, out_data_type=dtype.name)

    def unquantized(self) -> Tensor:
        """The stored integers, without their quantisation."""
        if self.call.emitter.operands[self.index].quantization is None:
            return self
        name = self.dtype.name
        return self.fn("CAST", in_data_type=name, out_data_type=name)

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The operand in a shape with at most one dimension of -1."""
        target = self.call.vector(shape)
        return self.call.emit("RESHAPE", [self, target], new_shape=tuple(shape))

    def transposed(self, order: Sequence[int]) -> Tensor:
        if tuple(order) == identity(len(order)):
            return self
        return self.call.emit("TRANSPOSE", [self, self.call.vector(order)])

    def expand(self, axis: int) -> Tensor:
        """The operand with a dimension of 1 at *axis*."""
        return self.call.emit("EXPAND_DIMS", [self, self.call.place(axis)])

    def squeeze(self, *axes: int) -> Tensor:
        return self.fn("SQUEEZE", squeeze_dims=axes)

    def sizes(self) -> Tensor:
        """The dimensions as an int64 vector."""
        return self.fn("SHAPE", DType.INT64, out_type="INT64")

    def part(self, begin: Sequence[int], size: Sequence[int]) -> Tensor:
        """*size* elements from *begin* on in each dimension; a size of -1 extends to the end."""
        return self.call.emit("SLICE", [self, self.call.vector(begin), self.call.vector(size)])

    def slice(self, axis: int, start: int, end: int = FAR) -> Tensor:
        """`x[..., start:end, ...]` with Python's meaning of bounds."""
        rank = len(self.dims)
        begin, stop, strides = [0] * rank, [0] * rank, [1] * rank
        begin[axis] = start
        mask = ((1 << rank) - 1) & ~(1 << axis)
        end_mask = mask
        if end >= FAR or end < -(2**30):
            end_mask |= 1 << axis
        else:
            stop[axis] = end
        vectors = [self.call.vector(v) for v in (begin, stop, strides)]
        return self.call.emit("STRIDED_SLICE", [self, *vectors], begin_mask=mask, end_mask=end_mask)

    def pad(self, pads: Sequence[tuple[int, int]], value: NDArray | float = 0) -> Tensor:
        """The operand with a constant before and after each dimension. Negative pads crop."""
        x = self
        for axis, (before, after) in enumerate(pads):
            if before < 0 or after < 0:
                x = x.slice(axis, max(-before, 0), after if after < 0 else FAR)
        pads = [(max(b, 0), max(a, 0)) for b, a in pads]
        if not any(b or a for b, a in pads):
            return x
        paddings = self.call.literal(np.array(pads, np.int32).reshape(-1, 2))
        filling = np.asarray(value).astype(self.dtype.numpy).reshape(())
        if not filling:
            return self.call.emit("PAD", [x, paddings])
        return self.call.emit("PADV2", [x, paddings, self.call.literal(filling)])

    def repeated(self, shape: Tensor) -> Tensor:
        return self.call.emit("BROADCAST_TO", [self, shape])

    def gather(self, places: Tensor, axis: int | None = None) -> Tensor:
        attributes = {} if axis is None else {"axis": axis}
        return self.call.emit("GATHER", [self, places], **attributes)

    def best(self, kind: str, axis: int) -> Tensor:
        """The index of the first largest (ARG_MAX) or smallest (ARG_MIN) element along *axis*."""
        inputs = [self, self.call.place(axis)]
        return self.call.emit(kind, inputs, DType.INT64, output_type="INT64")

    def reduced(self, kind: str, axes: Sequence[int], keep: bool = False) -> Tensor:
        """A reduction along *axes*. With *keep* they remain as dimensions of 1."""
        return self.call.emit(kind, [self, self.call.vector(axes)], keep_dims=keep)


class Call:
    """One node with the values of its inputs; None for omitted inputs."""

    def __init__(
        self,
        body: GraphBody,
        node: Node,
        inputs: Sequence[Value | None],
        emitter: Emitter | None = None,
    ) -> None:
        self.body, self.node, self.inputs = body, node, list(inputs)
        self.emitter: Emitter = emitter or body.emitter

    def within(self, emitter: Emitter) -> Call:
        """The same call with another *emitter*, which receives its operations."""
        return Call(self.body, self.node, self.inputs, emitter)

    @property
    def version(self) -> int:
        return self.node.version

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Input *index*. Raises an error if it is omitted."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.node.invalid(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Input *index*; None if it is omitted."""
        return self.value(index) if self.has(index) else None

    def tensor(self, index: int) -> Value:
        """Input *index* as a tensor of known rank."""
        value = self.value(index)
        if value.items is not None:
            raise self.node.invalid(f"input {index} is a sequence, where a tensor is needed")
        if value.shape is None:
            raise self.refuse(
                f"the rank of input {index} ({value.name!r}) is not known before running"
            )
        return value

    def array(self, index: int) -> NDArray | None:
        """The value of input *index* if it is a constant; otherwise None."""
        return self.value(index).array if self.has(index) else None

    def constant(self, index: int, what: str) -> NDArray:
        array = self.value(index).array
        if array is None:
            raise self.refuse(
                f"{what} (input {index}) is computed while running; only a constant is taken"
            )
        return array

    def integers(self, index: int, what: str) -> tuple[int, ...]:
        array = self.constant(index, what)
        if array.dtype.kind not in "iu":
            raise self.node.invalid(f"{what} (input {index}) are {array.dtype}, not integers")
        return tuple(int(v) for v in array.reshape(-1).tolist())

    def axis(self, axis: int, rank: int) -> int:
        """*axis* counted from the front. Raises `ShapeMismatch` if it is out of range."""
        if not -rank <= axis < rank:
            raise self.mismatch(f"axis {axis} of a rank-{rank} input")
        return axis + rank if axis < 0 else axis

    def own_axis(self, x: Value, default: int | None = 0) -> int:
        """The node's attribute `axis`, counted from the front of *x*."""
        return self.axis(self.node.integer("axis", default), x.rank or 0)

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        found = tuple(self.axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise self.mismatch(f"axes {tuple(axes)} name one twice")
        return found

    def refuse(self, reason: str) -> NotLowerable:
        return self.node.refuse(reason)

    def mismatch(self, reason: str) -> ShapeMismatch:
        return ShapeMismatch(reason, where=self.node.where)

    def charge(self, nbytes: int) -> None:
        """Charges *nbytes* of a computed constant to the model's budget. Raises `LimitExceeded`."""
        self.body.budget.take(nbytes, self.node.where)

    def require_numbers(self, dtype: DType) -> None:
        if dtype is DType.STRING:
            raise self.refuse("computed for numbers only, not for strings")

    def get(self, value: Value | int, layout: Layout | None = None) -> Tensor:
        """The operand of a value, or of input number *value*."""
        found = self.value(value) if isinstance(value, int) else value
        return Tensor(self, self.emitter.get(found, layout))

    def stored(self, value: Value) -> tuple[Tensor, Layout]:
        """The operand of *value* in a layout that it already has, and that layout."""
        layout = self.emitter.layout_of([value], value.rank or 0)
        return self.get(value, layout), layout

    def emit(
        self,
        kind: str,
        inputs: Sequence[Tensor | None],
        dtype: DType | None = None,
        /,
        **attributes: AttributeValue,
    ) -> Tensor:
        """Appends an operation of one output, by default of the first input's type."""
        if dtype is None:
            dtype = self.emitter.dtype(_indexes(inputs)[0] or 0)
        return self.emit_all(kind, inputs, [dtype], **attributes)[0]

    def emit_all(
        self,
        kind: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[DType | Operand],
        /,
        **attributes: AttributeValue,
    ) -> list[Tensor]:
        made = self.emitter.emit(kind, _indexes(inputs), outputs, attributes)
        return [Tensor(self, index) for index in made]

    def scalar(self, number: float | bool, dtype: DType) -> Tensor:
        return self.literal(np.array(number).astype(dtype.numpy))

    def place(self, number: int) -> Tensor:
        """A constant int32 scalar: an axis, a count or an index."""
        return self.literal(np.array(number, np.int32))

    def vector(self, numbers: Iterable[int], dtype: type = np.int32) -> Tensor:
        return self.literal(np.array(list(numbers), dtype))

    def literal(self, array: NDArray) -> Tensor:
        return Tensor(self, self.emitter.constant(array))

    def select(self, condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
        """*a* if *condition* is true, otherwise *b*. One of them may be a number."""
        dtype = next(t.dtype for t in (a, b) if isinstance(t, Tensor))
        x, y = (t if isinstance(t, Tensor) else self.scalar(t, dtype) for t in (a, b))
        return self.emit("SELECT_V2", [condition, x, y], dtype)

    def aligned(self, values: Sequence[Value]) -> tuple[list[Tensor], Layout]:
        """Operands of *values* in one layout, with shapes that broadcast as in ONNX."""
        layout = identity(max((v.rank or 0 for v in values), default=0))
        if all(v.shape is not None for v in values):
            layout = self.emitter.layout_of(values, len(layout))
        if layout == identity(len(layout)):
            return [self.get(v) for v in values], layout
        return [
            self.get(self.emitter.ranked(v, len(layout)), layout) if v.rank else self.get(v)
            for v in values
        ], layout

    def pair(self, kind: str, a: Value, b: Value) -> Value:
        """A function of two values (`Tensor.combine`), in a layout that needs few transposes."""
        self.require_numbers(a.dtype)
        (x, y), layout = self.aligned([a, b])
        return x.combine(kind, y).value(layout)

    def unary(self, kind: str, x: Value, /, **attributes: AttributeValue) -> Value:
        """An operation on each element of a value, in the layout that the value has."""
        self.require_numbers(x.dtype)
        operand, layout = self.stored(x)
        return operand.fn(kind, **attributes).value(layout)

    def cast_value(self, value: Value, dtype: DType) -> Value:
        if value.dtype is dtype:
            return value
        operand, layout = self.stored(value)
        return operand.cast(dtype).value(layout)

    def broadcast(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """*operands* repeated to one shape."""
        shapes = [o.shape for o in operands]
        if all(s == shapes[0] and is_static(s) for s in shapes):
            return list(operands)
        if all(is_static(s) for s in shapes):
            try:
                target = np.broadcast_shapes(*(static_shape(s) or () for s in shapes))
            except ValueError:
                raise self.mismatch(f"shapes {shapes} do not broadcast") from None
            shape = self.vector(target, np.int64)
            return [o if o.shape == target else o.repeated(shape) for o in operands]
        sizes = [o.sizes() for o in operands]
        both = sizes[0]
        for size in sizes[1:]:
            both = self.emit("BROADCAST_ARGS", [both, size])
        return [o.repeated(both) for o in operands]

    def concatenate(self, operands: Sequence[Tensor], axis: int) -> Tensor:
        if len(operands) == 1:
            return operands[0]
        every = [self.emitter.operands[o.index].quantization for o in operands]
        if any(q != every[0] for q in every):
            operands = [o.unquantized() for o in operands]
        return self.emit("CONCATENATION", operands, axis=axis)

    def region(self, kind: str, dtype: DType) -> int:
        """A subgraph of two scalars that computes *kind*; "" returns the second scalar."""
        region = Emitter(self.emitter.shared)
        a, b = (region.get(region.input(dtype, ())) for _ in range(2))
        result = region.one(kind, [a, b], dtype) if kind else b
        return self.emitter.shared.add(region.finish([result]))


def _indexes(inputs: Sequence[Tensor | None]) -> list[int | None]:
    return [None if tensor is None else tensor.index for tensor in inputs]
