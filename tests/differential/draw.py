"""`Draw`: what the generators of random models draw from, and the model that they build.

A generator asks a `Draw` for element types, shapes, values and numbers, and adds one operation. The
model is not validated here: whether it is one is what Penstock and LiteRT are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from penstock.errors import ModelError
from penstock.export.tflite import write
from penstock.export.tflite.fields import TFLITE
from penstock.ir import DType, Model, NDArray, Operand, Operation, Quantization, infer_shapes
from penstock.ir.builder import ModelBuilder
from penstock.ir.operand import Lifetime, Origin
from penstock.ir.operation import Attributes, AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import NO_METADATA, ConstantPool
from penstock.ir.types import PACKED
from tests.differential.kinds import Kind, Stale, edges, give

T = TypeVar("T")

FIRST_VERSIONS: Final = {"BROADCAST_TO": 2}
"""Operators whose kernels do not know version 1."""

CLAMPS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6")
CONSTANT_SHARE: Final = 0.15
FAR: Final = ((-15, 15), (-6, 6), (-4, 2))
"""Powers of ten between which unusual scales lie."""

EIGHT_BITS: Final = frozenset({DType.INT8, DType.UINT8})


@dataclass(frozen=True, eq=False)
class Value:
    """An operand of the drawn model. *array* is its value if it is an input or a constant."""

    index: int
    dtype: DType
    shape: tuple[int, ...]
    quantization: Quantization | None = None
    array: NDArray | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A drawn model as a file, with the inputs of one run."""

    file: bytes
    inputs: tuple[NDArray, ...]
    listing: str
    kinds: frozenset[Kind] = frozenset()
    """The kinds that the model is of (`kinds.Kind`)."""
    stale: Stale | None = None


class UncheckedModel(Model, frozen=True):
    """A model that nobody has validated."""

    def __post_init__(self) -> None:
        """Leaves everything as it was given."""


@dataclass
class Draw:
    """Random choices, and the model they make.

    *types* are the element types that the sweep wants in a generator's slots; *quantized* says
    whether integers have a scale where that is a matter of choice (None: at random); *zeros*
    whether dimensions of zero occur. *reusable* are values of earlier operations that `value` may
    take instead of a new one. *kind* is what is to be unusual about the model, *kinds* what has
    been drawn of that.
    """

    rng: np.random.Generator
    types: tuple[DType, ...] | None = None
    quantized: bool | None = None
    zeros: bool = True
    reusable: list[Value] = field(default_factory=list)
    builder: ModelBuilder = field(default_factory=ModelBuilder)
    feeds: list[NDArray] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    kind: Kind | None = None
    kinds: set[Kind] = field(default_factory=set)
    stale: Stale | None = None

    # Choices.

    def has(self, kind: Kind) -> bool:
        """Whether the model is to be of *kind*; where it is, the caller draws something of that
        kind.
        """
        if self.kind is kind:
            self.kinds.add(kind)
        return self.kind is kind

    def integer(self, low: int, high: int) -> int:
        """An integer from *low* to *high*, both included."""
        return int(self.rng.integers(low, high + 1))

    def real(self, low: float, high: float) -> float:
        """A float32 value between the bounds."""
        return float(np.float32(self.rng.uniform(low, high)))

    def scale(self, low: float, high: float) -> float:
        """A scale between the bounds, or far from them where that is the model's kind."""
        if self.kind is Kind.SCALES and self.chance(0.5) and self.has(Kind.SCALES):
            return float(np.float32(10.0 ** self.rng.uniform(*self.pick(FAR))))
        return self.real(low, high)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def type(self, slot: int) -> DType:
        """The element type of a generator's slot."""
        if self.types is None:
            raise ValueError("this draw has no types")
        return self.types[slot]

    def activation(self, choices: Sequence[str] = CLAMPS) -> str:
        """A fused activation; half of the time none."""
        return "NONE" if self.chance(0.5) else self.pick(choices)

    # Shapes.

    def shape(self, low: int = 0, high: int = 4, most: int = 5) -> tuple[int, ...]:
        """A shape of a rank from *low* to *high*; now and then with a dimension of zero."""
        candidates = [v.shape for v in self.reusable if low <= v.rank <= high]
        if candidates and self.chance(0.7):
            return self.pick(candidates)
        shape = [self.integer(1, most) for _ in range(self.integer(low, high))]
        if shape and self.zeros and self.chance(0.03):
            shape[self.integer(0, len(shape) - 1)] = 0
        return tuple(shape)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Two shapes that broadcast to *shape* (or would, if LiteRT took the ranks)."""
        other = tuple(1 if self.chance(0.3) else d for d in shape)
        match self.integer(0, 5):
            case 0 | 1:
                pair = shape, shape
            case 2:
                pair = shape, other[self.integer(0, len(shape)) :]
            case 3:
                pair = other[self.integer(0, len(shape)) :], shape
            case 4:
                pair = shape, ()
            case _:
                pair = tuple(1 if a != b else a for a, b in zip(shape, other, strict=True)), other
        return pair if self.chance(0.5) else pair[::-1]

    def axis(self, rank: int) -> int:
        """An axis of an operand of *rank* dimensions, counted from either end."""
        return self.integer(-rank, rank - 1) if rank else 0

    # Quantisation.

    def has_scale(self, dtype: DType) -> bool:
        """Whether operands of *dtype* are quantised: 8 bits and less always, int16 often, others
        seldom.
        """
        if dtype in EIGHT_BITS | PACKED:
            return True
        if not dtype.is_integer:
            return False
        if self.quantized is not None:
            return self.quantized
        return self.chance(0.6 if dtype is DType.INT16 else 0.05)

    def quantization(
        self,
        dtype: DType,
        scale: float | None = None,
        zero_point: int | None = None,
        *,
        scaled: bool | None = None,
    ) -> Quantization | None:
        """A scale and zero point for *dtype*; None where it `has_scale` not (*scaled* decides
        that).
        """
        if scale is None and not (self.has_scale(dtype) if scaled is None else scaled):
            return None
        far = scale is None and self.kind is Kind.SCALES and self.chance(0.5)
        if far and self.has(Kind.SCALES):
            scale = 10.0 ** self.rng.uniform(*self.pick(((-30, 30), *FAR)))
        if scale is None:
            scale = float(np.exp(self.rng.uniform(np.log(4e-3), np.log(0.5))))
            if self.chance(0.1):
                scale = 2.0 ** self.integer(-9, 0)
        if zero_point is None:
            zero_point = 0
            if dtype in EIGHT_BITS and self.chance(0.7):
                zero_point = self.integer(*_limits(dtype))
        return Quantization((float(np.float32(scale)),), (zero_point,))

    def per_channel(
        self, dtype: DType, channels: int, dimension: int, least: float = 2e-3, most: float = 0.05
    ) -> Quantization:
        """One scale a channel, all zero points 0."""
        scales = np.exp(self.rng.uniform(np.log(least), np.log(most), channels))
        if channels == 1:
            return Quantization((float(np.float32(scales[0])),), (0,))
        return Quantization(tuple(float(np.float32(s)) for s in scales), (0,) * channels, dimension)

    # Values.

    def array(
        self,
        dtype: DType,
        shape: Sequence[int],
        low: float | None = None,
        high: float | None = None,
    ) -> NDArray:
        """Random values of a type: floats in [-4, 4], integers of 8 and 16 bits over their whole
        range, wider ones from -20 to 20, between *low* and *high* where those are given.
        """
        shape = tuple(shape)
        if dtype is DType.STRING:
            words = np.empty(int(np.prod(shape)), object)
            words[:] = [self.pick((b"", b"a", b"bc", b"\xc3\xa4", b"hello")) for _ in words]
            return words.reshape(shape)
        if dtype is DType.BOOL:
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype in {DType.COMPLEX64, DType.COMPLEX128}:
            parts = self.rng.uniform(-4, 4, (2, *shape))
            return np.asarray(parts[0] + 1j * parts[1]).astype(dtype.numpy)
        if dtype.is_float:
            bounds = -4.0 if low is None else low, 4.0 if high is None else high
            return (
                np.asarray(self.rng.uniform(*bounds, shape)).astype(np.float32).astype(dtype.numpy)
            )
        least, greatest = _limits(dtype)
        if (dtype.bits or 0) > 16:
            least, greatest = max(least, -20), min(greatest, 20)
        if low is not None:
            least = max(least, int(low))
        if high is not None:
            greatest = min(greatest, int(high))
        drawn = self.rng.integers(least, max(least, greatest) + 1, shape)
        return np.asarray(drawn).astype(np.int64).astype(dtype.numpy)

    def value(
        self,
        dtype: DType,
        shape: Sequence[int],
        quantization: Quantization | None = None,
        *,
        array: NDArray | None = None,
        low: float | None = None,
        high: float | None = None,
        constant: bool | None = None,
        static: bool = False,
    ) -> Value:
        """An operand with random values (or *array*'s): an input, now and then a constant, and in a
        model of several operations often an earlier result of that type and shape. A *static* input
        declares its whole shape.
        """
        shape = tuple(shape)
        if (
            array is None
            and not constant
            and (earlier := self._earlier(dtype, shape, quantization, low, high))
        ):
            return earlier
        value = self.array(dtype, shape, low, high) if array is None else array
        if self.kind is Kind.EDGES and array is None and low is None and high is None:
            value = edges(self, dtype, value)
        if dtype is DType.STRING and not shape:
            constant = True  # LiteRT's Python interface loses strings of rank 0
        if constant if constant is not None else self.chance(CONSTANT_SHARE):
            return self.constant(value, quantization, dtype)
        declared: tuple[int | None, ...] = shape
        if not static and self.chance(0.08):
            declared = tuple(None if self.chance(0.5) else d for d in shape)
        index = self.builder.input(dtype, declared, f"x{len(self.feeds)}", quantization)
        self.feeds.append(value)
        return Value(index, dtype, shape, quantization, value)

    def quantized_value(self, dtype: DType, shape: Sequence[int], **more: Any) -> Value:
        """`value` with a quantisation of its own."""
        return self.value(dtype, shape, self.quantization(dtype), **more)

    def constant(
        self, value: NDArray, quantization: Quantization | None = None, dtype: DType | None = None
    ) -> Value:
        kind = dtype or DType(value.dtype.name)
        index = self.builder.constant(value, "", quantization, kind)
        return Value(index, kind, value.shape, quantization, value)

    def integers(self, *values: Any, dtype: DType = DType.INT32) -> Value:
        """A vector of constants."""
        return self.constant(np.array(values, dtype.numpy), dtype=dtype)

    def scalar(self, value: float, dtype: DType = DType.INT32) -> Value:
        """A constant of rank 0."""
        return self.constant(np.array(value, dtype.numpy), dtype=dtype)

    def parameter(self, array: NDArray, constant: float = 0.85) -> Value:
        """What a shape depends on (axes, paddings, begins): a constant most of the time."""
        return self.value(
            DType(array.dtype.name), array.shape, array=array, constant=self.chance(constant)
        )

    # Operations.

    def output(
        self,
        dtype: DType,
        quantization: Quantization | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Operand:
        """An output, whose shape is inferred where that is possible and it is not given."""
        return Operand(dtype, shape, quantization=quantization)

    def operation(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Operand],
        **attributes: AttributeValue,
    ) -> list[int]:
        """Appends an operation: an operator name, or CUSTOM:<code> with `custom_options`."""
        indexes = [self.builder.operand(o) for o in outputs]
        given = tuple(self.builder.omitted() if v is None else v.index for v in inputs)
        name, _, code = kind.partition(":")
        if code:
            attributes["custom_code"] = code
        row = OPERATIONS[kind if code and kind in OPERATIONS else name]
        origin = None
        if name in FIRST_VERSIONS:
            number = TFLITE.number("BuiltinOperator", name)
            origin = Origin(0, 0, number, FIRST_VERSIONS[name])
        complete: Attributes = row.complete(attributes)
        self.builder._operations.append(Operation(name, given, tuple(indexes), complete, origin))
        self.results += [
            Value(i, o.dtype, (), o.quantization) for i, o in zip(indexes, outputs, strict=True)
        ]
        return indexes

    def finish(self, outputs: Sequence[int] | None = None) -> Drawn:
        """The file; its outputs are *outputs*, or all results."""
        model = self.model([v.index for v in self.results] if outputs is None else outputs)
        shaped = not self.chance(0.05)
        model = give(self, with_shapes(model) if shaped else model)
        if shaped and self.kind is Kind.EMPTY:
            model = with_shapes(model)
        kinds = frozenset(self.kinds)
        return Drawn(write(model), tuple(self.feeds), _listing(model), kinds, self.stale)

    def model(self, outputs: Sequence[int]) -> Model:
        """The model as it stands, not validated."""
        builder = self.builder
        pools = (ConstantPool(memoryview(bytes(builder._pool))),) if builder._pool else ()
        subgraphs = (builder.finish(outputs), *builder._referenced)
        return UncheckedModel(subgraphs, pools, tuple(builder._variables), {}, NO_METADATA)

    def _earlier(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        quantization: Quantization | None,
        low: float | None,
        high: float | None,
    ) -> Value | None:
        """An earlier value of that type and shape, quantised where this one is to be."""
        if low is not None or high is not None or not self.chance(0.8):
            return None
        fitting = [
            v
            for v in self.reusable
            if v.dtype is dtype
            and v.shape == shape
            and (v.quantization is None) == (quantization is None)
            and (v.quantization is None or not v.quantization.per_channel)
        ]
        return self.pick(fitting) if fitting else None


def with_shapes(model: Model) -> Model:
    """*model* with the shapes that the operation table infers, where it can."""
    try:
        return infer_shapes(model)
    except ModelError:
        return model


def _limits(dtype: DType) -> tuple[int, int]:
    bits = dtype.bits or 8
    if dtype.value.startswith("u"):
        return 0, min(2**bits, 2**63) - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _listing(model: Model) -> str:
    """The operations with the types and shapes of their operands, for whoever reads of a
    difference.
    """
    operands = model.operands

    def name(index: int) -> str:
        o = operands[index]
        if o.lifetime is Lifetime.NO_VALUE:
            return "-"
        shape = "?" if o.shape is None else "x".join("?" if d is None else str(d) for d in o.shape)
        q = o.quantization
        scale = "" if q is None else f" {q.scale:.6g}@{q.zero_point}" + "..." * q.per_channel
        return f"%{index}:{o.dtype.value}[{shape}]{scale}" + "c" * o.is_constant

    lines = []
    for o in model.operations:
        made, taken = ", ".join(map(name, o.outputs)), ", ".join(map(name, o.inputs))
        options = "".join(f" {k}={v!r}" for k, v in o.attributes.items() if k != "custom_code")
        lines.append(f"{made} = {o.key}({taken}){options}")
    return "\n".join(lines)
