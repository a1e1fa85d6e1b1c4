"""Models as values that msgspec encodes, without the bytes of their constant pools.

Only for encodings that are authenticated before they are decoded: a restored model is not validated
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from penstock.ir.model import Model, restored
from penstock.ir.operation import Attributes, AttributeValue
from penstock.ir.subgraph import ConstantPool, Metadata, Signature, Subgraph, Variable


class ModelForm(Struct, frozen=True, array_like=True):
    """A `Model` whose *pools* are numbers, with its digests *structure* and *constants*.

    A digest is empty if it was not known.
    """

    subgraphs: tuple[Subgraph, ...]
    pools: tuple[int, ...]
    variables: tuple[Variable, ...]
    signatures: dict[str, Signature]
    metadata: Metadata
    main: int
    structure: bytes
    constants: bytes


def form_of(model: Model, number: Callable[[ConstantPool], int]) -> ModelForm:
    """The form of *model*; *number* gives the number of each of its pools."""
    return ModelForm(
        model.subgraphs,
        tuple(map(number, model.pools)),
        model.variables,
        dict(model.signatures),
        model.metadata,
        model.main,
        *model.known_digests,
    )


def model_of(form: ModelForm, pools: Sequence[ConstantPool]) -> Model:
    """The model of *form*. It is not checked: *form* must be of a valid model with *pools*."""
    return restored(
        form.subgraphs,
        tuple(pools[number] for number in form.pools),
        form.variables,
        form.signatures,
        form.metadata,
        form.main,
        (form.structure, form.constants),
    )


def encode_hook(value: object) -> object:
    """Encodes `Attributes`, and mappings that cannot be changed, as dictionaries.

    Raises `TypeError` for any other type.
    """
    if isinstance(value, Attributes | MappingProxyType):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be encoded")


def decode_hook(kind: Any, value: object) -> object:
    """Decodes `Attributes`. Raises `TypeError` for other types, and for invalid attributes."""
    if kind is Attributes:
        return attributes_of(value)
    raise TypeError(f"a {kind} cannot be decoded")


def attributes_of(value: object) -> Attributes:
    """The attributes in a decoded *value*. Raises `TypeError` if it has none, or invalid ones."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} for attributes")
    if wrong := [name for name in value if not isinstance(name, str)]:
        raise TypeError(f"the attribute name {wrong[0]!r}")
    return Attributes({name: _attribute(v) for name, v in value.items()})


def _attribute(value: object) -> AttributeValue:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case list() if all(type(v) in {int, float} for v in value):
            return tuple(value)
    raise TypeError(f"an attribute of type {type(value).__name__}")
