"""`Site`: one NNAPI operation in its place, and the IR operations that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ShapeOverflow
from penstock.ir import AttributeValue, DType, NDArray, Quantization
from penstock.nnapi.description import NnapiOperation
from penstock.nnapi.lowering.arguments import Arguments, Lowering
from penstock.nnapi.lowering.graph import ValueType

if TYPE_CHECKING:
    from penstock.nnapi.lowering.forms import Match


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
