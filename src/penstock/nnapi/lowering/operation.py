"""`OperationLowering`: one NNAPI operation, its arguments, and the IR operations it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from penstock import errors
from penstock.ir import AttributeValue, DType, NDArray, Operand, Quantization
from penstock.ir.subgraph import constant_array
from penstock.ir.types import Shape
from penstock.nnapi.description import AnyType, NnapiOperand, NnapiOperation
from penstock.nnapi.lowering.graph import Scope, SubgraphBuilder, ValueType, show
from penstock.nnapi.lowering.validation import ir_operand, value_type

if TYPE_CHECKING:
    from penstock.nnapi.lowering.forms import Match

ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6")
"""Fused activations by code (NNAPI section 1.1)."""

PADDINGS: Final[Mapping[int, Literal["SAME", "VALID"]]] = {1: "SAME", 2: "VALID"}
"""Implicit padding schemes by code."""

SCALARS: Final = frozenset({"i", "b", "f", "h", "real"})
"""Kinds of a form's arguments that are scalars."""


class OperationLowering:
    """One NNAPI operation during lowering. Names are those of its form, numbers are IR operands."""

    def __init__(self, scope: Scope, operation: NnapiOperation, match: Match) -> None:
        self._scope, self.operation, self.match = scope, operation, match
        self.graph: SubgraphBuilder = scope.graph
        self.type = operation.type
        self.feature_level = scope.feature_level
        self._bound: set[int] = set()

    @property
    def types(self) -> Mapping[str, AnyType]:
        """The operand types of the form's variables."""
        return self.match.types

    def given(self, name: str) -> bool:
        """Whether the argument is given and not omitted."""
        place = self.match.inputs.get(name)
        return place is not None and not self._scope.is_omitted(self.operation.inputs[place])

    def operand(self, name: str) -> NnapiOperand:
        """The NNAPI operand of a given input."""
        return self._scope.operand(self.operation.inputs[self.match.inputs[name]])

    def tensor(self, name: str) -> int:
        """The IR operand of an input, which for an omitted input represents the omission."""
        if not self.given(name):
            return self.graph.omitted()
        return self._scope.value(self.operation.inputs[self.match.inputs[name]])

    def named_tensors(self, names: Iterable[str], prefix: str = "") -> list[int]:
        """The IR operands of several inputs."""
        return [self.tensor(f"{prefix}{name}") for name in names]

    def tensors(self, name: str) -> list[int]:
        """The IR operands of a repeated argument."""
        first = self.match.inputs.get(name)
        if first is None:
            return []
        given = self.operation.inputs[first : first + self.match.repeats]
        return [
            self.graph.omitted() if self._scope.is_omitted(i) else self._scope.value(i)
            for i in given
        ]

    def arguments(self, name: str) -> list[NnapiOperand]:
        """The NNAPI operands of a repeated argument."""
        first = self.match.inputs.get(name, 0)
        count = self.match.repeats
        return [self._scope.operand(i) for i in self.operation.inputs[first : first + count]]

    def constant(self, name: str) -> NDArray | None:
        """The value of an input if it is known before the run."""
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

    def _scalar(self, name: str, default: float | None = None) -> float:
        if default is not None and not self.given(name):
            return default
        operand = self.operand(name)
        if not operand.lifetime.is_constant:
            raise errors.NotLowerable(f"{name} of {self.type} is known only when the model runs")
        value = constant_array(self._scope.pools, ir_operand(operand)).reshape(-1)[0]
        number: float = value.item()
        return number

    def positive(self, name: str, default: int | None = None) -> int:
        """An INT32 scalar that must be above 0."""
        value = self.integer(name, default)
        self._require_positive(name, value)
        return value

    def _require_positive(self, name: str, value: float) -> None:
        if not value > 0:
            raise errors.InvalidAttribute(f"{name} of {self.type} must be above 0, not {value}")

    def not_negative(self, name: str) -> float:
        """A real scalar that must be at least 0."""
        value = self.real(name)
        if not value >= 0:
            raise errors.InvalidAttribute(
                f"{name} of {self.type} is {value}, and must not be below 0"
            )
        return value

    def activation(self, name: str = "activation") -> str:
        """The fused activation function of a fuse code."""
        code = self.integer(name)
        if not 0 <= code < len(ACTIVATIONS):
            raise errors.InvalidAttribute(f"fuse code {code} of {self.type} is not in [0, 3]")
        return ACTIVATIONS[code]

    def padding(self, name: str = "padding") -> Literal["SAME", "VALID"]:
        """The implicit padding scheme of its code."""
        code = self.integer(name)
        if code not in PADDINGS:
            raise errors.InvalidAttribute(
                f"padding scheme {code} of {self.type} is neither 1 (SAME) nor 2 (VALID)"
            )
        return PADDINGS[code]

    @property
    def layout(self) -> str:
        """The layout of images, by the argument `nchw`."""
        return "NCHW" if self.flag("nchw") else "NHWC"

    def axis(self, axis: int, rank: int | None, *, negative: bool = True) -> int:
        """*axis* counted from the front; *axis* itself for an unknown *rank*.

        Raises `InvalidAttribute` outside [-rank, rank), and below 0 unless *negative*.
        """
        if rank is None:
            return axis
        if not (-rank if negative else 0) <= axis < rank:
            raise errors.InvalidAttribute(
                f"axis {axis} of {self.type} for an operand of rank {rank}"
            )
        return axis % rank

    def shape(self, index: int) -> Shape:
        return self.graph.operands[index].shape

    def shape_of(self, name: str) -> Shape:
        """The shape of an input."""
        return self.shape(self.tensor(name))

    def dimension(self, index: int, axis: int) -> int | None:
        """One dimension of an operand; None if it is unknown."""
        shape = self.shape(index)
        return None if shape is None else shape[axis]

    def rank(self, index: int) -> int | None:
        shape = self.shape(index)
        return None if shape is None else len(shape)

    def known_rank(self, index: int) -> int:
        """The rank of an operand. Raises `NotLowerable` if it is only known at run time."""
        rank = self.rank(index)
        if rank is None:
            raise errors.NotLowerable(
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
        return self._scope.operand(self.operation.outputs[self.match.outputs[name]])

    def wants(self, name: str) -> bool:
        """Whether the operation has that output."""
        return name in self.match.outputs

    def results(self) -> list[NnapiOperand]:
        """The NNAPI operands of all outputs."""
        return [self._scope.operand(i) for i in self.operation.outputs]

    def _result(self, at: int | str) -> NnapiOperand:
        place = self.match.outputs[at] if isinstance(at, str) else at
        return self._scope.operand(self.operation.outputs[place])

    def result_type(self, at: int | str = 0) -> ValueType:
        """Element type and quantisation of an output, by its place or name."""
        return value_type(self._result(at))

    def declared(self, at: int | str = 0) -> Shape:
        """The shape that the model declares for an output."""
        return self._result(at).dimensions

    def result_types(self) -> list[ValueType]:
        return [self.result_type(i) for i in range(len(self.operation.outputs))]

    def interface(self, name: str) -> tuple[list[NnapiOperand], list[NnapiOperand]]:
        """Inputs and outputs of the subgraph that a SUBGRAPH argument names."""
        target = self._scope.referenced(self.operand(name).subgraph)
        return (
            [target.operands[i] for i in target.inputs],
            [target.operands[i] for i in target.outputs],
        )

    def subgraph(self, name: str, passed: int = 0) -> int:
        """The IR index of an argument's subgraph; its last *passed* inputs are outputs, too."""
        return self._scope.subgraph(self.operand(name).subgraph, passed)

    def require_takes(self, name: str, arguments: Sequence[NnapiOperand]) -> None:
        """Checks that subgraph inputs match the arguments' types, quantisation, dimensions."""
        self._require_alike(name, "takes", self.interface(name)[0], arguments)

    def require_gives(self, name: str, results: Sequence[NnapiOperand]) -> None:
        """The same check for the subgraph's first outputs."""
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

    def check(self, same: Sequence[str]) -> None:
        """Checks the form's ranks and signs, and one quantisation for all of *same*."""
        if same:
            self.require_same_quantization(*same)
        for argument in self.match.form.inputs:
            if not self.given(argument.name):
                continue
            if argument.ranks is not None:
                self.require_rank(argument.name, *argument.ranks)
            if argument.positive:
                self._require_positive(argument.name, self._scalar(argument.name))

    def require(self, condition: bool, reason: str) -> None:
        """Raises `InvalidOperation` with *reason* unless *condition* holds."""
        if not condition:
            raise errors.InvalidOperation(f"{self.type}: {reason}")

    def require_rank(self, name: str, low: int, high: int | None = None) -> None:
        """Checks the rank of an input, if known: *low*, or between *low* and *high*."""
        rank, high = self.rank(self.tensor(name)), low if high is None else high
        if rank is not None and not low <= rank <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            raise errors.ShapeMismatch(
                f"{name} of {self.type} has rank {rank}, where {wanted} is needed"
            )

    def require_numbers(self, name: str, of: str) -> None:
        """Checks that input *name* is a vector with a number for each dimension of *of*."""
        self.require_rank(name, 1)
        shape, rank = self.shape_of(name), self.rank(self.tensor(of))
        if shape is not None and rank is not None and shape[0] not in {None, rank}:
            raise errors.ShapeMismatch(
                f"{name} of {self.type} has {shape[0]} numbers for an operand of rank {rank}"
            )

    def require_same_quantization(self, *names: str) -> None:
        """Checks that inputs and outputs have one scale and zero point, if they have any."""
        found = [(n, o) for n in names for o in self._named(n)]
        if not found[0][1].type.is_quantized:
            return
        if len({(o.scale, o.zero_point) for _, o in found}) > 1:
            listed = ", ".join(f"{n} {o.scale:g} and {o.zero_point}" for n, o in found)
            raise errors.InvalidQuantization(
                f"{self.type} needs one scale and zero point: {listed}"
            )

    def require_quantization(self, name: str, scale: float, zero_point: int) -> None:
        """Checks that an operand has exactly this scale and zero point, if its type has any."""
        (operand,) = self._named(name)
        if not operand.type.is_quantized:
            return
        if np.float32(operand.scale) != np.float32(scale) or operand.zero_point != zero_point:
            raise errors.InvalidQuantization(
                f"{name} of {self.type} has scale {scale:g} and zero point {zero_point}, "
                f"not {operand.scale:g} and {operand.zero_point}"
            )

    def _named(self, name: str) -> list[NnapiOperand]:
        """The NNAPI operands of an argument or output; all operands of a repeated one."""
        written = name in self.match.outputs
        form, side = self.match.form, self.operation.outputs if written else self.operation.inputs
        first = (self.match.outputs if written else self.match.inputs)[name]
        argument = next(a for a in (form.outputs if written else form.inputs) if a.name == name)
        count = 1
        if argument.repeated:
            count = len(side) - first if written else self.match.repeats
        return [self._scope.operand(i) for i in side[first : first + count]]

    def emit(
        self,
        kind: str,
        inputs: Sequence[int],
        output: ValueType | None = None,
        /,
        **attributes: AttributeValue,
    ) -> int:
        """Appends an IR operation; returns its output, by default of the first input's type."""
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
        """As `emit`, for shape computations: the result is constant if its value is known."""
        return self.graph.folded(self.emit(kind, inputs, output, **attributes))

    def finish(self, kind: str, inputs: Sequence[int], /, **attributes: AttributeValue) -> None:
        """Appends the IR operation whose outputs are those of the NNAPI operation, in order."""
        results = self.emit_many(kind, inputs, self.result_types(), **attributes)
        for place, result in enumerate(results):
            self.bind(place, result)

    def pass_through(self, kind: str = "", /, **changed: AttributeValue) -> None:
        """Finishes with the IR operation *kind*, by default of the same name.

        The form's tensors in order are its inputs; the scalars are its attributes, except those in
        *changed*. An `activation` becomes the fused one, `nchw` the data layout.
        """
        inputs: list[int] = []
        attributes: dict[str, AttributeValue] = {}
        for argument in self.match.form.inputs:
            name = argument.name
            if argument.kind not in SCALARS:
                inputs.append(self.tensor(name))
            elif name == "activation":
                attributes["fused_activation_function"] = self.activation()
            elif name == "nchw":
                attributes["data_layout"] = self.layout
            elif name not in changed:
                attributes[name] = self._scalar(name)
        self.finish(kind or self.type, inputs, **attributes, **changed)

    def bind(self, at: int | str, result: int) -> None:
        """Binds the IR operand *result* to an output of the NNAPI operation, given by place or
        name.

        Raises `ShapeMismatch` if its shape is not the one that the model declares.
        """
        place = self.match.outputs[at] if isinstance(at, str) else at
        self._scope.bind(self.operation.outputs[place], result)
        self._bound.add(place)

    def bind_wanted(self, names: Sequence[str], results: Sequence[int]) -> None:
        """Binds *results* to the outputs of these names, except those that the operation lacks."""
        for name, result in zip(names, results, strict=True):
            if self.wants(name):
                self.bind(name, result)

    @property
    def complete(self) -> bool:
        """Whether every output is bound."""
        return len(self._bound) == len(self.operation.outputs)

    def integers(self, values: Sequence[int]) -> int:
        """A constant int32 vector; `ShapeOverflow` if a value needs more bits."""
        return self.graph.constant(self._int32(values).reshape(len(values)))

    def table(self, rows: Sequence[tuple[int, int]]) -> int:
        """A constant int32 matrix of two columns; `ShapeOverflow` if a value needs more bits."""
        return self.graph.constant(self._int32(rows).reshape(len(rows), 2))

    def _int32(self, values: Sequence[int] | Sequence[tuple[int, int]]) -> NDArray:
        try:
            return np.array(values, np.int32)
        except OverflowError as error:
            raise errors.ShapeOverflow(
                f"{self.type} needs sizes beyond 32 bits: {values}"
            ) from error

    def number(self, value: float, like: int) -> int:
        """A constant scalar of the element type of *like* (not quantised)."""
        return self.graph.constant(np.array(value, self.dtype(like).numpy))

    def sizes(self, index: int, first: int, last: int) -> int:
        """The dimensions *first* to *last* (excluded) as an int32 vector, constant if known."""
        shape = self.shape(index)
        known = None if shape is None else shape[first:last]
        if known is not None and None not in known:
            return self.integers([d or 0 for d in known])
        whole = self.emit("SHAPE", [index], (DType.INT32, None), out_type="INT32")
        return self.emit("STRIDED_SLICE", [whole, *map(self.integers, ((first,), (last,), (1,)))])

    def requantized(self, index: int, kind: ValueType) -> int:
        """Quantised values with another scale and zero point; others unchanged."""
        if self.value_type(index) == kind or kind[1] is None:
            return index
        return self.emit("QUANTIZE", [index], kind)

    def cast(self, index: int, dtype: DType) -> int:
        """The values as another plain type."""
        if self.dtype(index) is dtype:
            return index
        return self.emit("CAST", [index], (dtype, None))

    def transpose(self, index: int, order: Sequence[int]) -> int:
        """The axes in another order; a constant stays constant."""
        if list(order) == list(range(len(order))):
            return index
        value = self.graph.value(index) if self.ir(index).is_constant else None
        if value is None:
            return self.emit("TRANSPOSE", [index, self.integers(order)])
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

    def reshape(self, index: int, shape: Sequence[int]) -> int:
        """The elements in another shape, one dimension of which may be -1."""
        return self.emit("RESHAPE", [index, self.integers(shape)], new_shape=tuple(shape))
