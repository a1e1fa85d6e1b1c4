"""The input and the result of every task, and the colours of drawn answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.execution.inputs import dequantize
from penstock.ir import Model, NDArray, Operand

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output


class Results(Struct, frozen=True):
    """The outputs of one run, and how to interpret them.

    *operands* describe *arrays*, one each; *indexes* are the operands' indexes in the model's entry
    subgraph. *labels* name the classes, if known. *top* limits lists. Boxes and key points with a
    score below *minimum* are not shown.
    """

    model: Model
    operands: tuple[Operand, ...]
    indexes: tuple[int, ...]
    arrays: tuple[NDArray, ...]
    labels: tuple[str, ...] | None = None
    top: int = 5
    minimum: float = 0.3

    def real(self, position: int) -> NDArray:
        """An output's real values, dequantised if necessary."""
        array, quantization = self.arrays[position], self.operands[position].quantization
        return array if quantization is None else dequantize(array, quantization)

    def label(self, index: int) -> str | None:
        """The name of a class; None if it has none."""
        labels = self.labels or ()
        return labels[index] if 0 <= index < len(labels) else None


class Answer:
    """A task's answer: *data* for `--json`, *notes* on how the outputs were interpreted.

    *mislabelled* says why labels do not match the classes; "" if they do.
    """

    task = ""
    mislabelled = ""
    data: dict[str, Any]
    notes: Sequence[str] = ()

    def show(self, output: Output) -> None:
        """Prints the answer for people."""
        raise NotImplementedError

    def draw(self, picture: Image) -> Image | None:
        """A copy of *picture* with the answer drawn into it; None if there is nothing to draw."""
        return None


def named(row: Mapping[str, Any]) -> tuple[int, str]:
    """The class of *row* and its label, for a table."""
    return row["index"], row["label"] or ""


def squeezed(array: NDArray) -> NDArray:
    """*array* without its leading dimensions of 1."""
    while array.ndim > 1 and array.shape[0] == 1:
        array = array[0]
    return array


def finite(array: NDArray) -> NDArray:
    """*array* as float64, with NaN as -inf, so that it never ranks first."""
    values = np.asarray(array, np.float64)
    return np.where(np.isnan(values), -np.inf, values)


RGB: TypeAlias = tuple[int, int, int]


class Colour(NamedTuple):
    name: str
    rgb: RGB


COLOURS: Final = (
    Colour("red", (230, 25, 75)),
    Colour("green", (60, 180, 75)),
    Colour("blue", (0, 130, 200)),
    Colour("orange", (245, 130, 48)),
    Colour("purple", (145, 30, 180)),
    Colour("cyan", (70, 240, 240)),
    Colour("magenta", (240, 50, 230)),
    Colour("lime", (210, 245, 60)),
    Colour("pink", (250, 190, 212)),
    Colour("teal", (0, 128, 128)),
    Colour("yellow", (255, 225, 25)),
)
