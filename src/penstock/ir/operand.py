"""`Operand`: a typed slot for a value, and where its value lives (NNAPI section 6.1).

Vendor extensions (NNAPI section 8.6) name operations and operand types that their vendor alone
defines. An extension operation is an `Operation` of the type EXTENSION: its attributes name the
extension and the number of the operation in it. An operand of an extension type is a uint8 array:
the bytes of an element are its last dimension, and `Operand.extension` says which type it is.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from msgspec import Struct

from penstock.ir.types import DType, Quantization, Shape

EXTENSION: Final = "EXTENSION"
"""The type of every extension operation."""

MAX_CODE: Final = 0xFFFF
"""The largest number of an operation, operand type or attribute within its extension: they have 16
bits.
"""

MAX_NAME: Final = 255
"""Characters of an extension's name."""

MAX_DATA: Final = 1 << 20
"""Bytes of an operand's extension data, and of an attribute's value."""

MAX_ELEMENT: Final = (1 << 32) - 1
"""Bytes of one element of an extension's type."""

_NAME: Final = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")


class ExtensionType(Struct, frozen=True):
    """What an operand of an extension's type is: type number *code* of the *extension*, *byte_size*
    bytes an element.

    A scalar (*is_tensor* False) has the shape (byte_size,), a tensor its dimensions and byte_size
    behind them. *data* is what belongs to the operand beside its value, such as the parameters of a
    quantisation: bytes that the driver alone understands.
    """

    extension: str
    code: int
    byte_size: int
    is_tensor: bool = True
    data: bytes = b""

    @property
    def name(self) -> str:
        """`com.example.fibonacci:1`."""
        return f"{self.extension}:{self.code}"

    def shape(self, dimensions: Shape) -> Shape:
        """The shape of the operand whose dimensions are these; an unknown rank stays one."""
        return None if dimensions is None else (*dimensions, self.byte_size)


def name_fault(name: object) -> str:
    """What is wrong with the name of an extension; empty for a reversed domain name such as
    `com.example.fibonacci`.

    Lower-case letters, digits and underscores, in at least two words with dots between (NNAPI
    section 5.2).
    """
    if not isinstance(name, str):
        return f"the name of an extension is text, not {type(name).__name__}"
    if len(name) > MAX_NAME:
        return f"the name of an extension has {len(name)} characters; {MAX_NAME} are possible"
    if _NAME.fullmatch(name) is None:
        return (
            f"{name!r} is no extension's name: a reversed domain name in lower-case letters, "
            "digits, underscores and dots "
            "(com.example.fibonacci)"
        )
    return ""


def code_fault(code: object, what: str) -> str:
    """What is wrong with a number within an extension; empty where it has 16 bits."""
    if type(code) is not int or not 0 <= code <= MAX_CODE:
        return f"{what} is {code!r}; 0 to {MAX_CODE} are possible"
    return ""


def type_fault(kind: ExtensionType) -> str:
    """What is wrong with *kind*, whose fields have the types that they are declared with; empty
    where nothing is.
    """
    if fault := name_fault(kind.extension) or code_fault(kind.code, "the number of a type"):
        return fault
    if type(kind.byte_size) is not int or not 0 < kind.byte_size <= MAX_ELEMENT:
        return f"an element has {kind.byte_size!r} bytes; 1 to {MAX_ELEMENT} are possible"
    if len(kind.data) > MAX_DATA:
        return f"{len(kind.data)} bytes of extension data; the limit is {MAX_DATA}"
    return ""


def extension_key(extension: str, code: int) -> str:
    """The key of an extension operation: `EXTENSION:com.example.fibonacci:0`."""
    return f"{EXTENSION}:{extension}:{code}"


def split_key(key: str) -> tuple[str, int] | None:
    """The extension and number of a key of `extension_key`; None for other texts."""
    kind, _, rest = key.partition(":")
    name, _, code = rest.rpartition(":")
    if kind != EXTENSION or name_fault(name) or not code.isascii() or not code.isdecimal():
        return None
    number = int(code) if len(code) <= len(str(MAX_CODE)) else MAX_CODE + 1
    return (name, number) if number <= MAX_CODE and str(number) == code else None


MAX_COPIED_VALUE: Final = 128
"""Constants up to this many bytes are held in the model itself (NNAPI section 1.1)."""


class Lifetime(enum.Enum):
    """Who writes an operand, and when. A subgraph output that is also an input or a constant keeps
    that lifetime.
    """

    TEMPORARY_VARIABLE = "temporary"
    SUBGRAPH_INPUT = "input"
    SUBGRAPH_OUTPUT = "output"
    CONSTANT_COPY = "constant_copy"
    CONSTANT_POOL = "constant_pool"
    NO_VALUE = "no_value"

    __hash__ = object.__hash__

    @property
    def is_constant(self) -> bool:
        return self is Lifetime.CONSTANT_COPY or self is Lifetime.CONSTANT_POOL


class DataLocation(Struct, frozen=True):
    """*length* bytes at *offset* of pool number *pool*."""

    pool: int
    offset: int
    length: int


class Origin(Struct, frozen=True):
    """Where an item stood in the file it was loaded from; never part of the digest.

    *opcode* is the file's operator code number and *version* its operator version (operations
    only).
    """

    subgraph: int
    index: int
    opcode: int | None = None
    version: int | None = None


class Operand(Struct, frozen=True, eq=False, gc=False):
    """One typed value slot of a subgraph.

    A CONSTANT_COPY operand has *value* (its packed little-endian bytes), a CONSTANT_POOL operand
    *location*; a NO_VALUE operand stands for an omitted optional input. String constants are stored
    in TFLite's string-tensor layout (count, offsets, bytes). Names and origins do not count when
    operands are compared.

    *shape_declared* is False for a computed value to which its TFLite file gives no dimensions, and
    stays so when *shape* is inferred: LiteRT chooses kernels by what the file has.

    *extension* is the type of an operand whose values only the driver of a vendor's extension
    understands. Such an operand is uint8, and the bytes of each element are its last dimension.
    """

    dtype: DType
    shape: Shape
    lifetime: Lifetime = Lifetime.TEMPORARY_VARIABLE
    name: str = ""
    quantization: Quantization | None = None
    value: bytes | None = None
    location: DataLocation | None = None
    origin: Origin | None = None
    shape_declared: bool = True
    extension: ExtensionType | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operand) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        return (
            self.dtype,
            self.shape,
            self.lifetime,
            self.quantization,
            self.value,
            self.location,
            self.shape_declared,
            self.extension,
        )

    @property
    def is_constant(self) -> bool:
        return self.lifetime.is_constant

    @property
    def has_value(self) -> bool:
        return self.lifetime is not Lifetime.NO_VALUE


OMITTED: Final = Operand(DType.FLOAT32, (), Lifetime.NO_VALUE)
"""The operand that an omitted optional input refers to."""


def plain_dimensions(operand: Operand) -> Shape:
    """The dimensions of *operand* without the bytes of an extension's element."""
    if operand.extension is None or operand.shape is None:
        return operand.shape
    return operand.shape[:-1]
