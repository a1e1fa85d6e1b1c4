"""What an operator's lowering is given, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import numpy as np

from penstock.errors import ModelError, NotLowerable, ShapeMismatch
from penstock.ir.operation import AttributeValue
from penstock.ir.types import DType, NDArray, Shape
from penstock.loaders.onnx import operators
from penstock.loaders.onnx.graph import Graph, Node
from penstock.loaders.onnx.tensors import Budget
from penstock.loaders.onnx.values import Layout, Value

if TYPE_CHECKING:
    from penstock.loaders.onnx.emitter import Emitter

Lower: TypeAlias = "Callable[[Call], Value | Sequence[Value]]"


class ModelLowering(Protocol):
    """What all graphs of one model share while they are lowered: `supposing` counts the branches
    being tried.
    """

    budget: Budget
    supposing: int


class GraphBody(Protocol):
    """One graph while it is lowered, as its operators see it (`lowering.Body`)."""

    emitter: Emitter

    @property
    def lowering(self) -> ModelLowering:
        """What it shares with the model's other graphs."""
        ...

    def inside(self, graph: Graph, emitter: Emitter) -> Self:
        """The body of a *graph* within this one, lowered into *emitter*."""
        ...

    def bind(self, name: str, value: Value) -> None:
        """Gives a value its name in the graph."""
        ...

    def run(self) -> list[Value]:
        """Lowers all nodes; the values of the graph's outputs."""
        ...

    def emit_if(
        self, node: Node, condition: Value, made: list[tuple[Emitter, list[Value]]]
    ) -> list[Value]:
        """The outputs of an IF over two filled branches."""
        ...


class Call:
    """One node with the values of its inputs, None for those left out."""

    def __init__(self, body: GraphBody, node: Node, inputs: Sequence[Value | None]) -> None:
        self.body, self.node, self.inputs = body, node, list(inputs)
        self.emitter: Emitter = body.emitter

    @property
    def version(self) -> int:
        return self.node.version

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Input *index*, which must be there."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.node.invalid(f"input {index} is missing")
        return value

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

    def dims(self, index: int) -> tuple[int | None, ...]:
        """Dimensions of input *index*, None where unknown."""
        return self.tensor(index).shape or ()

    def array(self, index: int) -> NDArray | None:
        """The value of input *index* where it is a constant."""
        return self.value(index).array if self.has(index) else None

    def constant(self, index: int, what: str) -> NDArray:
        """The value of input *index*, which must be a constant."""
        array = self.value(index).array
        if array is None:
            raise self.refuse(
                f"{what} (input {index}) is computed while running; only a constant is taken"
            )
        return array

    def integers(self, index: int, what: str) -> tuple[int, ...]:
        """The integers of input *index*, a constant."""
        array = self.constant(index, what)
        if array.dtype.kind not in "iu":
            raise self.node.invalid(f"{what} (input {index}) are {array.dtype}, not integers")
        return tuple(int(v) for v in array.reshape(-1).tolist())

    def axis(self, axis: int, rank: int) -> int:
        """*axis* counted from the front; `ShapeMismatch` where there is none such."""
        if not -rank <= axis < rank:
            raise ShapeMismatch(f"axis {axis} of a rank-{rank} input", where=self.node.where)
        return axis + rank if axis < 0 else axis

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        found = tuple(self.axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise ShapeMismatch(f"axes {tuple(axes)} name one twice", where=self.node.where)
        return found

    def refuse(self, reason: str) -> NotLowerable:
        return self.node.refuse(reason)

    def mismatch(self, reason: str) -> ShapeMismatch:
        return ShapeMismatch(reason, where=self.node.where)

    def get(self, value: Value | int, layout: Layout | None = None) -> int:
        """The operand of a value or of input number *value*."""
        found = self.value(value) if isinstance(value, int) else value
        return self.emitter.get(found, layout)

    def emit(
        self,
        kind: str,
        inputs: Sequence[int | None],
        dtype: DType,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> int:
        return self.emitter.one(kind, inputs, dtype, attributes)

    def scalar(self, number: float | bool, dtype: DType) -> int:
        """A constant scalar operand."""
        return self.emitter.constant(np.array(number).astype(dtype.numpy))

    def wrap(self, operand: int, layout: Layout | None = None) -> Value:
        return self.emitter.value(operand, layout)

    def shape(self, operand: int) -> Shape:
        return self.emitter.shape(operand)


class _Operators(Mapping[str, Lower]):
    """Lowerings by operator: its name, behind its domain and a dot outside ai.onnx."""

    def __init__(self) -> None:
        self._rows: dict[str, Lower] = {}
        self._loaded = False

    def register(self, key: str, lower: Lower) -> None:
        if key in self._rows:
            raise ValueError(f"{key} has a lowering already")
        self._rows[key] = lower

    def _load(self) -> dict[str, Lower]:
        if not self._loaded:
            self._loaded = True
            for module in iter_modules(operators.__path__):
                import_module(f"{operators.__name__}.{module.name}")
        return self._rows

    def __getitem__(self, key: str) -> Lower:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


OPERATORS: Final = _Operators()


def operator(*names: str, domain: str = "") -> Callable[[Lower], Lower]:
    """Registers the decorated lowering for operators of a domain."""

    def register(lower: Lower) -> Lower:
        for name in names:
            OPERATORS.register(f"{domain}.{name}" if domain else name, lower)
        return lower

    return register


def located(error: ModelError, where: str) -> ModelError:
    """*error* with a place, where it had none."""
    if error.where is not None:
        return error
    return error.at(where)
