"""What LiteRT's details dictionaries hold, made from a file's catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir import DType, NDArray
from penstock.loaders.tflite.catalog import QuantizationEntry, SparsityEntry, TensorEntry

SHOWN_AS: Final[Mapping[DType, type[np.generic]]] = {
    DType.STRING: np.bytes_,
    DType.RESOURCE: np.object_,
    DType.VARIANT: np.object_,
    DType.INT4: np.int8,
    DType.INT2: np.int8,
    DType.UINT4: np.uint8,
    DType.FLOAT8_E4M3FN: np.int8,
    DType.FLOAT8_E5M2: np.int8,
}
"""Element types that LiteRT shows as another NumPy type: packed ones as whole bytes, float8 as its
bits.
"""


def shown_type(dtype: DType) -> type[np.generic]:
    """The class in `details["dtype"]`."""
    return SHOWN_AS.get(dtype) or dtype.numpy.type


def tensor_details(
    tensor: TensorEntry, index: int, shape: Sequence[int], *, compress_zero_points: bool
) -> dict[str, Any]:
    """The dictionary for one tensor, whose present shape is *shape*. All arrays are the caller's
    own.
    """
    quantization = tensor.quantization
    zero_points = quantization.zero_points.astype(np.int32)
    signature = shape if tensor.signature is None else tensor.signature
    per_tensor = len(zero_points) == 1
    if compress_zero_points and len(zero_points) > 1 and (zero_points == zero_points[0]).all():
        zero_points = zero_points[:1].copy()
    return {
        "name": tensor.name,
        "index": index,
        "shape": np.array(shape, np.int32),
        "shape_signature": np.array(signature, np.int32),
        "dtype": shown_type(tensor.dtype),
        "quantization": _legacy(quantization, zero_points) if per_tensor else (0.0, 0),
        "quantization_parameters": {
            "scales": quantization.scales.astype(np.float32),
            "zero_points": zero_points,
            "quantized_dimension": quantization.dimension,
            "block_size": quantization.block_size,
        },
        "sparsity_parameters": _sparsity(tensor.sparsity),
    }


def _legacy(quantization: QuantizationEntry, zero_points: NDArray) -> tuple[float, int]:
    return float(quantization.scales[0]), int(zero_points[0])


def _sparsity(sparsity: SparsityEntry | None) -> dict[str, Any]:
    if sparsity is None:
        return {}
    shown: dict[str, Any] = {"traversal_order": np.array(sparsity.traversal_order, np.int32)}
    if sparsity.block_map is not None:
        shown["block_map"] = np.array(sparsity.block_map, np.int32)
    shown["dim_metadata"] = [
        {"format": 0, "dense_size": level.dense_size}
        if level.segments is None or level.indices is None
        else {
            "format": 1,
            "array_segments": level.segments.copy(),
            "array_indices": level.indices.copy(),
        }
        for level in sparsity.levels
    ]
    return shown
