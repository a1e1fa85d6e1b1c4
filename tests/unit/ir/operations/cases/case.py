"""What a case says: one operation with its inputs, and the shapes of its outputs or that it is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def window(
    padding: str, *strides: int, size: tuple[int, int] | None = None, **more: AttributeValue
) -> dict[str, Any]:
    """Attributes of a window: *strides* along width, height and depth, and *size* (width, height)
    of a pool's filter.
    """
    names = "stride_w", "stride_h", "stride_d"
    attributes: dict[str, Any] = {
        "padding": padding,
        **dict(zip(names, strides, strict=False)),
        **more,
    }
    if size is not None:
        attributes |= {"filter_width": size[0], "filter_height": size[1]}
    return attributes


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
