"""The `onnx` package, imported for the first ONNX file. Sizes are checked against the bytes of the
file before the package allocates anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock import errors
from penstock.distribution import install_command
from penstock.ir.types import PACKED, DType, NDArray, Shape, element_count

MISSING: Final = f"loading an ONNX file needs the onnx package: {install_command('onnx')}"
MAX_MESSAGE = 200


def onnx() -> Any:
    """The package. Raises `NotAvailable`, with the name of the extra, if it is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise errors.NotAvailable(f"{MISSING} ({error})") from error


def parse(content: bytes) -> Any:
    """The `ModelProto` in *content*. Raises `NotAModel` if the bytes are no such message."""
    package = onnx()
    try:
        return package.ModelProto.FromString(content)
    except Exception as error:  # noqa: BLE001  # the parser's own class differs by its version
        said = str(error).strip().splitlines()
        reason = said[0][:MAX_MESSAGE] if said else type(error).__name__
        raise errors.NotAModel(f"the file is no ONNX model: {reason}") from None


def to_array(proto: Any) -> NDArray:
    """The value of a `TensorProto`, whose size the caller has checked; a view of its raw data."""
    proto.ClearField("segment")  # the package refuses it, and the value is whole
    found: NDArray = importlib.import_module("onnx.numpy_helper").to_array(proto)
    return found


def evaluate(
    op: str,
    version: int,
    inputs: Sequence[NDArray | None],
    outputs: int,
    attributes: Mapping[str, Any],
) -> list[NDArray]:
    """The results of the reference evaluator, or its error. The caller bounds its memory."""
    package = onnx()
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    graph = package.GraphProto(node=[package.helper.make_node(op, names, results, **attributes)])
    for name in results:
        graph.output.add().name = name
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(graph, {"": version})
    values = {n: a for n, a in zip(names, inputs, strict=True) if n}
    return [np.asarray(found) for found in evaluator.run(None, values)]


def definition(
    proto: Any,
    version: int,
    attributes: Mapping[str, Any],
    types: Sequence[tuple[int, Shape] | None],
) -> Any:
    """(`FunctionProto` by which ONNX defines a node's operator, attribute defaults), or None."""
    package = onnx()
    try:
        schema = package.defs.get_schema(proto.op_type, version, proto.domain)
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
        if schema.has_function:
            return schema.function_body, defaults
        if not schema.has_context_dependent_function:
            return None
        given = [
            package.TypeProto() if t is None else package.helper.make_tensor_type_proto(*t)
            for t in types
        ]
        whole = package.NodeProto()
        whole.CopyFrom(proto)
        passed = [a.name for a in proto.attribute if a.ref_attr_name and a.name in attributes]
        del whole.attribute[:]
        whole.attribute.extend(a for a in proto.attribute if not a.ref_attr_name)
        whole.attribute.extend(package.helper.make_attribute(n, attributes[n]) for n in passed)
        known = {a.name for a in whole.attribute}
        whole.attribute.extend(d for d in defaults if d.name not in known)
        made = schema.get_context_dependent_function(
            whole.SerializeToString(), [t.SerializeToString() for t in given]
        )
        body = package.FunctionProto.FromString(made)
    except Exception:  # noqa: BLE001  # the package has no definition for this node
        return None
    return body, defaults


TYPES: Final = {
    1: DType.FLOAT32, 2: DType.UINT8, 3: DType.INT8, 4: DType.UINT16, 5: DType.INT16,
    6: DType.INT32, 7: DType.INT64, 8: DType.STRING, 9: DType.BOOL, 10: DType.FLOAT16,
    11: DType.FLOAT64, 12: DType.UINT32, 13: DType.UINT64, 14: DType.COMPLEX64,
    15: DType.COMPLEX128, 16: DType.BFLOAT16, 17: DType.FLOAT8_E4M3FN, 19: DType.FLOAT8_E5M2,
    21: DType.UINT4, 22: DType.INT4, 26: DType.INT2,
}  # fmt: skip
"""`TensorProto.DataType` to element types."""

UNKNOWN_TYPES: Final = {
    18: "FLOAT8E4M3FNUZ", 20: "FLOAT8E5M2FNUZ", 23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2",
}  # fmt: skip

EXTERNAL: Final = 1
MAX_RANK: Final = 32

COMPLEX: Final = frozenset({DType.COMPLEX64, DType.COMPLEX128})
LISTS: Final = {
    "string_data": {DType.STRING},
    "float_data": {DType.FLOAT32, DType.COMPLEX64},
    "double_data": {DType.FLOAT64, DType.COMPLEX128},
    "int64_data": {DType.INT64},
    "uint64_data": {DType.UINT32, DType.UINT64},
}
"""Typed lists of a tensor and their element types. `int32_data` stores all other types."""


class Budget:
    """A budget in bytes of computed values: *limit* for all, a quarter for optional ones."""

    def __init__(self, limit: int) -> None:
        self.left, self._optional = limit, limit // 4

    def offers(self, size: int) -> bool:
        """Charges *size* bytes of an optional value. Returns whether the budget suffices."""
        if size > self._optional:
            return False
        self._optional -= size
        return True

    def take(self, size: int, where: str | None = None) -> None:
        """Charges *size* bytes. Raises `LimitExceeded` if the limit is exceeded."""
        self.left -= size
        if self.left < 0:
            raise errors.LimitExceeded(
                f"constants computed of the file take more memory than allowed ({size} bytes "
                "here); the knob densify_limit_mib sets the limit",
                where=where,
            )


def dtype_of(number: int, where: str) -> DType:
    dtype = TYPES.get(number)
    if dtype is None:
        name = UNKNOWN_TYPES.get(number, f"type {number}")
        raise errors.UnknownType(f"elements of ONNX's {name} have no counterpart here", where=where)
    return dtype


def shape_of(dims: Any, where: str) -> tuple[int, ...]:
    """Dimensions as a tuple. None may be negative, and their product must fit in 64 bits."""
    if len(dims) > MAX_RANK:
        raise errors.ShapeOverflow(f"{len(dims)} dimensions; the limit is {MAX_RANK}", where=where)
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise errors.ShapeOverflow(f"a dimension of {shape} is negative", where=where)
    try:
        element_count(shape)
    except errors.ShapeOverflow as error:
        raise error.at(where) from None
    return shape


def read_tensor(proto: Any, where: str, budget: Budget) -> NDArray:
    """The read-only value of a `TensorProto`. Raises `NotLowerable`, `InvalidOperand`."""
    if proto.data_location == EXTERNAL or len(proto.external_data):
        path = next((e.value for e in proto.external_data if e.key == "location"), "")
        raise errors.NotLowerable(
            f"its data is in another file ({path[:100]!r}), and nothing beside the model is read: "
            "save the model with its data inside",
            where=where,
        )
    dtype, shape = dtype_of(proto.data_type, where), shape_of(proto.dims, where)
    count = element_count(shape)
    stored = (count * (dtype.bits or 8) + 7) // 8
    if dtype is not DType.STRING and proto.HasField("raw_data"):
        if len(proto.raw_data) != stored:
            raise errors.InvalidOperand(
                f"{dtype.value} of shape {shape} takes {stored} bytes, its value has "
                f"{len(proto.raw_data)}",
                where=where,
            )
        return to_array(proto)
    field = next((name for name, types in LISTS.items() if dtype in types), "int32_data")
    listed = getattr(proto, field)
    entries = stored if dtype in PACKED else 2 * count if dtype in COMPLEX else count
    if len(listed) != entries:
        raise errors.InvalidOperand(
            f"a tensor of shape {shape} has {count} elements, its value {len(listed)}", where=where
        )
    if dtype is DType.STRING:
        texts: NDArray = np.empty(count, object)
        texts[:] = [bytes(s) for s in listed]
        return texts.reshape(shape)
    budget.take(count * dtype.numpy.itemsize, where)
    if dtype is DType.BOOL:  # the package keeps the low byte of each entry
        return np.array(listed, np.int32).astype(bool).reshape(shape)
    return to_array(proto)


def read_sparse(proto: Any, where: str, budget: Budget) -> NDArray:
    """The dense form of a `SparseTensorProto`. Its indices are flat, or rows of coordinates."""
    values = read_tensor(proto.values, where, budget)
    indices = read_tensor(proto.indices, where, budget)
    shape = shape_of(proto.dims, where)
    count = element_count(shape)
    if indices.dtype.kind not in "iu" or values.ndim != 1 or values.dtype == object:
        raise errors.InvalidOperand(
            "the indices or values of a sparse tensor are malformed", where=where
        )
    budget.take(count * values.dtype.itemsize, where)
    if indices.ndim == 2:
        if indices.shape != (len(values), len(shape)):
            raise errors.InvalidOperand(f"indices of shape {indices.shape}", where=where)
        inside = bool(((indices >= 0) & (indices < np.array(shape, np.int64))).all())
        flat = indices @ np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[::-1]
    else:
        flat, inside = indices, bool(((indices >= 0) & (indices < count)).all())
    if not inside or flat.shape != values.shape:
        raise errors.InvalidOperand("an index of a sparse tensor is outside it", where=where)
    dense = np.zeros(count, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)
