"""`Operand`: a typed value of a subgraph, and the place of its value (NNAPI section 6.1).

Vendor extensions (NNAPI section 8.6) define operations and operand types of a vendor. An extension
operation is an `Operation` of the type EXTENSION: its attributes name the extension and the
operation's number in it. An operand of an extension type is a uint8 array. Its last dimension is
the bytes of an element, and `Operand.extension` names the type.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from msgspec import Struct

from penstock.ir.types import Compared, DType, Quantization, Shape

EXTENSION: Final = "EXTENSION"
"""The type of every extension operation."""

MAX_CODE: Final = 0xFFFF
"""The greatest number of an operation, operand type or attribute within its extension (16 bits)."""

MAX_NAME: Final = 255
"""Greatest length of an extension's name, in characters."""

MAX_DATA: Final = 1 << 20
"""Greatest size, in bytes, of an operand's extension data, and of an attribute's value."""

MAX_ELEMENT: Final = (1 << 32) - 1
"""Greatest size, in bytes, of one element of an extension's type."""

_NAME: Final = r"[a-z0-9_]+(?:\.[a-z0-9_]+)+"


class ExtensionType(Struct, frozen=True):
    """The type of an operand of an extension: type number *code* of the *extension*, with
    *byte_size* bytes for each element.

    A scalar (*is_tensor* False) has the shape (byte_size,), a tensor its dimensions followed by
    byte_size. *data* are the operand's parameters besides its value, for example those of a
    quantisation. Only the driver interprets these bytes.
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
        """The shape of the operand with these dimensions. An unknown rank remains unknown."""
        return None if dimensions is None else (*dimensions, self.byte_size)


def name_fault(name: object) -> str:
    """The defect in the name of an extension; empty for a reversed domain name such as
    `com.example.fibonacci`.

    Valid are lower-case letters, digits and underscores, in at least two words separated by dots
    (NNAPI section 5.2).
    """
    if not isinstance(name, str):
        return f"the name of an extension is text, not {type(name).__name__}"
    if len(name) > MAX_NAME:
        return f"the name of an extension has {len(name)} characters; {MAX_NAME} are possible"
    if re.fullmatch(_NAME, name) is None:
        return (
            f"{name!r} is no extension's name: a reversed domain name in lower-case letters, "
            "digits, underscores and dots "
            "(com.example.fibonacci)"
        )
    return ""


def code_fault(code: object, what: str) -> str:
    """The defect in a number within an extension; empty for a number of 16 bits."""
    if type(code) is not int or not 0 <= code <= MAX_CODE:
        return f"{what} is {code!r}; 0 to {MAX_CODE} are possible"
    return ""


def type_fault(kind: ExtensionType) -> str:
    """The defect in *kind*, whose fields have their declared types; empty if it is valid."""
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
    """The extension and number in a key of `extension_key`; None for other texts."""
    kind, _, rest = key.partition(":")
    name, _, code = rest.rpartition(":")
    if kind != EXTENSION or name_fault(name) or not code.isascii() or not code.isdecimal():
        return None
    number = int(code) if len(code) <= len(str(MAX_CODE)) else MAX_CODE + 1
    return (name, number) if number <= MAX_CODE and str(number) == code else None


MAX_COPIED_VALUE: Final = 128
"""Greatest size, in bytes, of a constant that the model stores itself (NNAPI section 1.1)."""


class Lifetime(enum.Enum):
    """When an operand is written, and whether by the caller, an operation or the model.

    A subgraph output that is also an input or a constant has the lifetime of that input or
    constant.
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
    """The place of an item in its model file; never part of the digest.

    *opcode* is the file's operator code number, and *version* its operator version (operations
    only).
    """

    subgraph: int
    index: int
    opcode: int | None = None
    version: int | None = None


class Operand(Compared, frozen=True, eq=False, gc=False):
    """One typed value of a subgraph.

    A CONSTANT_COPY operand has *value* (its packed little-endian bytes), a CONSTANT_POOL operand
    *location*. A NO_VALUE operand stands for an omitted optional input. String constants are stored
    in TFLite's string-tensor layout (count, offsets, bytes). Names and origins are ignored when
    operands are compared.

    *shape_declared* is False for a computed value whose TFLite file declares no dimensions. It
    remains False when *shape* is inferred, because LiteRT chooses kernels by the declarations in
    the file.

    *extension* is the type of an operand whose values only a vendor's driver interprets. Such an
    operand is uint8, and its last dimension is the bytes of each element.
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
"""The operand that stands for an omitted optional input."""


def plain_dimensions(operand: Operand) -> Shape:
    """The dimensions of *operand* without the bytes of an extension's element."""
    if operand.extension is None or operand.shape is None:
        return operand.shape
    return operand.shape[:-1]
