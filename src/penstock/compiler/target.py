"""What a driver says of its target; the front half knows nothing else of it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Bytes: TypeAlias = Literal["as they are", "unsigned", "signed"]
"""How 8-bit values of the program are stored: products take data of one sign."""


class Target(Struct, frozen=True):
    """*vector* is the width of a vector in bytes. *bytes* says how 8-bit values are stored. *halo*:
    sums of products read padding from memory, around the tensor.
    """

    vector: int = 64
    bytes: Bytes = "as they are"
    halo: bool = True
