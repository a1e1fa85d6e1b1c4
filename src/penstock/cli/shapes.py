"""Which shapes a model is compiled for where it leaves dimensions unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.ir import Model, NDArray, Operand

UNKNOWN_DIMENSION: Final = 1
"""What stands for a dimension that the model leaves unknown and no file gives: one picture, one sentence."""


def assumed(operand: Operand) -> tuple[int, ...] | None:
    """The shape that `random` gives an input: its own, unknown dimensions being 1; None where its rank is unknown."""
    if operand.shape is None:
        return None
    return tuple(UNKNOWN_DIMENSION if d is None else d for d in operand.shape)


def shapes_of(operands: Sequence[Operand], arrays: Sequence[NDArray]) -> dict[str, tuple[int, ...]]:
    """What to compile for before *arrays* are run: the shapes of those inputs that leave dimensions unknown."""
    from penstock.ir.types import is_static

    return {
        o.name: a.shape for o, a in zip(operands, arrays, strict=True) if not is_static(o.shape)
    }


def assumed_shapes(
    model: Model, signature: str | None, given: Mapping[str, tuple[int, ...]] | None
) -> dict[str, tuple[int, ...]]:
    """The same without arrays: for each input that leaves dimensions unknown, and has no shape *given*, the one
    that it is most likely to be run with, which is also that of `random`.

    Raises `UnknownSignature`.
    """
    from penstock.execution.interface import interface_of
    from penstock.ir.types import is_static

    entered = model if signature is None else model.signature_model(signature)
    likely = {
        o.name: assumed(o)
        for o in interface_of(entered, signature).inputs
        if not is_static(o.shape) and o.name not in (given or {})
    }
    return {name: shape for name, shape in likely.items() if shape is not None}


def in_words(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """`x=1,28,28,1`, as the option `--shape` takes them."""
    return " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
