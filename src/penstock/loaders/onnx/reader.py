"""An ONNX file to a `Model`."""

from __future__ import annotations

from typing import Any, Final

from penstock import knobs
from penstock.errors import DuplicateWriter, NotAModel, NotLowerable
from penstock.ir.model import Model
from penstock.ir.subgraph import ConstantPool, Metadata
from penstock.loaders.onnx import wire

MIB: Final = 1 << 20
MEMORY_PER_BYTE: Final = 4


def load(pool: ConstantPool) -> Model:
    """The model in *pool*. Raises the `ModelError` subclass of the first defect, with its node or
    tensor, and `NotAvailable` where the onnx package is not installed.
    """
    from penstock.loaders.onnx.engine import parse

    wire.check(pool.view)
    return lower(parse(bytes(pool.view)), len(pool.view))


def lower(proto: Any, size: int) -> Model:
    """The model of a parsed file of *size* bytes."""
    from penstock.loaders.onnx.engine import Budget
    from penstock.loaders.onnx.graph import (
        AI_ONNX,
        DOMAINS,
        LEAST_OPSET,
        ML,
        NEWEST_OPSET,
        Function,
        GraphReader,
    )
    from penstock.loaders.onnx.lowering import Lowering

    if not proto.HasField("graph"):
        raise NotAModel("the file holds no graph")
    opsets = {DOMAINS.get(o.domain, o.domain): int(o.version) for o in proto.opset_import}
    if not opsets:
        raise NotAModel("the file names no opset")
    if AI_ONNX in opsets and opsets[AI_ONNX] < LEAST_OPSET:
        raise NotLowerable(
            f"the file is of opset {opsets[AI_ONNX]}; {LEAST_OPSET} is the oldest that is read"
        )
    if opsets.get(AI_ONNX, 0) > NEWEST_OPSET:
        raise NotLowerable(
            f"the file is of opset {opsets[AI_ONNX]}; {NEWEST_OPSET} is the newest that is read"
        )
    opsets.setdefault(ML, 1)
    budget = Budget(knobs.densify_limit_mib() * MIB + MEMORY_PER_BYTE * size)
    reader = GraphReader(opsets, budget)
    functions: dict[tuple[str, str], Function] = {}
    for function in proto.functions:
        key = DOMAINS.get(function.domain, function.domain), function.name
        if key in functions:
            raise DuplicateWriter(
                "two functions have this name", where=f"function {function.name!r}"
            )
        known = {DOMAINS.get(o.domain, o.domain): int(o.version) for o in function.opset_import}
        where = f"function {function.name!r}"
        defaults = {a.name: reader.attribute(a, where) for a in function.attribute_proto}
        functions[key] = Function(
            tuple(function.input), tuple(function.output), function, {**opsets, **known}, defaults
        )
    graph = reader.graph(proto.graph)
    lowering = Lowering(reader, functions)
    main = lowering.main(graph)
    subgraphs = [main, *(s for s in lowering.shared.subgraphs[1:] if s is not None)]
    placed, pools = lowering.shared.constants.pool(subgraphs, budget)
    return Model(tuple(placed), pools, metadata=_metadata(proto))


def _metadata(proto: Any) -> Metadata:
    return Metadata(
        name=proto.graph.name,
        description=proto.doc_string,
        version=str(proto.model_version) if proto.model_version else "",
        author=proto.producer_name,
        entries={p.key: p.value.encode() for p in proto.metadata_props},
    )
