"""Models as values that msgspec encodes, without the bytes of their constant pools.

Only for encodings that are authenticated before they are decoded: a restored model is not validated
again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from penstock.ir.model import Model, restored
from penstock.ir.operation import Attributes, AttributeValue
from penstock.ir.subgraph import ConstantPool, Metadata, Signature, Subgraph, Variable
from penstock.ir.types import Quantization


class Channels(Struct, frozen=True, array_like=True):
    """The `Quantization` of an operand with one scale for each channel, as packed numbers.

    *scales* are of the type *code* of the module `array`, *zero_points* 32-bit integers, in the
    order of bytes of this machine. No bytes of *zero_points* are all zeros.
    """

    subgraph: int
    operand: int
    dimension: int
    code: Literal["f", "d"]
    scales: bytes
    zero_points: bytes


class ModelForm(Struct, frozen=True, array_like=True):
    """A `Model` whose *pools* are numbers, with its digests *structure* and *constants*.

    The operands in *channels* have their quantisation there: a network has tens of thousands of
    scales. A digest is empty if it was not known.
    """

    subgraphs: tuple[Subgraph, ...]
    channels: tuple[Channels, ...]
    pools: tuple[int, ...]
    variables: tuple[Variable, ...]
    signatures: dict[str, Signature]
    metadata: Metadata
    main: int
    structure: bytes
    constants: bytes


def form_of(model: Model, number: Callable[[ConstantPool], int]) -> ModelForm:
    """The form of *model*; *number* gives the number of each of its pools."""
    channels: list[Channels] = []
    subgraphs = tuple(_packed(s, at, channels) for at, s in enumerate(model.subgraphs))
    return ModelForm(
        subgraphs,
        tuple(channels),
        tuple(map(number, model.pools)),
        model.variables,
        dict(model.signatures),
        model.metadata,
        model.main,
        *model.known_digests,
    )


def model_of(form: ModelForm, pools: Sequence[ConstantPool]) -> Model:
    """The model of *form*. It is not checked: *form* must be of a valid model with *pools*."""
    for each in form.channels:
        operand = form.subgraphs[each.subgraph].operands[each.operand]
        force_setattr(operand, "quantization", _quantization(each))
    return restored(
        form.subgraphs,
        tuple(pools[number] for number in form.pools),
        form.variables,
        form.signatures,
        form.metadata,
        form.main,
        (form.structure, form.constants),
    )


def _packed(subgraph: Subgraph, at: int, channels: list[Channels]) -> Subgraph:
    """*subgraph* without the quantisation by channels, which is appended to *channels*."""
    operands = list(subgraph.operands)
    for index, operand in enumerate(operands):
        quantization = operand.quantization
        if quantization is None or quantization.dimension is None:
            continue
        scales, points = quantization.scales, quantization.zero_points
        singles = array("f", scales)
        code: Literal["f", "d"] = "f" if singles.tolist() == list(scales) else "d"
        packed = (singles if code == "f" else array("d", scales)).tobytes()
        integers = array("i", points).tobytes() if any(points) else b""
        channels.append(Channels(at, index, quantization.dimension, code, packed, integers))
        operands[index] = replace(operand, quantization=None)
    return replace(subgraph, operands=tuple(operands))


def _quantization(channels: Channels) -> Quantization:
    scales = array(channels.code, channels.scales).tolist()
    points = array("i", channels.zero_points).tolist() or [0] * len(scales)
    return Quantization(tuple(scales), tuple(points), channels.dimension)


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
