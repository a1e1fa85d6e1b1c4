"""`Model`: the frozen value that the load stage ends in and every later stage reads.

A model is a list of subgraphs over shared constant pools. Network state is explicit: a `Variable`
holds the initial value, and each entry subgraph that uses it has a `StatePort`, a state input that
brings the value before a run and a state output that carries the value after it. Whoever runs the
model feeds one back as the other; nothing inside keeps state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from penstock.arguments import check_kind
from penstock.errors import UnknownSignature
from penstock.ir.operand import Operand
from penstock.ir.operation import Operation
from penstock.ir.subgraph import (
    NO_METADATA,
    ConstantPool,
    Metadata,
    Signature,
    Subgraph,
    Variable,
    constant_array,
)
from penstock.ir.types import NDArray

if TYPE_CHECKING:
    from penstock.ir.digest import Digest


class Model(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A validated network. Construction checks everything `penstock.ir.validate` lists and raises a
    `ModelError` naming the first defect; a `Model` that exists is valid.

    *main* is the index of the entry subgraph; the others are referenced by control flow, or are
    the entries of other signatures. Models are equal when their digests are.
    """

    subgraphs: tuple[Subgraph, ...]
    pools: tuple[ConstantPool, ...] = ()
    variables: tuple[Variable, ...] = ()
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    metadata: Metadata = NO_METADATA
    main: int = 0

    def __post_init__(self) -> None:
        from penstock.ir.validate import validate

        force_setattr(self, "signatures", MappingProxyType(dict(self.signatures)))
        validate(self)

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
        """The inputs a caller gives (state inputs left out), in order."""
        entry = self.entry
        return tuple(entry.operands[i] for i in entry.ordinary_inputs)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The outputs a caller gets (state outputs left out), in order."""
        entry = self.entry
        return tuple(entry.operands[i] for i in entry.ordinary_outputs)

    @property
    def digest(self) -> Digest:
        """SHA-256 of structure and of constants (`penstock.ir.digest`); computed once."""
        # `cached_property` of Python 3.11 holds one lock for all models meanwhile, also in a forked
        # child.
        known: Digest | None = self.__dict__.get("_digest")
        if known is None:
            from penstock.ir.digest import digest_model

            known = self.__dict__["_digest"] = digest_model(self)
        return known

    def constant(self, operand: Operand) -> NDArray:
        """The value of a constant operand: a read-only array of its dtype and shape.

        Views the pool where the layout allows (whole-byte types); packed types are unpacked to
        one element a byte, strings to an object array of bytes.
        """
        check_kind(operand, Operand, "the value of an Operand is asked for")
        return constant_array(self.pools, operand)

    def signature_model(self, name: str) -> Model:
        """The same model, entered through signature *name* (`UnknownSignature` lists the known
        ones).
        """
        check_kind(name, str, "a signature is named by text")
        if name not in self.signatures:
            known = ", ".join(map(repr, self.signatures)) or "none"
            raise UnknownSignature(f"no signature {name!r}; the model has {known}")
        subgraph = self.signatures[name].subgraph
        return self if subgraph == self.main else replace(self, main=subgraph)

    def show(self) -> str:
        """A readable listing of the model, stable enough to diff."""
        from penstock.ir.show import show_model

        return show_model(self, self.digest.structure.hex()[:16])

    def __repr__(self) -> str:
        from penstock.ir.show import line_of

        return line_of(self)

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        from penstock.ir.show import html_of

        return html_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (
            self.subgraphs,
            self.pools,
            self.variables,
            dict(self.signatures),
            self.metadata,
            self.main,
        )
        return Model, fields
