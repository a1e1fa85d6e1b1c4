"""ONNX files (opset 6 and later, ai.onnx.ml) to models.

The bytes are checked before the `onnx` package parses them. The check tells whether they are a
model, and how much memory parsing takes. A parser makes an object of some hundred bytes from a
message of two bytes in the file. The memory of all messages is therefore charged first, and the
depth of nested graphs is bounded. Reference: the Protocol Buffers encoding guide; the messages of
onnx.proto.
"""

from __future__ import annotations

from typing import Any, Final

from penstock import errors, knobs
from penstock.interrupts import checkpoint
from penstock.ir.model import Model
from penstock.ir.subgraph import ConstantPool, Metadata
from penstock.loaders import MAX_NAME, MIB, room_for

MEMORY_PER_BYTE: Final = 4
MAX_DEPTH: Final = 33
"""Greatest nesting depth of graphs."""

MESSAGE_MEMORY: Final = 320
NODE_MEMORY: Final = 2700
"""Memory of a node: its message, and the operation, operand and shapes made from it."""
FIELD_MEMORY: Final = 64
MAX_VARINT: Final = 10
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

MODEL_FIELDS: Final = {
    1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 7: LENGTH, 8: LENGTH,
    14: LENGTH, 20: LENGTH, 25: LENGTH, 26: LENGTH,
}  # fmt: skip
GRAPH: Final = 7

NESTED: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 8: "leaf", 14: "leaf", 20: "leaf", 25: "function", 26: "leaf"},
    "graph": {1: "node", 5: "leaf", **dict.fromkeys(range(11, 17), "leaf")},
    "function": {7: "node", 9: "leaf", 11: "attribute", 12: "leaf", 14: "leaf"},
    "node": {5: "attribute", 9: "leaf"},
    "attribute": {5: "leaf", 6: "graph", 10: "leaf", 11: "graph", 22: "leaf", 23: "leaf"},
}  # fmt: skip
"""The fields that are messages, by kind of message. A leaf is charged for all its fields."""

NAMES: Final[dict[str, frozenset[int]]] = {
    "model": frozenset({2, 3, 4}),
    "graph": frozenset({2}),
    "function": frozenset({1, 4, 5, 6, 10}),
    "node": frozenset({1, 2, 3, 4, 7, 8}),
    "attribute": frozenset({1, 21}),
    "leaf": frozenset(),
}
"""The fields that are names, of at most `MAX_NAME` bytes. Leaves are checked after parsing."""

LEAF_SHARE: Final = 4
"""Memory of a leaf for each of its bytes. Raw data is extra: it is copied unchanged."""


class _Cursor:
    def __init__(self, data: memoryview, start: int, end: int) -> None:
        self.data, self.at, self.end = data, start, end

    def varint(self) -> int:
        value = shift = 0
        for _ in range(MAX_VARINT):
            if self.at >= self.end:
                raise errors.TruncatedModel("the file ends inside a number", offset=self.at)
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise errors.TruncatedModel("a number is longer than ten bytes", offset=self.at)

    def field(self) -> tuple[int, int, int, int]:
        """(number, wire type, start, end) of the next field's content."""
        key = self.varint()
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            start = self.at
            self.varint()
            return number, kind, start, self.at
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if size is None:
            if kind != LENGTH:
                raise errors.TruncatedModel(
                    f"wire type {kind} is not in the encoding", offset=self.at
                )
            size = self.varint()
        start = self.at
        if size > self.end - start:
            raise errors.TruncatedModel(
                f"a field of {size} bytes, of which the file has {self.end - start}", offset=start
            )
        self.at = start + size
        return number, kind, start, self.at


def _scanned(content: memoryview) -> tuple[set[int], int | None] | None:
    """(fields of a model in *content*, start of a field that is cut off); None for others."""
    if not len(content) or content[0] >> 3 not in MODEL_FIELDS:
        return None
    cursor, seen = _Cursor(content, 0, len(content)), set[int]()
    while cursor.at < cursor.end:
        begin = cursor.at
        try:
            number, kind, _, _ = cursor.field()
        except errors.TruncatedModel:
            return seen, begin
        if MODEL_FIELDS.get(number) != kind:
            return None
        seen.add(number)
    return seen, None


def recognizes(content: memoryview) -> bool:
    """Whether *content* begins like a model (maybe truncated): a version before a graph."""
    seen, cut = _scanned(content) or (set[int](), None)
    return GRAPH in seen if cut is None else 1 in seen and content[cut] >> 3 in MODEL_FIELDS


def may_begin(head: memoryview, size: int | None) -> bool:
    """Whether a file of *size* bytes (None: unknown) may be a model by its beginning, *head*."""
    if size is not None and size <= len(head):
        return recognizes(head)
    if (found := _scanned(head)) is None or found[1] is None:
        return found is not None
    cursor = _Cursor(head, found[1], len(head))
    try:
        key = cursor.varint()
    except errors.TruncatedModel:
        return cursor.end - cursor.at < MAX_VARINT
    return MODEL_FIELDS.get(key >> 3) == key & 7


def check(content: memoryview) -> None:
    """Raises `TruncatedModel`, or `LimitExceeded` for too much memory or too deep nesting."""
    left = limit = room_for(len(content))
    pending = [("model", 0, len(content), 0)]
    while pending:
        message, start, end, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise errors.LimitExceeded(
                f"graphs are nested more than {MAX_DEPTH} deep", offset=start
            )
        cursor, nested, names = _Cursor(content, start, end), NESTED[message], NAMES[message]
        while cursor.at < cursor.end:
            checkpoint()
            number, kind, first, last = cursor.field()
            target = nested.get(number) if kind == LENGTH else None
            if target == "leaf":
                left -= MESSAGE_MEMORY + LEAF_SHARE * (last - first)
            elif target is not None:
                left -= NODE_MEMORY if target == "node" else MESSAGE_MEMORY
                pending.append((target, first, last, depth + (target == "graph")))
            else:
                if number in names and kind == LENGTH and last - first > MAX_NAME:
                    raise errors.LimitExceeded(
                        f"a name of {last - first} bytes; the limit is {MAX_NAME}", offset=first
                    )
                left -= FIELD_MEMORY if kind == LENGTH else 16
            if left < 0:
                raise errors.LimitExceeded(
                    f"the file's nodes and messages would take more than {limit / MIB:.0f} MiB: "
                    "the knob loading_limit_mib allows more",
                    offset=first,
                )


def load(pool: ConstantPool) -> Model:
    """The model in *pool*. For the first defect, raises a `ModelError` subclass with the node or
    tensor. Raises `NotAvailable` if the onnx package is not installed.
    """
    from penstock.loaders.onnx.engine import parse

    check(pool.view)
    return lower(parse(bytes(pool.view)), len(pool.view))


def lower(proto: Any, size: int) -> Model:
    """The model of a parsed file of *size* bytes."""
    from penstock.loaders.onnx import graph as reading
    from penstock.loaders.onnx.engine import Budget
    from penstock.loaders.onnx.lowering import Lowering

    if not proto.HasField("graph"):
        raise errors.NotAModel("the file holds no graph")
    opsets = reading.opsets_of(proto)
    if not opsets:
        raise errors.NotAModel("the file names no opset")
    oldest, newest = reading.LEAST_OPSET, reading.NEWEST_OPSET
    opset = opsets.get(reading.AI_ONNX, oldest)
    if not oldest <= opset <= newest:
        bound = f"{oldest} is the oldest" if opset < oldest else f"{newest} is the newest"
        raise errors.NotLowerable(f"the file is of opset {opset}; {bound} that is read")
    opsets.setdefault(reading.ML, 1)
    budget = Budget(knobs.densify_limit_mib() * MIB + MEMORY_PER_BYTE * size)
    reader = reading.GraphReader(opsets, budget)
    functions: dict[tuple[str, str], reading.Function] = {}
    for function in proto.functions:
        key = reading.DOMAINS.get(function.domain, function.domain), function.name
        where = f"function {function.name!r}"
        if key in functions:
            raise errors.DuplicateWriter("two functions have this name", where=where)
        functions[key] = reader.function(function, function.attribute_proto, where)
    graph = reader.graph(proto.graph)
    lowering = Lowering(reader, functions)
    main = lowering.main(graph)
    subgraphs = [main, *(s for s in lowering.shared.subgraphs[1:] if s is not None)]
    placed, pools = lowering.shared.constants.pool(subgraphs, budget)
    metadata = Metadata(
        name=proto.graph.name,
        description=proto.doc_string,
        version=str(proto.model_version) if proto.model_version else "",
        author=proto.producer_name,
        entries={p.key: p.value.encode() for p in proto.metadata_props},
    )
    return Model(tuple(placed), pools, metadata=metadata)
