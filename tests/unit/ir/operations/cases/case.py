"""What a case says: one operation with its inputs, and the shapes of its outputs or that it is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.ir import Shape
from penstock.ir.operation import AttributeValue
from tests.unit.ir.operations.single import FLOAT, Given, Wanted


@dataclass(frozen=True, eq=False)
class Case:
    kind: str
    inputs: Sequence[Given]
    outputs: Sequence[Wanted]
    attributes: dict[str, AttributeValue]
    expected: list[Shape] | None
    """None: the shapes contradict each other."""


def agreed(
    kind: str,
    inputs: Sequence[Given],
    expected: Shape | list[Shape],
    /,
    outputs: Sequence[Wanted] = (FLOAT,),
    **attributes: AttributeValue,
) -> Case:
    """Penstock and LiteRT find *expected*: one shape, or a list of them."""
    return Case(
        kind, inputs, outputs, attributes, expected if isinstance(expected, list) else [expected]
    )


def refused(
    kind: str,
    inputs: Sequence[Given],
    /,
    outputs: Sequence[Wanted] = (FLOAT,),
    **attributes: AttributeValue,
) -> Case:
    """Penstock and LiteRT refuse the operation."""
    return Case(kind, inputs, outputs, attributes, None)
