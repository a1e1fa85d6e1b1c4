"""The content of a TFLite file: tensors, operators and signatures under the file's own numbers.

It is for interfaces that show the file itself besides the model from `reader.load`. Nothing is
lowered, renamed or left out. Only content that cannot be shown is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock import errors
from penstock.faults import Fault, FaultCode
from penstock.ir.operand import DataLocation, Lifetime, Operand
from penstock.ir.subgraph import ConstantPool, constant_array
from penstock.ir.types import DType, NDArray, byte_size
from penstock.loaders.flatbuffer import Values
from penstock.loaders.tflite.operators import OperatorCode, code_of, read_codes
from penstock.loaders.tflite.tensors import (
    OPERAND_MEMORY,
    QUANTIZATION_MEMORY,
    File,
    element_type,
    filled_part,
    integers,
    quantization_fault,
    tensor_place,
)

OPERATOR_ENTRY_MEMORY: Final = 256
SIGNATURE_MEMORY: Final = 512


class QuantizationEntry(Struct, frozen=True, eq=False):
    """Quantisation as the file has it: *scales* float32 [n], *zero_points* int64 [n]."""

    scales: NDArray
    zero_points: NDArray
    dimension: int = 0
    block_size: int = 0


NOT_QUANTIZED: Final = QuantizationEntry(np.empty(0, np.float32), np.empty(0, np.int64))


class LevelEntry(Struct, frozen=True, eq=False):
    """One level of a sparse tensor: dense of *dense_size*, or compressed by *segments* and
    *indices*.
    """

    dense_size: int = 0
    segments: NDArray | None = None
    indices: NDArray | None = None


class SparsityEntry(Struct, frozen=True, eq=False):
    """The positions of a sparse tensor's stored values (TFLite schema, `SparsityParameters`)."""

    traversal_order: tuple[int, ...]
    block_map: tuple[int, ...] | None
    levels: tuple[LevelEntry, ...]


class TensorEntry(Struct, frozen=True, eq=False):
    """One tensor. *signature* is its `shape_signature` (-1: unknown) or None. *data* is the place
    of its constant value in the file; None if it has no value.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    signature: tuple[int, ...] | None
    quantization: QuantizationEntry
    sparsity: SparsityEntry | None
    is_variable: bool
    data: DataLocation | None

    def constant(self, pool: ConstantPool) -> NDArray:
        """The constant value, read-only. For a sparse tensor, only the stored values, flat."""
        if self.data is None:
            raise errors.InvalidOperand(f"tensor {self.name!r} has no constant value")
        shape = self.shape
        if self.sparsity is not None:
            shape = (self.data.length * 8 // (self.dtype.bits or 8),)
        operand = Operand(self.dtype, shape, Lifetime.CONSTANT_POOL, self.name, location=self.data)
        return constant_array((pool,), operand)


class OperatorEntry(Struct, frozen=True):
    """One operator: its name (for a custom operator, its own name) and tensor indexes, -1 for an
    omitted input. *resource* is the name of VAR_HANDLE's resource.
    """

    name: str
    custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    resource: str = ""


class SubgraphEntry(Struct, frozen=True):
    """One subgraph, tensors by index."""

    name: str
    tensors: tuple[TensorEntry, ...]
    operators: tuple[OperatorEntry, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class SignatureEntry(Struct, frozen=True):
    """One signature: names to tensor indexes of *subgraph*, in the order of their names."""

    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


class Catalog(Struct, frozen=True, eq=False):
    """A whole file. Signatures are in the file's order, including those that `load` omits."""

    pool: ConstantPool
    subgraphs: tuple[SubgraphEntry, ...]
    signatures: Mapping[str, SignatureEntry]
    codes: tuple[OperatorCode, ...]


def read_catalog(pool: ConstantPool) -> Catalog:
    """The catalogue of the TFLite file in *pool*.

    Raises the `ModelError` subclass of the first defect, with its place in the file: no TFLite
    file, an unknown type or operator code, a constant that does not fill its shape, a shape below
    zero or beyond 64 bits, inconsistent quantisation. Indexes of tensors are not checked.
    """
    file = File(pool)
    tables = file.tables("subgraphs")
    if not tables:
        raise errors.IndexOutOfRange(Fault(FaultCode.NO_SUBGRAPH))
    codes = read_codes(file)
    subgraphs = tuple(_subgraph(file, codes, i, table) for i, table in enumerate(tables))
    return Catalog(pool, subgraphs, _signatures(file, subgraphs), tuple(codes))


def _subgraph(file: File, codes: list[OperatorCode], index: int, table: Values) -> SubgraphEntry:
    tensors = tuple(_tensor(file, index, i, t) for i, t in enumerate(table["tensors"] or ()))
    operators = tuple(
        _operator(file, codes, index, i, o) for i, o in enumerate(table["operators"] or ())
    )
    inputs, outputs = integers(table["inputs"]), integers(table["outputs"])
    table["tensors"] = table["operators"] = None
    return SubgraphEntry(table["name"] or "", tensors, operators, inputs, outputs)


def _tensor(file: File, subgraph: int, index: int, tensor: Values) -> TensorEntry:
    quantized = tensor["quantization"] is not None
    try:
        file.charge(OPERAND_MEMORY + quantized * QUANTIZATION_MEMORY)
        dtype = element_type(tensor)
        shape, signature = integers(tensor["shape"]), integers(tensor["shape_signature"])
        if any(d < 0 for d in shape):
            raise errors.ShapeOverflow(f"a dimension of {shape} is negative")
        return TensorEntry(
            tensor["name"] or "",
            dtype,
            shape,
            signature or None,
            _quantization(tensor["quantization"], shape),
            _sparsity(file, tensor["sparsity"]),
            tensor["is_variable"],
            _data(file, tensor, dtype, shape),
        )
    except errors.ModelError as error:
        raise error.at(tensor_place(subgraph, index, tensor)) from None


def _data(file: File, tensor: Values, dtype: DType, shape: tuple[int, ...]) -> DataLocation | None:
    place, size = file.buffer(tensor["buffer"]), byte_size(dtype, shape)
    if place is None:
        return None
    if tensor["sparsity"] is not None:
        width = max((dtype.bits or 8) // 8, 1)
        return DataLocation(0, place.offset, place.length // width * width)
    if size is None:
        return place if dtype is DType.STRING else None
    return filled_part(place, dtype, shape, size)


def _quantization(table: Values | None, shape: tuple[int, ...]) -> QuantizationEntry:
    if table is None:
        return NOT_QUANTIZED
    block = (table["details"] or {}).get("block_size", 0) if table["details_type"] else 0
    scales, zero_points, axis = table["scale"], table["zero_point"], table["quantized_dimension"]
    if scales is None or not len(scales):
        return replace(NOT_QUANTIZED, block_size=block)
    if fault := quantization_fault(scales, zero_points, axis, shape):
        raise errors.InvalidQuantization(fault)
    return QuantizationEntry(scales, zero_points, axis, block)


def _sparsity(file: File, table: Values | None) -> SparsityEntry | None:
    if table is None:
        return None
    levels = table["dim_metadata"] or []
    file.charge(OPERATOR_ENTRY_MEMORY * (1 + len(levels)))
    block_map = table["block_map"]
    return SparsityEntry(
        integers(table["traversal_order"]),
        None if block_map is None else integers(block_map),
        tuple(_level(file, level) for level in levels),
    )


def _level(file: File, level: Values) -> LevelEntry:
    if not level["format"]:
        return LevelEntry(level["dense_size"])
    ends = (_indexes(file, level[name]) for name in ("array_segments", "array_indices"))
    return LevelEntry(0, *ends)


def _indexes(file: File, table: Values | None) -> NDArray:
    values = file.indexes(table)
    if values is None:
        return np.empty(0, np.int32)
    file.charge(4 * len(values))
    return values.astype(np.int32)


def _operator(
    file: File, codes: list[OperatorCode], subgraph: int, index: int, table: Values
) -> OperatorEntry:
    try:
        code = code_of(codes, table["opcode_index"])
        inputs, outputs = integers(table["inputs"]), integers(table["outputs"])
        file.charge(OPERATOR_ENTRY_MEMORY + 8 * (len(inputs) + len(outputs)))
    except errors.ModelError as error:
        raise error.at(errors.Place(subgraph, operator=index)) from None
    custom = code.type == "CUSTOM"
    name = code.custom_code if custom else code.type
    options = table["builtin_options"] if name == "VAR_HANDLE" else None
    resource = (options or {}).get("shared_name") or ""
    return OperatorEntry(name, custom, inputs, outputs, resource)


def _signatures(file: File, subgraphs: tuple[SubgraphEntry, ...]) -> dict[str, SignatureEntry]:
    signatures: dict[str, SignatureEntry] = {}
    for name, where, table in file.signatures(len(subgraphs)):
        file.charge(SIGNATURE_MEMORY, where)
        inputs, outputs = (
            dict(sorted((e["name"] or "", e["tensor_index"]) for e in table[kind] or ()))
            for kind in ("inputs", "outputs")
        )
        signatures[name] = SignatureEntry(table["subgraph_index"], inputs, outputs)
    return signatures
