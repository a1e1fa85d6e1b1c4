"""The digest of a model, and the form of an operation, by which verdicts name it.

A program that only lists verdicts needs no more of the model.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

Shape: TypeAlias = tuple[int | None, ...] | None
"""As in `penstock.ir.types`, which needs NumPy."""


class Digest(Struct, frozen=True):
    """Two hashes of 32 bytes: *structure* of everything but the values of constants, *constants* of
    their bytes.
    """

    structure: bytes
    constants: bytes

    def hex(self) -> str:
        return self.structure.hex() + self.constants.hex()


class Form(Struct, frozen=True):
    """The form of an operation, without names and the values of constants.

    *digest* covers its type and attributes, the element type and quantisation of each operand,
    whether each is constant, and the subgraphs that it enters. *shapes* are the operands' shapes.
    """

    digest: str
    shapes: tuple[Shape, ...]

    def fits(self, other: Form) -> bool:
        """Whether both forms are the same, as far as shapes are known."""
        return (
            self.digest == other.digest
            and len(self.shapes) == len(other.shapes)
            and all(map(_may_be_equal, self.shapes, other.shapes))
        )


def _may_be_equal(a: Shape, b: Shape) -> bool:
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(
        x is None or y is None or x == y for x, y in zip(a, b, strict=True)
    )
