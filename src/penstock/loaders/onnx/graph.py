"""The content of a file: graphs, nodes with typed attributes, initialisers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from penstock import errors
from penstock.interrupts import checkpoint
from penstock.ir.types import DType, NDArray, Shape
from penstock.loaders import MAX_NAME
from penstock.loaders.onnx.engine import Budget, dtype_of, read_sparse, read_tensor

Attribute: TypeAlias = Any
"""The value of an attribute: int, float, bytes, array, `Graph`, or a list of them."""

AI_ONNX: Final = ""
ML: Final = "ai.onnx.ml"
DOMAINS: Final = {"": AI_ONNX, "ai.onnx": AI_ONNX, "ai.onnx.ml": ML}
LEAST_OPSET: Final = 6

NEWEST_OPSET: Final = 28
"""The newest opset of `ai.onnx` that the loader supports."""

MAX_NODES: Final = 200_000
UNDEFINED: Final = 0
SHOWN: Final = 40
"""Greatest length of a name quoted in an error, in characters."""


class Tensor(Struct, frozen=True):
    """The declaration of an input or output. *dtype* is None if it is no tensor."""

    name: str
    dtype: DType | None
    shape: Shape
    kind: str = "tensor"


class Node(Struct):
    """One node. Errors identify it by *where*."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]
    version: int
    where: str
    index: int
    proto: Any = None
    """The message that the node was read from."""

    @property
    def key(self) -> str:
        return f"{self.domain}.{self.op}" if self.domain else self.op

    def has(self, name: str) -> bool:
        return name in self.attributes

    def _get(self, name: str, default: Any, kinds: type | tuple[type, ...], what: str) -> Any:
        value = self.attributes.get(name, default)
        if value is None:
            raise errors.InvalidAttribute(f"the attribute {name!r} is missing", where=self.where)
        if value is not default and not isinstance(value, kinds):
            raise errors.InvalidAttribute(f"the attribute {name!r} is no {what}", where=self.where)
        return value

    def _list(self, name: str, default: Any, kinds: type | tuple[type, ...], what: str) -> Any:
        value = self._get(name, default, list, f"list of {what}")
        if all(isinstance(v, kinds) for v in value):
            return value
        text = f"the attribute {name!r} is no list of {what}"
        raise errors.InvalidAttribute(text, where=self.where)

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._get(name, default, int, "integer"))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._get(name, default, (float, int), "number"))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default, (bytes, str), "string")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return tuple(self._list(name, default, int, "integers"))

    def numbers(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        return tuple(float(v) for v in self._list(name, default, (int, float), "numbers"))

    def strings(self, name: str, default: tuple[bytes, ...] | None = None) -> tuple[bytes, ...]:
        return tuple(self._list(name, default, bytes, "strings"))

    def graph(self, name: str) -> Graph:
        value: Graph = self._get(name, None, Graph, "graph")
        return value

    def refuse(self, reason: str) -> errors.NotLowerable:
        """The error that this node is not supported, for the caller to raise."""
        return errors.NotLowerable(reason, where=self.where)

    def invalid(self, reason: str) -> errors.InvalidOperation:
        """The error that this node is invalid, for the caller to raise."""
        return errors.InvalidOperation(reason, where=self.where)


class Graph(Struct):
    """One graph: declared inputs and outputs, constants by name, and nodes in order."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    constants: dict[str, NDArray]
    nodes: list[Node]
    later: dict[str, int] = field(default_factory=dict)
    """The position of the node that writes each name."""


def opsets_of(proto: Any) -> dict[str, int]:
    return {DOMAINS.get(o.domain, o.domain): int(o.version) for o in proto.opset_import}


class Function(Struct, frozen=True):
    """A function of the model. Nodes whose operator has its name call it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: Any
    opsets: Mapping[str, int]
    defaults: dict[str, Attribute]


class GraphReader:
    """Reads graphs for one set of opset versions: at most `MAX_NODES` nodes in all graphs."""

    def __init__(self, opsets: Mapping[str, int], budget: Budget) -> None:
        self.opsets, self.budget = dict(opsets), budget
        self.nodes_left = MAX_NODES

    def function(self, proto: Any, defaults: Iterable[Any], where: str) -> Function:
        """The function in *proto*, with the *defaults* of its attributes."""
        values = {a.name: self.attribute(a, where) for a in defaults}
        opsets = {**self.opsets, **opsets_of(proto)}
        return Function(tuple(proto.input), tuple(proto.output), proto, opsets, values)

    def graph(self, proto: Any, place: str = "") -> Graph:
        """The graph in *proto*. Errors identify it by *place*."""
        sparse = [s.values for s in proto.sparse_initializer]
        named = chain(proto.initializer, sparse, proto.input, proto.output, proto.value_info)
        for item in named:
            if len(item.name) > MAX_NAME:
                raise errors.LimitExceeded(
                    f"a name of {len(item.name)} characters; the limit is {MAX_NAME}",
                    where=f"{item.name[:SHOWN]!r}...",
                )
        constants: dict[str, NDArray] = {}
        tensors = [(t.name, t, read_tensor) for t in proto.initializer]
        tensors += [(s.values.name, s, read_sparse) for s in proto.sparse_initializer]
        for name, tensor, read in tensors:
            kind = "initializer" if read is read_tensor else "sparse initializer"
            where = f"{place}{kind} {name!r}"
            if name in constants:
                raise errors.DuplicateWriter("a second value of this name", where=where)
            constants[name] = read(tensor, where, self.budget)
            if read is read_tensor:
                tensor.ClearField("raw_data")
        inputs = [_declared(v, f"{place}input {v.name!r}") for v in proto.input]
        outputs = [_declared(v, f"{place}output {v.name!r}") for v in proto.output]
        for kind, ends in (("inputs", inputs), ("outputs", outputs)):
            if len({t.name for t in ends}) != len(ends):
                where = place.rstrip(", ") or "the graph"
                raise errors.DuplicateWriter(f"two {kind} have one name", where=where)
        found = Graph(proto.name, inputs, outputs, constants, [])
        self.read_nodes(proto.node, found, place)
        return found

    def read_nodes(
        self, protos: Any, into: Graph, place: str, given: dict[str, Any] | None = None
    ) -> None:
        """Appends the nodes of a graph or function, with the attributes *given* in a call."""
        written = {t.name for t in into.inputs} | into.constants.keys()
        for index, proto in enumerate(protos):
            checkpoint()
            self.nodes_left -= 1
            if self.nodes_left < 0:
                raise errors.InvalidOperation(f"the model has more than {MAX_NODES} nodes")
            node = self.node(proto, index, place, given or {})
            for name in node.outputs:
                if not name:
                    continue
                if name in written or name in into.later:
                    raise errors.DuplicateWriter(
                        f"writes {name!r}, which has another writer", where=node.where
                    )
                into.later[name] = index
            into.nodes.append(node)

    def node(self, proto: Any, index: int, place: str, given: dict[str, Any]) -> Node:
        domain = DOMAINS.get(proto.domain, proto.domain)
        version = self.opsets.get(domain, 0)
        label = f" {proto.name!r}" if proto.name else ""
        where = (
            f"{place}node {index}{label} ({domain or 'ai.onnx'}.{proto.op_type}, opset {version})"
        )
        attributes: dict[str, Attribute] = {}
        for attribute in proto.attribute:
            if attribute.name in attributes:
                raise errors.InvalidAttribute(
                    f"the attribute {attribute.name!r} is given twice", where=where
                )
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in given:
                    attributes[attribute.name] = given[attribute.ref_attr_name]
                continue
            attributes[attribute.name] = self.attribute(attribute, where)
        return Node(
            proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output),
            attributes, version, where, index, proto,
        )  # fmt: skip

    def attribute(self, proto: Any, where: str) -> Attribute:
        # An old file does not declare the type.
        held = (BY_FIELD[field.name] for field, _ in proto.ListFields() if field.name in BY_FIELD)
        kind = proto.type or next(held, UNDEFINED)
        if kind not in KINDS:
            raise errors.InvalidAttribute(
                f"the attribute {proto.name!r} is of type {kind}", where=where
            )
        field, read = KINDS[kind]
        place = f"{where}, attribute {proto.name!r}"

        def value(item: Any) -> Attribute:
            if read is Graph:
                return self.graph(item, f"{where}, {proto.name}: ")
            if read in (float, int, bytes):
                return read(item)
            return read(item, place, self.budget)

        found = getattr(proto, field)
        return value(found) if kind in SINGLE else [*map(value, found)]


KINDS: Final[dict[int, tuple[str, Any]]] = {
    1: ("f", float), 2: ("i", int), 3: ("s", bytes), 4: ("t", read_tensor), 5: ("g", Graph),
    6: ("floats", float), 7: ("ints", int), 8: ("strings", bytes), 9: ("tensors", read_tensor),
    10: ("graphs", Graph), 11: ("sparse_tensor", read_sparse),
}  # fmt: skip
"""The field with the value, and its reader, for each `AttributeProto.AttributeType`."""
SINGLE: Final = (1, 2, 3, 4, 5, 11)
BY_FIELD: Final = {name: kind for kind, (name, _) in KINDS.items()}


def _declared(proto: Any, where: str) -> Tensor:
    kind = proto.type.WhichOneof("value")
    if kind is None:
        return Tensor(proto.name, None, None, "none")
    if kind != "tensor_type":
        return Tensor(proto.name, None, None, kind.removesuffix("_type"))
    tensor = proto.type.tensor_type
    dtype = dtype_of(tensor.elem_type, where) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Tensor(proto.name, dtype, None)
    shape: list[int | None] = []
    for dim in tensor.shape.dim:
        known = dim.HasField("dim_value") and dim.dim_value >= 0
        shape.append(int(dim.dim_value) if known else None)
        if known and dim.dim_value > 2**31 - 1:
            raise errors.IndexOutOfRange(f"a dimension of {dim.dim_value}", where=where)
    return Tensor(proto.name, dtype, tuple(shape))
