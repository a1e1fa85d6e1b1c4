"""Models of one recurrent operation, as LiteRT and the reference driver run them, state carried
along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

import penstock
from penstock.export.tflite import write
from penstock.ir import DType, ModelBuilder, NDArray, Operand, Quantization
from penstock.ir.operand import OMITTED, Lifetime
from penstock.ir.operation import AttributeValue
from tests.support_litert import interpreter

Pair = Quantization | None


@dataclass(frozen=True, eq=False)
class Constant:
    """A parameter."""

    value: NDArray
    quantization: Pair = None


@dataclass(frozen=True)
class Tensor:
    """An input, a state or an output: each is fed, kept or made as its place says."""

    dtype: DType
    shape: tuple[int, ...]
    quantization: Pair = None


@dataclass(frozen=True)
class State(Tensor):
    """A variable tensor."""


Item = Constant | State | Tensor | None


@dataclass(frozen=True, eq=False)
class Case:
    """One operation: *inputs* in its order, *outputs* without the new states."""

    kind: str
    inputs: Sequence[Item]
    outputs: Sequence[Tensor]
    attributes: dict[str, AttributeValue] = field(default_factory=dict)

    def model(self) -> bytes:
        """The file of the model."""
        builder = ModelBuilder()
        indexes: list[int] = []
        states: list[tuple[int, State]] = []
        for position, item in enumerate(self.inputs):
            match item:
                case None:
                    indexes.append(builder.omitted())
                case Constant(value, quantization):
                    indexes.append(builder.constant(value, quantization=quantization))
                case State(dtype, shape, quantization):
                    name = f"state{position}"
                    operand = Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name, quantization)
                    indexes.append(builder.operand(operand))
                    states.append((indexes[-1], item))
                case Tensor(dtype, shape, quantization):
                    indexes.append(builder.input(dtype, shape, f"input{position}", quantization))
        made = [
            (t.dtype, t.shape, t.quantization) for t in (*self.outputs, *(s for _, s in states))
        ]
        results = builder.operation(self.kind, indexes, made, self.attributes)
        own = len(self.outputs)
        for (index, state), new in zip(states, results[own:], strict=True):
            variable = builder.variable(
                f"state{index}", state.dtype, state.shape, state.quantization, initial(state)
            )
            builder.state(variable, index, new)
        return write(builder.build(list(results[:own])))

    def operands(self, dtype: DType) -> list[Operand]:
        """The inputs as operands of type *dtype*, none of them constant."""
        return [
            OMITTED if shape is None else Operand(dtype, shape)
            for shape in (self._shape(item) for item in self.inputs)
        ]

    def quantized_operands(self) -> list[Operand]:
        """The inputs as operands of their own types, none of them constant."""
        found: list[Operand] = []
        for item in self.inputs:
            match item:
                case None:
                    found.append(OMITTED)
                case Constant(value, quantization):
                    dtype = DType(value.dtype.name)
                    found.append(Operand(dtype, value.shape, quantization=quantization))
                case Tensor(dtype, shape, quantization):
                    found.append(Operand(dtype, shape, quantization=quantization))
        return found

    def arrays(self, feed: Sequence[NDArray]) -> list[NDArray | None]:
        """What a kernel is given: parameters, *feed* in turn, and states where they begin."""
        fed = iter(feed)
        found: list[NDArray | None] = []
        for item in self.inputs:
            match item:
                case Constant(value, _):
                    found.append(value)
                case State(dtype, shape, _):
                    start = initial(item)
                    found.append(np.zeros(shape, dtype.numpy) if start is None else start)
                case Tensor():
                    found.append(next(fed))
                case None:
                    found.append(None)
        return found

    @staticmethod
    def _shape(item: Item) -> tuple[int, ...] | None:
        match item:
            case None:
                return None
            case Constant(value, _):
                return tuple(value.shape)
            case Tensor(_, shape, _):
                return shape

    def feeds(self, rng: np.random.Generator, runs: int, reach: float = 1.0) -> list[list[NDArray]]:
        """Random inputs for several runs: floats within *reach*, integers over their whole
        range.
        """
        return [
            [
                values(rng, item.dtype, item.shape, reach)
                for item in self.inputs
                if type(item) is Tensor
            ]
            for _ in range(runs)
        ]


def initial(state: State) -> NDArray | None:
    """Where TFLite's variable tensors begin: int8 ones at their zero point."""
    if state.dtype is not DType.INT8 or state.quantization is None:
        return None
    return np.full(state.shape, state.quantization.zero_point, np.int8)


def values(
    rng: np.random.Generator, dtype: DType, shape: Sequence[int], reach: float = 1.0
) -> NDArray:
    """Random values of a type: floats within *reach*, integers over their whole range."""
    if dtype.is_float:
        return rng.uniform(-reach, reach, shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def shape_of(operand: Operand) -> list[int]:
    """The shape of an operand that has no unknown dimensions."""
    return [d or 0 for d in operand.shape or ()]


def run_litert(model: bytes, feeds: Sequence[Sequence[NDArray]]) -> list[list[NDArray]]:
    """The outputs of successive runs of one interpreter with LiteRT's reference kernels."""
    runner = interpreter(model)
    runner.allocate_tensors()
    found: list[list[NDArray]] = []
    for feed in feeds:
        for detail, array in zip(runner.get_input_details(), feed, strict=True):
            runner.set_tensor(detail["index"], array)
        runner.invoke()
        found.append([np.array(runner.get_tensor(d["index"])) for d in runner.get_output_details()])
    return found


def run_reference(model: bytes, feeds: Sequence[Sequence[NDArray]]) -> list[list[NDArray]]:
    """The same with the reference driver."""
    with penstock.compile(penstock.load(model), devices=["reference"], cache=False) as net:
        return [list(net.run(list(feed))) for feed in feeds]


def compare(case: Case, feeds: Sequence[Sequence[NDArray]], tolerance: float = 2e-6) -> None:
    """Both give the same at every run: integers bit for bit, floats within *tolerance* of the
    largest.
    """
    model = case.model()
    for wanted, got in pairs(run_litert(model, feeds), run_reference(model, feeds)):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind == "f":
            largest = np.abs(wanted).max(initial=1e-30)
            np.testing.assert_allclose(got, wanted, 0, tolerance * largest)
        else:
            np.testing.assert_array_equal(got, wanted)


def pairs(a: list[list[NDArray]], b: list[list[NDArray]]) -> Iterator[tuple[NDArray, NDArray]]:
    for one, other in zip(a, b, strict=True):
        yield from zip(one, other, strict=True)
