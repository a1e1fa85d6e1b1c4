"""`Arguments`: what one NNAPI operation is given and must give, and NNAPI's rules for it. | `Site`: one NNAPI operation in its place, and the IR operations that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

from penstock.errors import (
    InvalidAttribute,
    InvalidOperation,
    InvalidQuantization,
    NotLowerable,
    ShapeMismatch,
    ShapeOverflow,
)
from penstock.ir import AttributeValue, ConstantPool, DType, NDArray, Operand, Quantization
from penstock.ir.subgraph import constant_array
from penstock.ir.types import Shape
from penstock.nnapi.description import AnyType, NnapiOperand, NnapiOperation, NnapiSubgraph
from penstock.nnapi.lowering.graph import Graph, ValueType, show
from penstock.nnapi.lowering.validation import ir_operand, value_type

if TYPE_CHECKING:
    from penstock.nnapi.lowering.forms import Match


ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6")
"""Fuse codes by number (NNAPI section 1.1)."""

PADDINGS: Final[Mapping[int, Literal["SAME", "VALID"]]] = {1: "SAME", 2: "VALID"}
"""Implicit padding schemes by number."""


class Lowering(Protocol):
    """One NNAPI subgraph while it is lowered, as its operations see it
    (`lowering.model.SubgraphLowering`).
    """

    graph: Graph
    feature_level: int
    pools: tuple[ConstantPool, ...]

    def operand(self, index: int) -> NnapiOperand:
        """NNAPI operand *index*."""
        ...

    def is_omitted(self, index: int) -> bool:
        """Whether NNAPI operand *index* has no value."""
        ...

    def value(self, index: int) -> int:
        """The IR operand of NNAPI operand *index*."""
        ...

    def bind(self, index: int, result: int) -> None:
        """Makes IR operand *result* NNAPI operand *index*."""
        ...

    def referenced(self, index: int | None) -> NnapiSubgraph:
        """A referenced NNAPI subgraph."""
        ...

    def subgraph(self, index: int | None, passed: int) -> int:
        """The IR index of a referenced subgraph; its last *passed* inputs are outputs too."""
        ...


class Arguments:
    """The operands of one NNAPI operation, asked for by the names of its form.

    IR operands are the indexes of `graph`.
    """

    def __init__(self, lowering: Lowering, operation: NnapiOperation, match: Match) -> None:
        self._lowering, self.operation, self.match = lowering, operation, match
        self.graph: Graph = lowering.graph
        self.type = operation.type
        self.feature_level = lowering.feature_level

    @property
    def types(self) -> Mapping[str, AnyType]:
        """The operand types of the form's variables."""
        return self.match.types

    def given(self, name: str) -> bool:
        """Whether the argument is there and not omitted."""
        place = self.match.inputs.get(name)
        return place is not None and not self._lowering.is_omitted(self.operation.inputs[place])

    def operand(self, name: str) -> NnapiOperand:
        """The NNAPI operand of an input that is given."""
        return self._lowering.operand(self.operation.inputs[self.match.inputs[name]])

    def tensor(self, name: str) -> int:
        """The IR operand of an input, a scalar as one without dimensions; that of omission where it
        is not given.
        """
        if not self.given(name):
            return self.graph.omitted()
        return self._lowering.value(self.operation.inputs[self.match.inputs[name]])

    def tensors(self, name: str) -> list[int]:
        """The IR operands of a repeated argument."""
        first = self.match.inputs.get(name)
        if first is None:
            return []
        given = self.operation.inputs[first : first + self.match.repeats]
        return [
            self.graph.omitted() if self._lowering.is_omitted(i) else self._lowering.value(i)
            for i in given
        ]

    def constant(self, name: str) -> NDArray | None:
        """The value of an input where it is known before running."""
        return self.graph.value(self.tensor(name)) if self.given(name) else None

    def integer(self, name: str, default: int | None = None) -> int:
        """The value of an INT32 scalar."""
        return int(self._scalar(name, default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """The value of a BOOL scalar."""
        return bool(self._scalar(name, default))

    def real(self, name: str, default: float | None = None) -> float:
        """The value of a FLOAT32 or FLOAT16 scalar."""
        return float(self._scalar(name, default))

    def _scalar(self, name: str, default: float | None) -> float:
        if default is not None and not self.given(name):
            return default
        operand = self.operand(name)
        if not operand.lifetime.is_constant:
            raise NotLowerable(f"{name} of {self.type} is known only when the model runs")
        value = constant_array(self._lowering.pools, ir_operand(operand)).reshape(-1)[0]
        number: float = value.item()
        return number

    def positive(self, name: str, default: int | None = None) -> int:
        """An INT32 scalar that must be above 0."""
        value = self.integer(name, default)
        if value <= 0:
            raise InvalidAttribute(f"{name} of {self.type} must be above 0, not {value}")
        return value

    def activation(self, name: str = "activation") -> str:
        """The fused activation function of a fuse code."""
        code = self.integer(name)
        if not 0 <= code < len(ACTIVATIONS):
            raise InvalidAttribute(f"fuse code {code} of {self.type} is not in [0, 3]")
        return ACTIVATIONS[code]

    def padding(self, name: str = "padding") -> Literal["SAME", "VALID"]:
        """The implicit padding scheme of its code."""
        code = self.integer(name)
        if code not in PADDINGS:
            raise InvalidAttribute(
                f"padding scheme {code} of {self.type} is neither 1 (SAME) nor 2 (VALID)"
            )
        return PADDINGS[code]

    def axis(self, axis: int, rank: int, *, negative: bool = True) -> int:
        """*axis* counted from the front; `InvalidAttribute` outside [-rank, rank), or below 0
        unless *negative*.
        """
        if not (-rank if negative else 0) <= axis < rank:
            raise InvalidAttribute(f"axis {axis} of {self.type} for an operand of rank {rank}")
        return axis % rank

    def shape(self, index: int) -> Shape:
        return self.graph.operands[index].shape

    def rank(self, index: int) -> int | None:
        shape = self.shape(index)
        return None if shape is None else len(shape)

    def known_rank(self, index: int) -> int:
        """The rank of an operand; `NotLowerable` where only a run tells it."""
        rank = self.rank(index)
        if rank is None:
            raise NotLowerable(
                f"the rank of an input of {self.type} is known only when the model runs"
            )
        return rank

    def ir(self, index: int) -> Operand:
        return self.graph.operands[index]

    def dtype(self, index: int) -> DType:
        return self.graph.operands[index].dtype

    def value_type(self, index: int) -> ValueType:
        operand = self.graph.operands[index]
        return operand.dtype, operand.quantization

    def describe(self, index: int) -> str:
        """An IR operand's shape, for messages."""
        return show(self.shape(index))

    def output(self, name: str) -> NnapiOperand:
        """The NNAPI operand of an output."""
        return self._lowering.operand(self.operation.outputs[self.match.outputs[name]])

    def wants(self, name: str) -> bool:
        """Whether the operation has that output."""
        return name in self.match.outputs

    def results(self) -> list[NnapiOperand]:
        """The NNAPI operands of all outputs."""
        return [self._lowering.operand(i) for i in self.operation.outputs]

    def result_type(self, at: int | str = 0) -> ValueType:
        """Element type and quantisation of an output, by its place or name."""
        place = self.match.outputs[at] if isinstance(at, str) else at
        return value_type(self._lowering.operand(self.operation.outputs[place]))

    def declared(self, at: int | str = 0) -> Shape:
        """The shape that the model declares for an output."""
        place = self.match.outputs[at] if isinstance(at, str) else at
        return self._lowering.operand(self.operation.outputs[place]).dimensions

    def result_types(self) -> list[ValueType]:
        return [self.result_type(i) for i in range(len(self.operation.outputs))]

    def arguments(self, name: str) -> list[NnapiOperand]:
        """The NNAPI operands of a repeated argument."""
        first = self.match.inputs.get(name, 0)
        count = self.match.repeats
        return [self._lowering.operand(i) for i in self.operation.inputs[first : first + count]]

    def interface(self, name: str) -> tuple[list[NnapiOperand], list[NnapiOperand]]:
        """Inputs and outputs of the subgraph that a SUBGRAPH argument names."""
        target = self._lowering.referenced(self.operand(name).subgraph)
        return (
            [target.operands[i] for i in target.inputs],
            [target.operands[i] for i in target.outputs],
        )

    def require_takes(self, name: str, arguments: Sequence[NnapiOperand]) -> None:
        """The subgraph's inputs are of the arguments' types, quantisation and, where known,
        dimensions.
        """
        self._require_alike(name, "takes", self.interface(name)[0], arguments)

    def require_gives(self, name: str, results: Sequence[NnapiOperand]) -> None:
        """As `require_takes`, of the subgraph's first outputs."""
        self._require_alike(name, "gives", self.interface(name)[1][: len(results)], results)

    def _require_alike(
        self, name: str, verb: str, theirs: Sequence[NnapiOperand], ours: Sequence[NnapiOperand]
    ) -> None:
        self.require(
            len(theirs) == len(ours), f"{name} {verb} {len(theirs)} operands, not {len(ours)}"
        )
        for place, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            alike = a.type == b.type and (a.scale, a.zero_point) == (b.scale, b.zero_point)
            alike = alike and a.extension_data == b.extension_data
            if alike and a.dimensions is not None and b.dimensions is not None:
                alike = len(a.dimensions) == len(b.dimensions) and all(
                    x is None or y is None or x == y
                    for x, y in zip(a.dimensions, b.dimensions, strict=True)
                )
            self.require(alike, f"operand {place} that {name} {verb} is of another type")

    def require(self, condition: bool, reason: str) -> None:
        """Raises `InvalidOperation` with *reason* unless *condition* holds."""
        if not condition:
            raise InvalidOperation(f"{self.type}: {reason}")

    def require_rank(self, name: str, low: int, high: int | None = None) -> None:
        """The rank of an input, where it is known, is *low*, or between *low* and *high*."""
        rank, high = self.rank(self.tensor(name)), low if high is None else high
        if rank is not None and not low <= rank <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            raise ShapeMismatch(f"{name} of {self.type} has rank {rank}, where {wanted} is needed")

    def require_numbers(self, name: str, of: str) -> None:
        """An input is a vector of one number for each dimension of input *of*, where both are
        known.
        """
        self.require_rank(name, 1)
        shape, rank = self.shape(self.tensor(name)), self.rank(self.tensor(of))
        if shape is not None and rank is not None and shape[0] not in {None, rank}:
            raise ShapeMismatch(
                f"{name} of {self.type} has {shape[0]} numbers for an operand of rank {rank}"
            )

    def require_same_quantization(self, *names: str) -> None:
        """Inputs and outputs of these names have one scale and zero point, where their type has
        any.
        """
        found = [(n, o) for n in names for o in self._named(n)]
        if not found[0][1].type.is_quantized:
            return
        if len({(o.scale, o.zero_point) for _, o in found}) > 1:
            listed = ", ".join(f"{n} {o.scale:g} and {o.zero_point}" for n, o in found)
            raise InvalidQuantization(f"{self.type} needs one scale and zero point: {listed}")

    def require_quantization(self, name: str, scale: float, zero_point: int) -> None:
        """An operand has exactly this scale and zero point, if its type has any."""
        (operand,) = self._named(name)
        if not operand.type.is_quantized:
            return
        if np.float32(operand.scale) != np.float32(scale) or operand.zero_point != zero_point:
            raise InvalidQuantization(
                f"{name} of {self.type} has scale {scale:g} and zero point {zero_point}, "
                f"not {operand.scale:g} and {operand.zero_point}"
            )

    def _named(self, name: str) -> list[NnapiOperand]:
        """The NNAPI operands of an argument or output, all of a repeated one."""
        written = name in self.match.outputs
        form, side = self.match.form, self.operation.outputs if written else self.operation.inputs
        first = (self.match.outputs if written else self.match.inputs)[name]
        argument = next(a for a in (form.outputs if written else form.inputs) if a.name == name)
        count = 1
        if argument.repeated:
            count = len(side) - first if written else self.match.repeats
        return [self._lowering.operand(i) for i in side[first : first + count]]


class Site(Arguments):
    """One NNAPI operation being lowered: its arguments, and the IR operations it is written with."""

    def __init__(self, lowering: Lowering, operation: NnapiOperation, match: Match) -> None:
        super().__init__(lowering, operation, match)
        self._bound: set[int] = set()

    def emit(
        self,
        kind: str,
        inputs: Sequence[int],
        output: ValueType | None = None,
        /,
        **attributes: AttributeValue,
    ) -> int:
        """Appends an IR operation of one output (by default of the first input's type) and returns
        that.
        """
        wanted = self.value_type(inputs[0]) if output is None else output
        return self.emit_many(kind, inputs, [wanted], **attributes)[0]

    def emit_many(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[ValueType],
        /,
        **attributes: AttributeValue,
    ) -> list[int]:
        """Appends an IR operation and returns its outputs."""
        return self.graph.emit(kind, inputs, outputs, attributes)

    def compute(
        self,
        kind: str,
        inputs: Sequence[int],
        output: ValueType | None = None,
        /,
        **attributes: AttributeValue,
    ) -> int:
        """As `emit`, for shape computations: a constant where the value is known already."""
        return self.graph.folded(self.emit(kind, inputs, output, **attributes))

    def finish(self, kind: str, inputs: Sequence[int], /, **attributes: AttributeValue) -> None:
        """Appends the IR operation whose outputs are those of the NNAPI operation, in order."""
        results = self.emit_many(kind, inputs, self.result_types(), **attributes)
        for place, result in enumerate(results):
            self.bind(place, result)

    def bind(self, at: int | str, result: int) -> None:
        """An output of the NNAPI operation, by place or name, is the IR operand *result*.

        `ShapeMismatch` where its shape is not the one that the model declares.
        """
        place = self.match.outputs[at] if isinstance(at, str) else at
        self._lowering.bind(self.operation.outputs[place], result)
        self._bound.add(place)

    @property
    def complete(self) -> bool:
        """Whether every output is bound."""
        return len(self._bound) == len(self.operation.outputs)

    def subgraph(self, name: str, passed: int = 0) -> int:
        """The IR index of the subgraph that a SUBGRAPH argument names; its last *passed* inputs
        become further outputs.
        """
        return self._lowering.subgraph(self.operand(name).subgraph, passed)

    def integers(self, values: Sequence[int]) -> int:
        """A constant int32 vector; `ShapeOverflow` where a value needs more bits."""
        return self.graph.constant(self._int32(values).reshape(len(values)))

    def table(self, rows: Sequence[tuple[int, int]]) -> int:
        """A constant int32 matrix of two columns; `ShapeOverflow` where a value needs more bits."""
        return self.graph.constant(self._int32(rows).reshape(len(rows), 2))

    def _int32(self, values: Sequence[int] | Sequence[tuple[int, int]]) -> NDArray:
        try:
            return np.array(values, np.int32)
        except OverflowError as error:
            raise ShapeOverflow(f"{self.type} needs sizes beyond 32 bits: {values}") from error

    def number(self, value: float, like: int) -> int:
        """A constant scalar of the element type of *like* (not quantised)."""
        return self.graph.constant(np.array(value, self.dtype(like).numpy))

    def sizes(self, index: int, first: int, last: int) -> int:
        """The dimensions *first* to *last* (excluded) of an operand as an int32 vector: a constant
        where they are known.
        """
        shape = self.shape(index)
        known = None if shape is None else shape[first:last]
        if known is not None and None not in known:
            return self.integers([d or 0 for d in known])
        whole = self.emit("SHAPE", [index], (DType.INT32, None), out_type="INT32")
        return self.emit("STRIDED_SLICE", [whole, *map(self.integers, ((first,), (last,), (1,)))])

    def requantized(self, index: int, kind: ValueType) -> int:
        """Quantised values as those of another scale and zero point; others as they are."""
        if self.value_type(index) == kind or kind[1] is None:
            return index
        return self.emit("QUANTIZE", [index], kind)

    def cast(self, index: int, dtype: DType) -> int:
        """The values as another plain type."""
        if self.dtype(index) is dtype:
            return index
        return self.emit("CAST", [index], (dtype, None))

    def transpose(self, index: int, order: Sequence[int]) -> int:
        """The axes in another order; a constant stays one."""
        if list(order) == list(range(len(order))):
            return index
        value = self.graph.value(index) if self.ir(index).is_constant else None
        if value is not None:
            operand = self.ir(index)
            quantization = operand.quantization
            if quantization is not None and quantization.dimension is not None:
                quantization = Quantization(
                    quantization.scales,
                    quantization.zero_points,
                    list(order).index(quantization.dimension),
                )
            moved = np.ascontiguousarray(value.transpose(order))
            return self.graph.constant(moved, quantization, operand.dtype, operand.name)
        return self.emit("TRANSPOSE", [index, self.integers(order)])

    def reshape(self, index: int, shape: Sequence[int]) -> int:
        """The elements in another shape, one dimension of which may be -1."""
        return self.emit("RESHAPE", [index, self.integers(shape)], new_shape=tuple(shape))
