"""The subgraph that gives resource variables their initial values."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.export.tflite.buffers import Buffers
from penstock.export.tflite.fields import TFLITE
from penstock.export.tflite.options import OperatorCodes
from penstock.export.tflite.subgraphs import (
    SubgraphWriter,
    has_initial_value,
    shared_name,
    tensor_table,
)
from penstock.ir.model import Model
from penstock.ir.operand import Operand
from penstock.ir.types import DType, byte_size


def initial_values(
    model: Model, writers: list[SubgraphWriter], codes: OperatorCodes, buffers: Buffers
) -> dict[str, Any]:
    """A subgraph that assigns its initial value to every resource variable that has one, once."""
    kind = TFLITE.unions["BuiltinOptions"].index("VarHandleOptions")
    tensors: list[dict[str, Any]] = []
    operators: list[dict[str, Any]] = []
    ports = {
        p.variable: p for w in writers for p in w.state.resources if has_initial_value(model, p)
    }
    for index in ports:
        variable = model.variables[index]
        name = shared_name(model, index)
        handle = len(tensors)
        tensors.append(tensor_table(Operand(DType.RESOURCE, (), name=name), 0))
        buffer = buffers.constant(variable) or buffers.blob(_zeros(variable.dtype, variable.shape))
        value = Operand(
            variable.dtype,
            variable.shape,
            name=f"{name}/initial",
            quantization=variable.quantization,
        )
        tensors.append(tensor_table(value, buffer))
        operators += [
            {
                "opcode_index": codes.add("VAR_HANDLE"),
                "inputs": [],
                "outputs": [handle],
                "builtin_options_type": kind,
                "builtin_options": {"container": "", "shared_name": name},
            },
            {
                "opcode_index": codes.add("ASSIGN_VARIABLE"),
                "inputs": [handle, handle + 1],
                "outputs": [],
            },
        ]
    return {
        "tensors": tensors,
        "inputs": [],
        "outputs": [],
        "operators": operators,
        "name": "initial_values",
    }


def _zeros(dtype: DType, shape: tuple[int | None, ...] | None) -> bytes:
    size = byte_size(dtype, shape or ()) or 0
    return np.zeros(size, np.uint8).tobytes()
