"""A graph as an ONNX model, through the classes of the `onnx` package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.driverkit.site import Site, known_shape, make_sites
from penstock.driverkit.unrolling import flattened
from penstock.drivers.onnxruntime.external import (
    CONSTANTS,
    LARGE_BYTES,
    LEAST_BYTES,
    MODEL,
    put_apart,
)
from penstock.drivers.onnxruntime.graph import ELEMENTS, MICROSOFT, Graph
from penstock.drivers.onnxruntime.rules import RULES
from penstock.errors import GeneralFailure, PenstockError
from penstock.interrupts import polled
from penstock.ir import DType, Model, Operand

OPSET: Final = 21
IR_VERSION: Final = 10
"""Versions that ONNX Runtime 1.20 and later can read."""

MAX_BYTES: Final = (1 << 31) - 1


def build(
    model: Model, *, wide: bool = False, portable: bool = False, relaxed: bool = False
) -> Graph:
    """The graph of *model*, whose operations are all supported, with the options of `Graph`. If an
    operation fails, raises `GeneralFailure` with its name.
    """
    flat = flattened(model)
    try:
        graph = Graph(flat.model, wide=wide, portable=portable, relaxed=relaxed)
    except PenstockError as error:
        raise GeneralFailure(f"the inputs cannot be declared: {error}") from error
    sites = RULES.lay_out(make_sites(flat.model), real=portable)
    RULES.emit(graph, _numbered(graph, flat.origins, sites))
    graph.finish()
    return graph


def _numbered(
    graph: Graph, origins: Sequence[int], sites: Sequence[Site]
) -> Iterator[tuple[int, Site]]:
    """Each of *sites* with its operation's number in the model; its nodes get that number."""
    for number, site in zip(origins, sites, strict=True):
        graph.operation = number
        yield number, site


def written(graph: Graph, onnx: Any, folder: Path) -> bytes | Path:
    """The bytes of an ONNX model; if its constants are large, its path in *folder*, where they lie
    in a file beside it. Raises `GeneralFailure` if they exceed the size limit.
    """
    size = sum(value.nbytes for value in graph.constants.values())
    if size > MAX_BYTES:
        raise GeneralFailure(f"{size} bytes of constants are more than an ONNX model holds")
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="penstock")
    model.opset_import.add(domain="", version=OPSET)
    model.opset_import.add(domain=MICROSOFT, version=1)
    least = LEAST_BYTES if size >= LARGE_BYTES else MAX_BYTES + 1
    try:
        with (folder / CONSTANTS).open("wb") as file:
            for name, value in polled(graph.constants.items()):
                tensor = model.graph.initializer.add(
                    name=name, data_type=ELEMENTS[value.dtype.name]
                )
                tensor.dims.extend(value.shape)
                if value.nbytes >= least:
                    put_apart(tensor, value, file)
                else:
                    tensor.raw_data = np.ascontiguousarray(value).tobytes()
        _write(model.graph, graph, onnx)
        data: bytes = model.SerializeToString()
        if size < LARGE_BYTES:
            return data
        (path := folder / MODEL).write_bytes(data)
    except PenstockError:
        raise
    except Exception as error:
        raise GeneralFailure(f"the ONNX model cannot be written: {error}") from error
    return path


def _write(made: Any, graph: Graph, onnx: Any) -> None:
    """Writes inputs, outputs and nodes."""
    made.name = "penstock"
    for values, ports in ((graph.inputs, made.input), (graph.outputs, made.output)):
        for name, operand in values:
            _port(ports.add(), name, operand)
    for node in polled(graph.nodes):
        proto = made.node.add(op_type=node.kind, domain=node.domain)
        proto.input.extend(node.inputs)
        proto.output.extend(node.outputs)
        for name, value in node.attributes.items():
            if isinstance(value, Graph):
                attribute = proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
                _write(attribute.g, value, onnx)
            else:
                proto.attribute.append(onnx.helper.make_attribute(name, value))


def _port(proto: Any, name: str, operand: Operand) -> None:
    """Writes an input or output; int8 is declared as uint8."""
    stored = DType.UINT8 if operand.dtype is DType.INT8 else operand.dtype
    proto.name = name
    proto.type.tensor_type.elem_type = ELEMENTS[stored.value]
    shape = proto.type.tensor_type.shape
    for size in known_shape(operand, repr(operand.name)):
        shape.dim.add(dim_value=size)
