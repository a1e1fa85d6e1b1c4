"""The `onnx` package: parses the protobuf, imported when the first ONNX file is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.distribution import install_command
from penstock.errors import NotAModel, NotAvailable
from penstock.ir.types import NDArray, Shape

MISSING: Final = f"loading an ONNX file needs the onnx package: {install_command('onnx')}"
MAX_MESSAGE = 200


def onnx() -> Any:
    """The package. Raises `NotAvailable`, naming the extra, where it is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise NotAvailable(f"{MISSING} ({error})") from error


def parse(content: bytes) -> Any:
    """The `ModelProto` in *content*; `NotAModel` where the bytes are no such message."""
    package = onnx()
    try:
        return package.ModelProto.FromString(content)
    except Exception as error:  # noqa: BLE001  # the parser's own class differs by its version
        said = str(error).strip().splitlines()
        reason = said[0][:MAX_MESSAGE] if said else type(error).__name__
        raise NotAModel(f"the file is no ONNX model: {reason}") from None


def to_array(proto: Any) -> NDArray:
    """The value of a `TensorProto`, whose size the caller has checked; a view of its raw data."""
    found: NDArray = importlib.import_module("onnx.numpy_helper").to_array(proto)
    return found


def evaluate(
    op: str,
    version: int,
    inputs: Sequence[NDArray | None],
    outputs: int,
    attributes: Mapping[str, Any],
) -> list[NDArray]:
    """What the reference evaluator of the package computes of an operator of `ai.onnx`.

    Raises whatever the evaluator raises. The caller bounds what it allocates.
    """
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
    """The `FunctionProto` by which ONNX defines the operator of a node, given the values of its
    attributes, and the element types (numbers of the format) and shapes of its inputs; and the
    attributes' defaults. None where ONNX defines it by words only.
    """
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
    except Exception:  # noqa: BLE001  # whatever the package raises: there is no definition for this node
        return None
    return body, defaults
