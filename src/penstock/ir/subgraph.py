"""What a model is made of: subgraphs, constants, state, signatures and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct, field

from penstock.errors import InvalidOperand
from penstock.ir.operand import DataLocation, Lifetime, Operand
from penstock.ir.operation import Operation
from penstock.ir.types import PACKED, DType, NDArray, Quantization, Shape, element_count

ALIGNMENT: Final = 64
"""Where constants begin in a pool, in bytes."""


class ConstantPool(Struct, frozen=True, eq=False, weakref=True):
    """Bytes that constants are located in, read-only; *owner* keeps the mapping behind them alive.

    *kind* names the shareable memory that they lie in, as `penstock.hal.Memory` does: a device that
    does not map it cannot prepare a model with constants there. Empty is memory of this process.
    """

    view: memoryview
    owner: Any = None
    kind: str = ""

    def __len__(self) -> int:
        return self.view.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_pool, (bytes(self.view),)


def _rebuild_pool(content: bytes) -> ConstantPool:
    return ConstantPool(memoryview(content))


class Variable(Struct, frozen=True):
    """One piece of network state and its value before the first run.

    The initial value is *value* or *location* (packed, as a constant operand's), else all zeros;
    dimensions unknown in *shape* count as 0 in the zeros. One that is not *assigned* has none: no
    run may read it before another gave it a value.
    """

    name: str
    dtype: DType
    shape: Shape
    quantization: Quantization | None = None
    value: bytes | None = None
    location: DataLocation | None = None
    assigned: bool = True


class StatePort(Struct, frozen=True):
    """How one entry subgraph uses one variable.

    *input* is the state input's operand index (None: never read), *output* the state output's
    (None: never changed). Both are also in the subgraph's `inputs` and `outputs`, after the
    ordinary ones, in the order of the ports.
    """

    variable: int
    input: int | None
    output: int | None


class Subgraph(Struct, frozen=True, eq=False):
    """Operands, and operations in an order in which every operand is written before it is read.
    Names do not count when subgraphs are compared.
    """

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[StatePort, ...] = ()
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subgraph) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        return self.operands, self.operations, self.inputs, self.outputs, self.states

    @property
    def ordinary_inputs(self) -> tuple[int, ...]:
        """Operand indexes of the inputs that callers give: `inputs` less the state inputs."""
        return self.inputs[: len(self.inputs) - sum(p.input is not None for p in self.states)]

    @property
    def ordinary_outputs(self) -> tuple[int, ...]:
        """Operand indexes of the outputs that callers get: `outputs` less the state outputs."""
        return self.outputs[: len(self.outputs) - sum(p.output is not None for p in self.states)]

    def operation_name(self, index: int) -> str:
        """The name of an operation: that of its first named output, else its type and index."""
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
    """What a model's author says about one input or output (TFLite metadata schema)."""

    name: str = ""
    description: str = ""
    content: str = ""
    color_space: str = ""
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """(mean, standard deviation), one value for all channels or one a channel."""
    minimum: tuple[float, ...] = ()
    maximum: tuple[float, ...] = ()
    labels: tuple[str, ...] | None = None
    sample_rate: int = 0
    """Samples a second of a sound; 0 where the file does not say."""


class Metadata(Struct, frozen=True):
    """Everything in a model file that does not compute: outside the digest.

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
    """What a `Model` is made of, as what validates, hashes and shows models reads it."""

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
    """`Model.constant` over bare pools."""
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
    """An object array of bytes from TFLite's string-tensor layout; `InvalidOperand` if it is not
    one.
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


def input_operand(
    dtype: DType, shape: Shape, name: str = "", quantization: Quantization | None = None
) -> Operand:
    """A SUBGRAPH_INPUT operand."""
    return Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name, quantization)
