"""The parts of a model: subgraphs, constants, state, signatures and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct, field

from penstock.errors import InvalidOperand
from penstock.ir.operand import DataLocation, Operand
from penstock.ir.operation import Operation
from penstock.ir.types import (
    PACKED,
    Compared,
    DType,
    NDArray,
    Quantization,
    Shape,
    element_count,
)

ALIGNMENT: Final = 64
"""Alignment, in bytes, of constants in a pool."""


class ConstantPool(Struct, frozen=True, eq=False, weakref=True):
    """Read-only bytes that contain constants. *owner* keeps the mapping behind them alive.

    *kind* names their kind of shareable memory, as in `penstock.hal.Memory`. A device that does not
    map that kind cannot prepare a model with constants in it. An empty *kind* is memory of this
    process.
    """

    view: memoryview
    owner: Any = None
    kind: str = ""

    def __len__(self) -> int:
        return self.view.nbytes

    def unload(self) -> None:
        """Lets the system unmap the bytes that were read, if *owner* has an `unload` for that. A
        later read gets the same bytes.
        """
        unload = getattr(self.owner, "unload", None)
        if unload is not None:
            unload()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_pool, (bytes(self.view),)


def _rebuild_pool(content: bytes) -> ConstantPool:
    return ConstantPool(memoryview(content))


class Variable(Struct, frozen=True):
    """One piece of network state and its value before the first run.

    The initial value is *value* or *location* (packed like a constant operand), otherwise all
    zeros. Unknown dimensions in *shape* count as 0 in the zeros. A variable that is not *assigned*
    has no initial value: no run may read it before another run has written it.
    """

    name: str
    dtype: DType
    shape: Shape
    quantization: Quantization | None = None
    value: bytes | None = None
    location: DataLocation | None = None
    assigned: bool = True


class StatePort(Struct, frozen=True):
    """The use of one variable by one entry subgraph.

    *input* is the operand index of the state input (None: never read), *output* that of the state
    output (None: never changed). Both are also in the subgraph's `inputs` and `outputs`, after the
    ordinary ones, in the order of the ports.
    """

    variable: int
    input: int | None
    output: int | None


class Subgraph(Compared, frozen=True, eq=False):
    """Operands and operations. The order of the operations is such that every operand is written
    before it is read. Names are ignored when subgraphs are compared.
    """

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[StatePort, ...] = ()
    name: str = ""

    def _compared(self) -> tuple[object, ...]:
        return self.operands, self.operations, self.inputs, self.outputs, self.states

    @property
    def ordinary_inputs(self) -> tuple[int, ...]:
        """Operand indexes of the inputs that callers pass: `inputs` without the state inputs."""
        return self.inputs[: len(self.inputs) - sum(p.input is not None for p in self.states)]

    @property
    def ordinary_outputs(self) -> tuple[int, ...]:
        """Operand indexes of the outputs that callers receive: `outputs` without the state
        outputs.
        """
        return self.outputs[: len(self.outputs) - sum(p.output is not None for p in self.states)]

    def operation_name(self, index: int) -> str:
        """The name of an operation: the name of its first named output, or else its type and
        index.
        """
        operation = self.operations[index]
        for output in operation.outputs:
            if name := self.operands[output].name:
                return name
        return f"{operation.type}_{index}"


class Signature(Struct, frozen=True):
    """A named entry point: a subgraph and the callers' names for its inputs and outputs, each a
    pair (name, operand index), in the order of the file.
    """

    subgraph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class TensorMetadata(Struct, frozen=True):
    """The author's description of one input or output (TFLite metadata schema)."""

    name: str = ""
    description: str = ""
    content: str = ""
    color_space: str = ""
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """(mean, standard deviation), one value for all channels or one for each channel."""
    minimum: tuple[float, ...] = ()
    maximum: tuple[float, ...] = ()
    labels: tuple[str, ...] | None = None
    sample_rate: int = 0
    """Sample rate of a sound, in samples a second; 0 if the file does not declare it."""


class Metadata(Struct, frozen=True):
    """The parts of a model file that do not affect results. They are not in the digest.

    *entries* are the file's raw named metadata buffers, *files* its associated files.
    """

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    entries: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


NO_METADATA: Final = Metadata()


class ModelParts(Protocol):
    """The contents of a `Model`, for code that validates, hashes and shows models."""

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]: ...
    @property
    def pools(self) -> tuple[ConstantPool, ...]: ...
    @property
    def variables(self) -> tuple[Variable, ...]: ...
    @property
    def signatures(self) -> Mapping[str, Signature]: ...
    @property
    def main(self) -> int: ...
    @property
    def entry(self) -> Subgraph: ...
    @property
    def operands(self) -> tuple[Operand, ...]: ...


def constant_bytes(pools: tuple[ConstantPool, ...], item: Operand | Variable) -> memoryview:
    """The packed bytes of a constant operand or of a variable's initial value."""
    if item.value is not None:
        return memoryview(item.value)
    if item.location is None:
        raise InvalidOperand(f"{item.name!r} has no constant value")
    place = item.location
    return pools[place.pool].view[place.offset : place.offset + place.length]


def constant_array(pools: tuple[ConstantPool, ...], item: Operand | Variable) -> NDArray:
    """`Model.constant`, for the parts of a model."""
    data = constant_bytes(pools, item)
    if item.shape is None:
        raise InvalidOperand(f"constant {item.name!r} has no shape")
    shape = tuple(d if d is not None else 0 for d in item.shape)
    if item.dtype is DType.STRING:
        return unpack_strings(data, shape)
    if item.dtype in PACKED:
        return _unpack(data, item.dtype, shape)
    array: NDArray = np.frombuffer(data, item.dtype.numpy).reshape(shape)
    return array


def _unpack(data: memoryview, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    bits = dtype.bits or 8
    packed = np.frombuffer(data, np.uint8)
    fields = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    flat = np.stack(fields, axis=-1).reshape(-1)[: element_count(shape)]
    if dtype is not DType.UINT4:
        sign = 1 << (bits - 1)
        flat = ((flat ^ sign).astype(np.int8)) - np.int8(sign)
    array: NDArray = flat.astype(dtype.numpy).reshape(shape)
    array.flags.writeable = False
    return array


def unpack_strings(data: memoryview, shape: tuple[int, ...]) -> NDArray:
    """An object array of bytes from TFLite's string-tensor layout. Raises `InvalidOperand` for any
    other layout.
    """
    header = np.frombuffer(data[: len(data) // 4 * 4], "<i4")
    count = int(header[0]) if header.size else 0
    if count < 0 or header.size < count + 2 or count != element_count(shape):
        raise InvalidOperand(f"a string tensor of shape {shape} holds {count} strings")
    ends = header[1 : count + 2].tolist()
    if any(not 0 <= a <= b <= len(data) for a, b in pairwise(ends)):
        raise InvalidOperand("string offsets of a string tensor lie outside it")
    flat = np.empty(count, object)
    flat[:] = [bytes(data[a:b]) for a, b in pairwise(ends)]
    flat.flags.writeable = False
    array: NDArray = flat.reshape(shape)
    return array
