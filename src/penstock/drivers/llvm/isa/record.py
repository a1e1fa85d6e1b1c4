"""`Isa`: one instruction set. Kernels are written over the record, not over a processor's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.compiler.target import Bytes, Target


Dot: TypeAlias = Literal["vpdpbusd", "vpmaddwd", "sdot", "smlal"]
"""The instruction that multiplies 8-bit values: four taps of unsigned data and signed weights; two
taps of 16 bits; four taps of signed data and weights; one tap of 16 bits.
"""

Tiles: TypeAlias = tuple[tuple[int, tuple[int, ...], float], ...]
"""Tiles of a matrix product as (columns, rows in order of preference, relative cost)."""


class Isa(Struct, frozen=True):
    """*architecture* is LLVM's name of it, *features* what code may use, in LLVM's words.

    *width* is the width of a vector in bytes, *registers* the number of vector registers. *masks*:
    loads and stores of parts of a vector cost no more than those of a whole one. *rounds_down*: an
    instruction may round down by itself. *bytes_by_table*: the greatest table of bytes that one
    permutation reads. *float_tiles* and *byte_tiles* were measured on a machine of this set.
    """

    name: str
    architecture: Literal["x86_64", "aarch64"]
    features: tuple[str, ...]
    width: int
    registers: int
    dot: Dot
    masks: bool
    rounds_down: bool
    bytes_by_table: int
    float_tiles: Tiles
    byte_tiles: Tiles

    @property
    def lanes(self) -> int:
        """Elements of 32 bits in a vector."""
        return self.width // 4

    @property
    def target(self) -> Target:
        """What the front half is told of the set."""
        from penstock.compiler.target import Target

        data: Bytes = "signed" if self.dot in {"sdot", "smlal"} else "unsigned"
        return Target(vector=self.width, bytes=data)


X86_V3: Final = ("avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe", "popcnt", "sse4.2")
X86_V4: Final = (*X86_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
X86_VNNI: Final = (*X86_V4, "avx512vnni", "avx512vbmi")

WIDE_FLOATS: Final[Tiles] = (
    (4, (6, 5, 4), 1.0),
    (2, (12, 14, 10, 8, 7, 9), 1.03),
    (1, (14, 16, 12, 8, 9), 1.2),
)
WIDE_BYTES: Final[Tiles] = (
    (4, (4, 5, 6), 1.0),
    (2, (7, 8, 10, 9, 6, 14, 5), 1.06),
    (1, (14, 16, 12, 10, 8, 7, 5, 24), 1.25),
)
"""Measured on a Zen 5 processor: tiles whose sums leave registers for the epilogue of another."""

NARROW_FLOATS: Final[Tiles] = ((2, (4, 5, 3), 1.0), (1, (8, 6, 4, 10), 1.2))
NARROW_BYTES: Final[Tiles] = ((4, (2, 1), 1.0), (2, (4, 3, 2), 1.0), (1, (6, 8, 4), 1.2))
"""Sixteen registers: tiles that fit them."""

PAIR_BYTES: Final[Tiles] = (
    (2, (4, 3, 2), 1.0), (4, (3, 2, 1), 1.02), (1, (6, 8, 4), 1.2)
)  # fmt: skip
"""The same where a group of taps is two products. Measured on a Zen 3 processor."""

NEON_FLOATS: Final[Tiles] = ((4, (5, 4, 6), 1.0), (2, (8, 6, 10), 1.1), (1, (12, 8, 16), 1.3))
NEON_BYTES: Final[Tiles] = ((4, (4, 5), 1.0), (2, (8, 6), 1.1), (1, (12, 8), 1.3))

RECORDS: Final[Mapping[str, Isa]] = {
    isa.name: isa
    for isa in (
        Isa("avx512-amx", "x86_64", (*X86_VNNI, "amx-tile", "amx-int8"), 64, 32, "vpdpbusd",
            True, True, 128, WIDE_FLOATS, WIDE_BYTES),
        Isa("avx512-vnni", "x86_64", X86_VNNI, 64, 32, "vpdpbusd",
            True, True, 128, WIDE_FLOATS, WIDE_BYTES),
        Isa("avx512", "x86_64", X86_V4, 64, 32, "vpmaddwd", True, True, 0, WIDE_FLOATS, WIDE_BYTES),
        Isa("avx2-vnni", "x86_64", (*X86_V3, "avxvnni"), 32, 16, "vpdpbusd", False, False, 16,
            NARROW_FLOATS, NARROW_BYTES),
        Isa("avx2", "x86_64", X86_V3, 32, 16, "vpmaddwd", False, False, 16, NARROW_FLOATS,
            PAIR_BYTES),
        Isa("neon-dot", "aarch64", ("neon", "dotprod"), 16, 32, "sdot", False, False, 64,
            NEON_FLOATS, NEON_BYTES),
        Isa("neon", "aarch64", ("neon",), 16, 32, "smlal", False, False, 64, NEON_FLOATS,
            NEON_BYTES),
    )
}  # fmt: skip
"""The sets that there are kernels for, best first for each architecture."""
