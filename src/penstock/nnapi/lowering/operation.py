"""`OperationLowering`: one NNAPI operation, its arguments, and the IR operations it becomes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import numpy as np
from msgspec.structs import replace

from penstock import errors
from penstock.ir import AttributeValue, DType, NDArray, Operand
from penstock.ir.model import show_shape
from penstock.ir.subgraph import constant_array
from penstock.ir.types import Shape
from penstock.nnapi.description import NnapiOperand, NnapiOperation, OperandType
from penstock.nnapi.lowering.forms import Argument, Match
from penstock.nnapi.lowering.graph import SubgraphLowering, ValueType
from penstock.nnapi.lowering.validation import ir_operand, value_type

Name = TypeVar("Name", bound=str)

ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6")
"""Fused activations by code (NNAPI section 1.1)."""

PADDINGS: Final[Mapping[int, Literal["SAME", "VALID"]]] = {1: "SAME", 2: "VALID"}
"""Implicit padding schemes by code."""

SCALARS: Final = frozenset({"i", "b", "f", "h", "real"})
"""Kinds of a form's arguments that are scalars."""


class OperationLowering:
    """One NNAPI operation during lowering. Texts name arguments and outputs of its form, numbers
    are IR operands.
    """

    def __init__(self, graph: SubgraphLowering, operation: NnapiOperation, match: Match) -> None:
        self.graph, self.operation, self.match = graph, operation, match
        self.type, self.types = operation.type, match.types
        self.feature_level = graph.whole.feature_level
        self._bound: set[int] = set()

    def given(self, name: str) -> bool:
        """Whether the argument is given and not omitted."""
        place = self.match.inputs.get(name)
        return place is not None and not self.graph.is_omitted(self.operation.inputs[place])

    def _indexes(self, name: str) -> tuple[int, ...]:
        """The NNAPI operands of an argument or output: all of a repeated one."""
        match = self.match
        if name in match.outputs:
            places, form, side = match.outputs, match.form.outputs, self.operation.outputs
            repeats = len(side)
        else:
            places, form, side = match.inputs, match.form.inputs, self.operation.inputs
            repeats = match.repeats
        if not any(a.repeated for a in form if a.name == name):
            return (side[places[name]],)
        first = places.get(name, 0)
        return side[first : first + repeats]

    def arguments(self, name: str) -> list[NnapiOperand]:
        """The NNAPI operands of an argument or output: all of a repeated one."""
        return [self.graph.source.operands[i] for i in self._indexes(name)]

    def operand(self, name: str) -> NnapiOperand:
        """The NNAPI operand of a given argument or an output."""
        return self.arguments(name)[0]

    def tensor(self, name: str) -> int:
        """The IR operand of an input, which for an omitted input represents the omission."""
        return self.tensors(name)[0] if self.given(name) else self.graph.omitted()

    def named_tensors(self, names: Iterable[str], prefix: str = "") -> list[int]:
        """The IR operands of several inputs."""
        return [self.tensor(f"{prefix}{name}") for name in names]

    def tensors(self, name: str) -> list[int]:
        """The IR operands of a repeated argument."""
        graph = self.graph
        return [
            graph.omitted() if graph.is_omitted(i) else graph.value(i) for i in self._indexes(name)
        ]

    def constant(self, name: str) -> NDArray | None:
        """The value of an input if it is known before the run."""
        return self.graph.known_value(self.tensor(name)) if self.given(name) else None

    def integer(self, name: str, default: int | None = None) -> int:
        """The value of an INT32 scalar."""
        return int(self._scalar(name, default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """The value of a BOOL scalar."""
        return bool(self._scalar(name, default))

    def real(self, name: str) -> float:
        """The value of a FLOAT32 or FLOAT16 scalar."""
        return float(self._scalar(name))

    def _scalar(self, name: str, default: float | None = None) -> float:
        if default is not None and not self.given(name):
            return default
        operand = self.operand(name)
        if not operand.lifetime.is_constant:
            raise errors.NotLowerable(f"{name} of {self.type} is known only when the model runs")
        pools = self.graph.whole.model.pools
        number: float = constant_array(pools, ir_operand(operand)).reshape(-1)[0].item()
        return number

    def require_bound(self, name: str, bound: str = ">0") -> None:
        """Checks that a scalar is above 0, or, for the *bound* `>=0`, at least 0."""
        value = self._scalar(name)
        if not (value > 0 if bound == ">0" else value >= 0):
            wanted = "above" if bound == ">0" else "at least"
            raise errors.InvalidAttribute(f"{name} of {self.type} must be {wanted} 0, not {value}")

    def choice(self, name: str, choices: Mapping[int, Name], what: str = "") -> Name:
        """The meaning of the code in an INT32 scalar; *what* it is in the error for others."""
        code = self.integer(name)
        if code not in choices:
            known = ", ".join(f"{number} ({meaning})" for number, meaning in choices.items())
            raise errors.InvalidAttribute(
                f"{what or name} {code} of {self.type} is none of {known}"
            )
        return choices[code]

    def activation(self) -> str:
        """The fused activation function of the argument `activation`."""
        return self.choice("activation", dict(enumerate(ACTIVATIONS)), "fuse code")

    @property
    def layout(self) -> str:
        """The layout of images, by the argument `nchw`."""
        return "NCHW" if self.flag("nchw", default=False) else "NHWC"

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

    def ir(self, at: int | str) -> Operand:
        """An IR operand, given by its number or as an input."""
        return self.graph.operands[self.tensor(at) if isinstance(at, str) else at]

    def shape(self, at: int | str) -> Shape:
        return self.ir(at).shape

    def dimension(self, at: int | str, axis: int) -> int | None:
        """One dimension of an operand; None if it is unknown."""
        shape = self.shape(at)
        return None if shape is None else shape[axis]

    def rank(self, at: int | str) -> int | None:
        shape = self.shape(at)
        return None if shape is None else len(shape)

    def known_rank(self, at: int | str) -> int:
        """The rank of an operand. Raises `NotLowerable` if it is only known at run time."""
        rank = self.rank(at)
        if rank is None:
            raise errors.NotLowerable(
                f"the rank of an input of {self.type} is known only when the model runs"
            )
        return rank

    def dtype(self, at: int | str) -> DType:
        return self.ir(at).dtype

    def value_type(self, at: int | str) -> ValueType:
        """Element type and quantisation of an IR operand."""
        operand = self.ir(at)
        return operand.dtype, operand.quantization

    def describe(self, at: int | str) -> str:
        """An IR operand's shape, for messages."""
        return show_shape(self.shape(at))

    def wants(self, name: str) -> bool:
        """Whether the operation has that output."""
        return name in self.match.outputs

    def results(self) -> list[NnapiOperand]:
        """The NNAPI operands of all outputs."""
        return [self.graph.source.operands[i] for i in self.operation.outputs]

    def result_type(self, name: str = "") -> ValueType:
        """Element type and quantisation of an output, by default the first."""
        return value_type(self.operand(name) if name else self.results()[0])

    def check(self, same: Sequence[str]) -> None:
        """Checks what the form says of its operands, and one quantisation for all of *same*."""
        if same:
            self.require_same_quantization(*same)
        form = self.match.form
        for argument in form.inputs:
            if self.given(argument.name):
                if argument.ranks is not None:
                    self.require_rank(argument.name, *argument.ranks)
                if argument.like:
                    self._require_numbers(argument.name, argument.like)
                if argument.bound:
                    self.require_bound(argument.name, argument.bound)
        for argument in (*form.inputs, *form.outputs):
            if argument.quantization is not None:
                self._require_quantization(argument, *argument.quantization)

    def require(self, condition: bool, reason: str) -> None:
        """Raises `InvalidOperation` with *reason* unless *condition* holds."""
        if not condition:
            raise errors.InvalidOperation(f"{self.type}: {reason}")

    def require_rank(self, name: str, low: int, high: int | None = None) -> None:
        """Checks the rank of an input, if known: *low*, or between *low* and *high*."""
        rank, high = self.rank(name), low if high is None else high
        if rank is not None and not low <= rank <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            raise errors.ShapeMismatch(
                f"{name} of {self.type} has rank {rank}, where {wanted} is needed"
            )

    def _require_numbers(self, name: str, of: str) -> None:
        """Checks that input *name* is a vector with a number for each dimension of *of*."""
        self.require_rank(name, 1)
        shape, rank = self.shape(name), self.rank(of)
        if shape is not None and rank is not None and shape[0] not in {None, rank}:
            raise errors.ShapeMismatch(
                f"{name} of {self.type} has {shape[0]} numbers for an operand of rank {rank}"
            )

    def require_same_quantization(self, *names: str) -> None:
        """Checks that inputs and outputs have one scale and zero point, if they have any."""
        found = [(n, o) for n in names for o in self.arguments(n)]
        if not found[0][1].type.is_quantized:
            return
        if len({(o.scale, o.zero_point) for _, o in found}) > 1:
            listed = ", ".join(f"{n} {o.scale:g} and {o.zero_point}" for n, o in found)
            raise errors.InvalidQuantization(
                f"{self.type} needs one scale and zero point: {listed}"
            )

    def _require_quantization(self, argument: Argument, scale: float, zero_point: int) -> None:
        """Checks that an operand has exactly this scale and zero point, if its type has any."""
        operand = self.operand(argument.name)
        if operand.type is OperandType.TENSOR_QUANT8_ASYMM_SIGNED:
            zero_point -= 128
        different = np.float32(operand.scale) != np.float32(scale)
        if operand.type.is_quantized and (different or operand.zero_point != zero_point):
            raise errors.InvalidQuantization(
                f"{argument.name} of {self.type} has scale {scale:g} and zero point {zero_point}, "
                f"not {operand.scale:g} and {operand.zero_point}"
            )

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
        types = [value_type(result) for result in self.results()]
        for place, result in enumerate(self.emit_many(kind, inputs, types, **attributes)):
            self.bind(place, result)

    def passed(
        self, changed: Mapping[str, AttributeValue], omitted: Collection[str] = ()
    ) -> tuple[list[int], dict[str, AttributeValue]]:
        """The form's tensors in order, and its scalars as attributes, except those in *changed*.

        An `activation` becomes the fused one, `nchw` the data layout. *omitted* are left out.
        """
        inputs: list[int] = []
        attributes: dict[str, AttributeValue] = {**changed}
        for argument in self.match.form.inputs:
            name = argument.name
            if argument.kind not in SCALARS:
                inputs.append(self.graph.omitted() if name in omitted else self.tensor(name))
            elif name == "activation":
                if "fused_activation_function" not in changed:
                    attributes["fused_activation_function"] = self.activation()
            elif name == "nchw":
                attributes["data_layout"] = self.layout
            elif name not in changed:
                attributes[name] = self._scalar(name)
        return inputs, attributes

    def pass_through(self, kind: str = "", /, **changed: AttributeValue) -> None:
        """Finishes with the IR operation *kind*, by default of the same name, as `passed` says."""
        inputs, attributes = self.passed(changed)
        self.finish(kind or self.type, inputs, **attributes)

    def bind(self, at: int | str, result: int) -> None:
        """Binds the IR operand *result* to an output of the NNAPI operation, given by place or
        name.

        Raises `ShapeMismatch` if its shape is not the one that the model declares.
        """
        place = self.match.outputs[at] if isinstance(at, str) else at
        self.graph.bind(self.operation.outputs[place], result)
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

    def integers(self, values: Sequence[int] | Sequence[tuple[int, int]]) -> int:
        """A constant int32 vector, or matrix of two columns. Raises `ShapeOverflow` if a value
        needs more bits.
        """
        try:
            return self.graph.constant(np.array(values, np.int32))
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
        return index if self.dtype(index) is dtype else self.emit("CAST", [index], (dtype, None))

    def transpose(self, index: int, order: Sequence[int]) -> int:
        """The axes in another order; a constant stays constant."""
        if list(order) == list(range(len(order))):
            return index
        operand = self.ir(index)
        value = self.graph.known_value(index) if operand.is_constant else None
        if value is None:
            return self.emit("TRANSPOSE", [index, self.integers(order)])
        quantization = operand.quantization
        if quantization is not None and quantization.dimension is not None:
            moved = list(order).index(quantization.dimension)
            quantization = replace(quantization, dimension=moved)
        content = np.ascontiguousarray(value.transpose(order))
        return self.graph.constant(content, quantization, operand.dtype, operand.name)

    def reshape(self, index: int, shape: Sequence[int]) -> int:
        """The elements in another shape, one dimension of which may be -1."""
        return self.emit("RESHAPE", [index, self.integers(shape)], new_shape=tuple(shape))
