"""Columns of NumPy and of Arrow, read and added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock.errors import InputError
from penstock.ir import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Values: TypeAlias = "NDArray | list[Any]"
"""The elements of a column: an array with a row each, or a list."""


def values(batch: Mapping[str, Any] | pa.Table, name: str) -> Values:
    """The elements of the column *name*. Raises `InputError` if the batch has none."""
    known = batch.keys() if isinstance(batch, Mapping) else batch.column_names
    if name not in known:
        raise InputError(f"the batch has no column {name!r}; it has {', '.join(known)}")
    if isinstance(batch, Mapping):
        column = batch[name]
        is_dense = isinstance(column, np.ndarray) and column.dtype.kind not in "OSU"
        return column if is_dense else list(column)
    return _of_arrow(batch.column(name))


def _of_arrow(column: pa.ChunkedArray) -> Values:
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.ExtensionType | pa.FixedShapeTensorType):
        parts = [_tensors(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        depth = kind.value_type
        while pa.types.is_list(depth):
            depth = depth.value_type
        dtype = depth.to_pandas_dtype()
        return [np.asarray(each, dtype) for each in column.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy())
    return list(column.to_pylist())


def _tensors(chunk: Any) -> NDArray:
    """[rows, ...]: a chunk of Arrow's tensors, or of those that Ray adds to Arrow."""
    convert = getattr(chunk, "to_numpy_ndarray", None)
    if convert is not None:
        return np.asarray(convert())
    return np.asarray(chunk.to_numpy(zero_copy_only=False))


def added(
    batch: Mapping[str, Any] | pa.Table, columns: Mapping[str, Any]
) -> dict[str, Any] | pa.Table:
    """*batch* with *columns*, which replace those of the same name."""
    import pyarrow as pa

    if isinstance(batch, Mapping):
        return {**batch, **{name: _for_numpy(column) for name, column in columns.items()}}
    for name, column in columns.items():
        made = _for_arrow(column)
        place = batch.schema.get_field_index(name)
        batch = (
            batch.append_column(name, made)
            if place < 0
            else batch.set_column(place, pa.field(name, made.type), made)
        )
    return batch


def _for_numpy(column: Any) -> NDArray:
    import pyarrow as pa

    if isinstance(column, pa.Array):
        return objects(column.to_pylist())
    return column if isinstance(column, np.ndarray) else objects(column)


def _for_arrow(column: Any) -> pa.Array:
    import pyarrow as pa

    if not isinstance(column, np.ndarray) or column.ndim < 2 or column.dtype.kind not in "iuf":
        return column if isinstance(column, pa.Array) else pa.array(column)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column))


def stacked(arrays: Sequence[NDArray]) -> NDArray:
    """[rows, ...] if all *arrays* have one shape, otherwise an array of objects."""
    same = len({array.shape for array in arrays}) == 1
    return np.stack(arrays) if same else objects(arrays)


def objects(elements: Sequence[object]) -> NDArray:
    """[rows] of dtype object."""
    found = np.empty(len(elements), object)
    for place, element in enumerate(elements):
        found[place] = element
    return found


def of_answers(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """The columns of answers, with types that do not depend on the rows."""
    import pyarrow as pa

    score = pa.float64()
    box = pa.struct(
        {"index": pa.int64(), "label": pa.string(), "score": score, "box": pa.list_(score)}
    )
    types = {"score": score, "boxes": pa.list_(box)}
    names = ("task", "label", "score", "boxes", "answer", "device", "error")
    return {
        name: pa.array([row[name] for row in rows], types.get(name, pa.string())) for name in names
    }
