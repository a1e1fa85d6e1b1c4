"""`SubgraphBuilder` and `ModelBuilder`: make models in code, operand by operand.

builder = ModelBuilder()
x = builder.input(DType.FLOAT32, (1, 4), "x")
w = builder.constant(np.ones((2, 4), np.float32))
y = builder.operation("FULLY_CONNECTED", [x, w], outputs=[(DType.FLOAT32, (1, 2))])[0]
model = builder.build(outputs=[y])
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np
from msgspec.structs import replace

from penstock.arguments import check_kind
from penstock.errors import IndexOutOfRange, InputError, InvalidOperand, UnknownOperator
from penstock.ir.model import Model
from penstock.ir.operand import (
    MAX_COPIED_VALUE,
    OMITTED,
    DataLocation,
    ExtensionType,
    Lifetime,
    Operand,
)
from penstock.ir.operation import AttributeValue, Operation
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import (
    ALIGNMENT,
    NO_METADATA,
    ConstantPool,
    Metadata,
    Signature,
    StatePort,
    Subgraph,
    Variable,
)
from penstock.ir.types import (
    PACKED,
    DType,
    NDArray,
    Quantization,
    Shape,
    dtype_of,
    element_count,
    is_masked,
)


class SubgraphBuilder:
    """Builds one subgraph. *builder* owns the constants. Operands are numbered in order."""

    def __init__(self, builder: ModelBuilder, name: str = "") -> None:
        self._model, self._name = builder, name
        self._operands: list[Operand] = []
        self._operations: list[Operation] = []
        self._inputs: list[int] = []
        self._states: list[tuple[int, int | None, int | None]] = []
        self._omitted: int | None = None

    def operand(self, operand: Operand) -> int:
        """Adds *operand* unchanged."""
        self._operands.append(operand)
        return len(self._operands) - 1

    def input(
        self,
        dtype: DType,
        shape: Shape,
        name: str = "",
        quantization: Quantization | None = None,
        extension: ExtensionType | None = None,
    ) -> int:
        """Adds a subgraph input. Raises `InputError` if *dtype* is no `DType` or the shape is
        invalid.
        """
        if not isinstance(dtype, DType):
            raise InputError(
                f"input {name!r}: an element type is a DType (DType.FLOAT32), not {dtype!r}"
            )
        operand = Operand(
            dtype, _plain(shape), Lifetime.SUBGRAPH_INPUT, name, quantization, extension=extension
        )
        index = self.operand(operand)
        self._inputs.append(index)
        return index

    def constant(
        self,
        value: NDArray,
        name: str = "",
        quantization: Quantization | None = None,
        dtype: DType | None = None,
    ) -> int:
        """Adds a constant. *dtype* is needed if the array's own dtype does not determine it (int4
        in int8 arrays). Raises `InputError` for anything but an array of such elements.
        """
        return self.operand(self._model.constant_operand(value, name, quantization, dtype))

    def located(
        self,
        pool: ConstantPool,
        offset: int,
        dtype: DType,
        shape: tuple[int, ...],
        name: str = "",
        quantization: Quantization | None = None,
    ) -> int:
        """Adds a constant whose packed bytes are in *pool* from *offset* on, and remain there. Up
        to 128 bytes are copied into the model instead (NNAPI section 6.1).

        Raises `InvalidOperand` if the bytes are not within the pool. Nothing may write to the pool
        while the model is used.
        """
        check_kind(pool, ConstantPool, f"constant {name!r} lies in a ConstantPool")
        check_kind(offset, int, f"constant {name!r} begins at a whole number of bytes")
        check_kind(dtype, DType, f"constant {name!r}: an element type is a DType")
        check_kind(shape, (tuple, list), f"constant {name!r}: a shape is a tuple of whole numbers")
        for dimension in shape:
            check_kind(
                dimension, (int, np.integer), f"constant {name!r}: a dimension is a whole number"
            )
        shape = tuple(map(operator.index, shape))
        size = -(-element_count(shape) * (dtype.bits or 0) // 8)
        if dtype.bits is None or not 0 <= offset <= offset + size <= len(pool):
            raise InvalidOperand(
                f"constant {name!r}: {dtype.value} of shape {shape} at byte {offset} "
                f"is not in a pool of {len(pool)} bytes"
            )
        lifetime, value, place = Lifetime.CONSTANT_COPY, None, None
        if size <= MAX_COPIED_VALUE:
            value = bytes(pool.view[offset : offset + size])
        else:
            lifetime = Lifetime.CONSTANT_POOL
            place = DataLocation(self._model.pool(pool), offset, size)
        return self.operand(Operand(dtype, shape, lifetime, name, quantization, value, place))

    def omitted(self) -> int:
        """The operand for an omitted optional input."""
        if self._omitted is None:
            self._omitted = self.operand(OMITTED)
        return self._omitted

    def operation(
        self,
        kind: str,
        inputs: Sequence[int | None],
        outputs: Sequence[Operand | tuple[DType, Shape] | tuple[DType, Shape, Quantization | None]],
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> list[int]:
        """Appends an operation and its outputs as new temporaries. Missing attributes get the row's
        defaults.
        """
        check_kind(kind, str, "an operation's type is text")
        row = OPERATIONS.get(kind)
        if row is None:
            raise UnknownOperator(f"{kind!r} is not an operation of the vocabulary")
        indexes = [self.operand(o if isinstance(o, Operand) else _temporary(*o)) for o in outputs]
        given = tuple(self.omitted() if i is None else i for i in inputs)
        self._operations.append(
            Operation(kind, given, tuple(indexes), row.complete(attributes or {}))
        )
        return indexes

    def state(self, variable: int, input: int | None = None, output: int | None = None) -> None:
        """Declares a state port; *input* was added with `operand` as a SUBGRAPH_INPUT."""
        self._states.append((variable, input, output))

    def finish(self, outputs: Sequence[int]) -> Subgraph:
        """The finished subgraph. Temporaries among *outputs* and the state outputs become
        SUBGRAPH_OUTPUT.

        Raises `InputError` if an argument is no list of indexes, and `IndexOutOfRange` for an index
        without an operand.
        """
        check_kind(outputs, Sequence, "outputs are a list of operand indexes")
        for index in outputs:
            check_kind(index, int, "an output is the index of an operand")
        state_outputs = [o for _, _, o in self._states if o is not None]
        every = [*outputs, *state_outputs]
        operands = list(self._operands)
        for index in every:
            if not 0 <= index < len(operands):
                raise IndexOutOfRange(
                    f"output {index} is no operand; their number is {len(operands)}"
                )
            if operands[index].lifetime is Lifetime.TEMPORARY_VARIABLE:
                operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)
        state_inputs = [i for _, i, _ in self._states if i is not None]
        return Subgraph(
            tuple(operands),
            tuple(self._operations),
            (*self._inputs, *state_inputs),
            tuple(every),
            tuple(StatePort(*s) for s in self._states),
            self._name,
        )


class ModelBuilder(SubgraphBuilder):
    """Builds a model. It is also the builder of the entry subgraph."""

    def __init__(self, name: str = "main") -> None:
        super().__init__(self, name)
        self._pool = bytearray()
        self._given: list[ConstantPool] = []
        self._variables: list[Variable] = []
        self._referenced: list[Subgraph] = []

    def variable(
        self,
        name: str,
        dtype: DType,
        shape: Shape,
        quantization: Quantization | None = None,
        initial: NDArray | None = None,
    ) -> int:
        """Adds a variable and returns its index. If *initial* is None, it starts at zeros."""
        if initial is None:
            self._variables.append(Variable(name, dtype, _plain(shape), quantization))
        else:
            c = self.constant_operand(initial, name, quantization, dtype)
            self._variables.append(
                Variable(name, dtype, c.shape, quantization, c.value, c.location)
            )
        return len(self._variables) - 1

    def pool(self, pool: ConstantPool) -> int:
        """Adds memory that already contains constants. Returns its index for `located`; adding the
        same memory again returns the same index.
        """
        if pool not in self._given:
            self._given.append(pool)
        return self._given.index(pool) + 1

    def subgraph(self, name: str = "") -> SubgraphBuilder:
        """A builder for a referenced subgraph. Pass its finished subgraph to `add_subgraph`."""
        return SubgraphBuilder(self, name)

    def add_subgraph(self, subgraph: Subgraph) -> int:
        """Registers a referenced subgraph and returns its index for attributes."""
        self._referenced.append(subgraph)
        return len(self._referenced)

    def constant_operand(
        self, value: NDArray, name: str, quantization: Quantization | None, dtype: DType | None
    ) -> Operand:
        """A constant operand with its bytes in the model (up to 128) or in the model's pool."""
        if not isinstance(value, np.ndarray | np.generic):
            raise InputError(
                f"constant {name!r} is made of a NumPy array, not of {type(value).__name__}"
            )
        if is_masked(value):
            raise InputError(
                f"constant {name!r} is a masked array, and no device heeds masks; "
                "give its filled(), with a value for what is masked"
            )
        data, kind = pack(value, dtype)
        if len(data) <= MAX_COPIED_VALUE:
            return Operand(kind, value.shape, Lifetime.CONSTANT_COPY, name, quantization, data)
        self._pool += bytes(-len(self._pool) % ALIGNMENT)
        place = DataLocation(0, len(self._pool), len(data))
        self._pool += data
        return Operand(
            kind, value.shape, Lifetime.CONSTANT_POOL, name, quantization, location=place
        )

    def build(
        self,
        outputs: Sequence[int],
        signatures: Mapping[str, Signature] | None = None,
        metadata: Metadata = NO_METADATA,
    ) -> Model:
        """The validated model with these entry outputs."""
        own = [ConstantPool(memoryview(bytes(self._pool)))] if self._pool or self._given else []
        pools = (*own, *self._given)
        subgraphs = (self.finish(outputs), *self._referenced)
        return Model(subgraphs, pools, tuple(self._variables), signatures or {}, metadata)


def pack(value: NDArray, dtype: DType | None = None) -> tuple[bytes, DType]:
    """The packed constant bytes of an array, and its element type."""
    kind = dtype or dtype_of(value.dtype)
    if kind is None:
        raise InputError(f"no operand type has the NumPy dtype {value.dtype}")
    if kind is DType.STRING:
        return pack_strings(value), kind
    if kind not in PACKED:
        return np.ascontiguousarray(value, kind.numpy).tobytes(), kind
    bits = kind.bits or 8
    flat = np.ascontiguousarray(value).reshape(-1).astype(np.int8).view(np.uint8) & (2**bits - 1)
    per_byte = 8 // bits
    flat = np.concatenate([flat, np.zeros(-len(flat) % per_byte, np.uint8)]).reshape(-1, per_byte)
    packed = np.zeros(len(flat), np.uint8)
    for place in range(per_byte):
        packed |= flat[:, place] << (place * bits)
    return packed.tobytes(), kind


def pack_strings(value: NDArray) -> bytes:
    """TFLite's string-tensor layout: count, count + 1 offsets (int32), then the bytes."""
    items = [_encoded(item) for item in value.reshape(-1).tolist()]
    start = 4 * (len(items) + 2)
    ends = np.cumsum([start, *map(len, items)], dtype=np.int64)
    return np.array([len(items), *ends], "<i4").tobytes() + b"".join(items)


def _encoded(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if not isinstance(item, bytes | bytearray | memoryview):
        raise InputError(f"an array of strings holds str and bytes, not {type(item).__name__}")
    return bytes(item)


def _temporary(dtype: DType, shape: Shape, quantization: Quantization | None = None) -> Operand:
    return Operand(dtype, _plain(shape), quantization=quantization)


def _plain(shape: Iterable[SupportsIndex | None] | None) -> Shape:
    """*shape* as a tuple of int and None, from any sequence and integer types."""
    if shape is None:
        return None
    try:
        return tuple(None if d is None else operator.index(d) for d in shape)
    except TypeError:
        raise InputError(f"a shape is a tuple of whole numbers and None, not {shape!r}") from None
