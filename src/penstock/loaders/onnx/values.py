"""What a name of a graph stands for while it is lowered: a type, a shape, and where the elements
are.

A *layout* is an order of dimensions: dimension i of an operand in layout p is dimension p[i] of the
value. The IR's convolutions have channels last, ONNX's second: a value may stand in either order,
or in both, and whatever does not care takes it as it comes. A TRANSPOSE is made only where somebody
needs an order that is not there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from penstock.ir.types import DType, NDArray, Shape, dtype_of

Layout: TypeAlias = "tuple[int, ...]"


class Value:
    """One value. *array* is what a constant is, *forms* the operand for each layout that it has in
    *home*, the `Emitter` of its subgraph.

    *known* are the elements of small integers of which some are unknown: objects, None among them.
    *source* is what a value was dequantised of; *recipe* computes it of such as integers. *items*
    is the content of a sequence, which has no operand.
    """

    __slots__ = (
        "array", "dtype", "forms", "home", "items", "known", "name", "recipe", "shape", "source",
    )  # fmt: skip

    def __init__(
        self,
        dtype: DType,
        shape: Shape,
        *,
        name: str = "",
        array: NDArray | None = None,
        home: object | None = None,
        forms: dict[Layout, int] | None = None,
        known: NDArray | None = None,
    ) -> None:
        self.dtype, self.shape, self.name = dtype, shape, name
        self.array, self.home, self.known = array, home, known
        self.forms: dict[Layout, int] = forms or {}
        self.source: Any = None
        self.recipe: Any = None
        self.items: list[Value] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_constant(self) -> bool:
        return self.array is not None

    def __repr__(self) -> str:
        return f"Value({self.name!r}, {self.dtype.value}, {self.shape})"


def constant(array: NDArray, name: str = "") -> Value:
    """A constant value."""
    return Value(dtype_of(array.dtype) or DType.FLOAT32, array.shape, name=name, array=array)


def sequence(items: list[Value]) -> Value:
    """A sequence whose length is known."""
    value = Value(items[0].dtype if items else DType.FLOAT32, None)
    value.items = items
    return value


def identity(rank: int) -> Layout:
    return tuple(range(rank))


def channels_last(rank: int) -> Layout:
    """Dimension 1 behind the others; as it is below three dimensions."""
    return (0, *range(2, rank), 1) if rank > 2 else identity(rank)


def inverse(layout: Layout) -> Layout:
    found = [0] * len(layout)
    for position, axis in enumerate(layout):
        found[axis] = position
    return tuple(found)


def logical(shape: Shape, layout: Layout) -> Shape:
    """The shape of the value that an operand of *shape* is in *layout*."""
    if shape is None:
        return None
    found: list[int | None] = [None] * len(shape)
    for position, axis in enumerate(layout):
        found[axis] = shape[position]
    return tuple(found)


def stored(shape: Shape, layout: Layout) -> Shape:
    """The shape of the operand that a value of *shape* is in *layout*."""
    return None if shape is None else tuple(shape[axis] for axis in layout)
