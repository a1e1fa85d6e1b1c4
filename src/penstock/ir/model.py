"""`Model`: the immutable result of loading, which every later stage reads.

A model is a list of subgraphs over shared constant pools. Network state is explicit. A `Variable`
has the initial value. Each entry subgraph that uses it has a `StatePort`: a state input with the
value before a run, and a state output with the value after the run. The caller that runs the model
passes each state output to the next run as its state input. The model itself stores no state.

A model can be shown as a listing for line-by-line comparison, as one line, or as an HTML table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from penstock.arguments import check_kind
from penstock.errors import UnknownSignature, counted
from penstock.ir.operand import Lifetime, Operand, plain_dimensions
from penstock.ir.operation import AttributeValue, Operation
from penstock.ir.subgraph import (
    NO_METADATA,
    ConstantPool,
    Metadata,
    ModelParts,
    Signature,
    Subgraph,
    Variable,
    constant_array,
)
from penstock.ir.types import NDArray, Shape

if TYPE_CHECKING:
    from penstock.ir.form import Digest


class Model(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A validated network. The constructor checks everything that `penstock.ir.validate` lists, and
    raises a `ModelError` that names the first defect. A `Model` that exists is therefore valid.

    *main* is the index of the entry subgraph. Control flow refers to the other subgraphs, or they
    are the entries of other signatures. Models are equal if their digests are.
    """

    subgraphs: tuple[Subgraph, ...]
    pools: tuple[ConstantPool, ...] = ()
    variables: tuple[Variable, ...] = ()
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    metadata: Metadata = NO_METADATA
    main: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "signatures", MappingProxyType(dict(self.signatures)))
        if type(self.subgraphs) is _Unchecked:
            return
        from penstock.ir.validate import validate

        validate(self)

    @property
    def file(self) -> ConstantPool | None:
        """The content of the file that the model is all of; None for a model made in another way.

        A model that was derived from it, for example entered through another signature, has none.
        """
        return self.__dict__.get("_file")

    def is_all_of(self, file: ConstantPool) -> Model:
        """Records that *file*, one of the pools, is the `file`; returns the model itself."""
        self.__dict__["_file"] = file
        return self

    @property
    def entry(self) -> Subgraph:
        """The entry subgraph."""
        return self.subgraphs[self.main]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Operands of the entry subgraph."""
        return self.entry.operands

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations of the entry subgraph."""
        return self.entry.operations

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The inputs that a caller passes, in order, without state inputs."""
        entry = self.entry
        return tuple(entry.operands[i] for i in entry.ordinary_inputs)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The outputs that a caller receives, in order, without state outputs."""
        entry = self.entry
        return tuple(entry.operands[i] for i in entry.ordinary_outputs)

    @property
    def digest(self) -> Digest:
        """SHA-256 of structure and of constants (`penstock.ir.digest`); computed once."""
        # `cached_property` of Python 3.11 uses one lock for all models, which a forked child may
        # inherit locked.
        known: Digest | None = self.__dict__.get("_digest")
        if known is None:
            from penstock.ir.digest import digest_model

            known = self.__dict__["_digest"] = digest_model(self)
        return known

    @property
    def structure(self) -> bytes:
        """The `structure` of `digest`, 32 bytes; computed once. No constant is read."""
        known: bytes = self.known_digests[0]
        if not known:
            from penstock.ir.digest import digest_structure

            known = self.__dict__["_structure"] = digest_structure(self)
        return known

    @property
    def known_digests(self) -> tuple[bytes, bytes]:
        """The digests of structure and of constants as far as they are computed, else empty."""
        digest: Digest | None = self.__dict__.get("_digest")
        if digest is not None:
            return digest.structure, digest.constants
        return self.__dict__.get("_structure", b""), b""

    def constant(self, operand: Operand) -> NDArray:
        """The value of a constant operand: a read-only array of its dtype and shape.

        It is a view of the pool if the layout allows (whole-byte types). Packed types are unpacked
        to one element per byte, strings to an object array of bytes.
        """
        check_kind(operand, Operand, "the value of an Operand is asked for")
        return constant_array(self.pools, operand)

    def signature_model(self, name: str) -> Model:
        """The same model, entered through signature *name*. The text of `UnknownSignature` lists
        the names.
        """
        check_kind(name, str, "a signature is named by text")
        if name not in self.signatures:
            known = ", ".join(map(repr, self.signatures)) or "none"
            raise UnknownSignature(f"no signature {name!r}; the model has {known}")
        subgraph = self.signatures[name].subgraph
        return self if subgraph == self.main else replace(self, main=subgraph)

    def with_entry(self, entry: Subgraph, **changes: Any) -> Model:
        """The same model with another entry subgraph, and with *changes* of other fields."""
        subgraphs = (*self.subgraphs[: self.main], entry, *self.subgraphs[self.main + 1 :])
        return replace(self, subgraphs=subgraphs, **changes)

    def show(self) -> str:
        """A readable listing of the model, stable enough to diff."""
        return show_model(self, self.digest.structure.hex()[:16])

    def __repr__(self) -> str:
        return line_of(self)

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        return html_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        signatures = dict(self.signatures)
        parts = (self.subgraphs, self.pools, self.variables, signatures, self.metadata, self.main)
        return Model, parts


def restored(
    subgraphs: tuple[Subgraph, ...],
    pools: tuple[ConstantPool, ...],
    variables: tuple[Variable, ...],
    signatures: Mapping[str, Signature],
    metadata: Metadata,
    main: int,
    digests: tuple[bytes, bytes],
) -> Model:
    """The model with these parts, which must be those of a valid model: they are not validated.

    *digests* are those of structure and of constants; empty if they are not known.
    """
    model = Model(_UNCHECKED)
    proxy = MappingProxyType(dict(signatures))
    for name, value in zip(
        Model.__struct_fields__,
        (subgraphs, pools, variables, proxy, metadata, main),
        strict=True,
    ):
        force_setattr(model, name, value)
    structure, constants = digests
    if structure and constants:
        from penstock.ir.form import Digest

        model.__dict__["_digest"] = Digest(structure, constants)
    elif structure:
        model.__dict__["_structure"] = structure
    return model


class _Unchecked(tuple[Subgraph, ...]):
    """The subgraphs of a model that is not validated, until it gets its own."""

    __slots__ = ()


_UNCHECKED: Final = _Unchecked()


def show_model(model: ModelParts, digest: str) -> str:
    """The listing: variables, then each subgraph with its operations. Constants are shown by shape,
    without their values.
    """
    lines = [f"model {digest}"]
    for index, variable in enumerate(model.variables):
        lines.append(
            f"  variable {index} {variable.name!r}: "
            f"{variable.dtype.value}{show_shape(variable.shape)}"
            + ("" if variable.assigned else ", unassigned")
        )
    for name, signature in model.signatures.items():
        lines.append(f"  signature {name!r}: subgraph {signature.subgraph}")
    for index, subgraph in enumerate(model.subgraphs):
        mark = " (main)" if index == model.main else ""
        lines.append(f"subgraph {index} {subgraph.name!r}{mark}")
        lines += _subgraph(subgraph)
    return "\n".join(lines) + "\n"


MAX_LINE: Final = 120
"""Greatest length of `repr(model)`, in characters."""
MAX_CELL: Final = 200
"""Greatest length of one cell of an HTML table, in characters."""
MAX_ROWS: Final = 50
"""Greatest number of rows of an HTML table."""


def line_of(model: ModelParts) -> str:
    """The model in one line: `<Model 'net': 66 operations, float32[1, 3] -> float32[1, 10]>`."""
    entry = model.subgraphs[model.main]
    ends = [
        ", ".join(show_operand(entry.operands[i]) for i in islice(indexes, MAX_LINE)) or "nothing"
        for indexes in (entry.ordinary_inputs, entry.ordinary_outputs)
    ]
    operations = counted(len(entry.operations), "operation")
    text = f"<Model {entry.name[:MAX_LINE]!r}: {operations}, {ends[0]} -> {ends[1]}"
    return shortened(text, MAX_LINE - 1) + ">"


def html_of(model: ModelParts) -> str:
    """The model as an HTML table: inputs, outputs, and the number of operations of each type."""
    entry = model.subgraphs[model.main]
    types = Counter(operation.key for operation in entry.operations)
    ends = (("input", entry.ordinary_inputs), ("output", entry.ordinary_outputs))
    rows = [
        (f"{kind} {at}", f"{entry.operands[index].name} {show_operand(entry.operands[index])}")
        for kind, indexes in ends
        for at, index in enumerate(indexes[:MAX_ROWS])
    ]
    rows += [(key, f"{count} x") for key, count in types.most_common()]
    operations = counted(len(entry.operations), "operation")
    return html_table(f"Model {entry.name!r}: {operations}", rows)


def html_table(title: str, rows: Sequence[Iterable[str]]) -> str:
    """An HTML table for notebooks. Every text is escaped; long texts and tables are cut."""
    lines = [f"<caption>{_cell(title)}</caption>"]
    for row in rows[:MAX_ROWS]:
        first, *rest = map(_cell, row)
        lines.append(f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>")
    if len(rows) > MAX_ROWS:
        lines.append(f"<tr><th>and {len(rows) - MAX_ROWS} more</th></tr>")
    return "<table>" + "".join(lines) + "</table>"


def shortened(text: str, length: int) -> str:
    """*text* with at most *length* characters; a longer text is cut and ends in "..."."""
    return text if len(text) <= length else text[: length - 3] + "..."


def _cell(text: str) -> str:
    from html import escape

    printable = "".join(c if c.isprintable() else "\ufffd" for c in text[: 2 * MAX_CELL])
    return escape(shortened(printable, MAX_CELL))


def show_shape(shape: Shape) -> str:
    """`[1, ?, 3]`; `[...]` for an unknown rank."""
    if shape is None:
        return "[...]"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def show_operand(operand: Operand) -> str:
    """`float32[1, ?, 3]`, with the scale and zero point of a quantised operand; an operand of an
    extension as `com.example.fibonacci:1[10] of 8 bytes, data <16 bytes>`.
    """
    if operand.extension is not None:
        kind = operand.extension
        data = f", data <{len(kind.data)} bytes>" if kind.data else ""
        dimensions = show_shape(plain_dimensions(operand))
        return f"{kind.name}{dimensions} of {kind.byte_size} bytes{data}"
    text = operand.dtype.value + show_shape(operand.shape)
    q = operand.quantization
    if q is None:
        return text
    if q.dimension is not None:
        return f"{text} per channel {q.dimension}"
    return f"{text} ({q.scale:.6g}, {q.zero_point})"


def _subgraph(subgraph: Subgraph) -> list[str]:
    def ends(kind: str, indexes: Iterable[int]) -> list[str]:
        operands = ((i, subgraph.operands[i]) for i in indexes)
        return [f"  {kind} %{i} {o.name!r}: {show_operand(o)}" for i, o in operands]

    states = [
        f"  state  variable {port.variable}: "
        + " -> ".join("-" if i is None else f"%{i}" for i in (port.input, port.output))
        for port in subgraph.states
    ]
    return [
        *ends("input ", subgraph.ordinary_inputs),
        *states,
        *(_operation(subgraph, operation) for operation in subgraph.operations),
        *ends("output", subgraph.ordinary_outputs),
    ]


def _operation(subgraph: Subgraph, operation: Operation) -> str:
    def reference(index: int) -> str:
        operand = subgraph.operands[index]
        if operand.lifetime is Lifetime.NO_VALUE:
            return "-"
        return show_operand(operand) if operand.is_constant else f"%{index}"

    def value(given: AttributeValue) -> str:
        return f"<{len(given)} bytes>" if isinstance(given, bytes) else str(given)

    results = ", ".join(f"%{i}: {show_operand(subgraph.operands[i])}" for i in operation.outputs)
    arguments = ", ".join(map(reference, operation.inputs))
    attributes = ", ".join(f"{k}={value(v)}" for k, v in operation.attributes.items())
    suffix = f" {{{attributes}}}" if attributes else ""
    return f"  {results} = {operation.type}({arguments}){suffix}"
