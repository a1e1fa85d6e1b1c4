"""What every task starts from, and what it ends in. | The colours that answers are drawn in, a class after another, and what a legend calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from penstock.execution.inputs import dequantize
from penstock.ir import Model, NDArray, Operand

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output


@dataclass(frozen=True, slots=True)
class Results:
    """One run's outputs, and what is known about them.

    *operands* describe *arrays*, one each; *indexes* are the operands' places in the model's entry
    subgraph. *labels* name the classes, where anything does. *top* bounds lists; *minimum* is the
    least score of a box or key point that is worth showing.
    """

    model: Model
    operands: tuple[Operand, ...]
    indexes: tuple[int, ...]
    arrays: tuple[NDArray, ...]
    labels: tuple[str, ...] | None = None
    top: int = 5
    minimum: float = 0.3

    def real(self, position: int) -> NDArray:
        """An output's real values: dequantised where it is quantised."""
        array, quantization = self.arrays[position], self.operands[position].quantization
        return array if quantization is None else dequantize(array, quantization)

    def label(self, index: int) -> str | None:
        """The name of a class."""
        return (
            self.labels[index]
            if self.labels is not None and 0 <= index < len(self.labels)
            else None
        )


class Answer(Protocol):
    """A task's answer: *data* for `--json`, *notes* about how it was read out of the outputs.

    *mislabelled* says why a list of labels is not used to name classes, in one clause; "" where it
    is.
    """

    task: str
    data: dict[str, Any]
    notes: Sequence[str]
    mislabelled: str

    def show(self, output: Output) -> None:
        """Prints it for people."""
        ...

    def draw(self, picture: Image) -> Image | None:
        """*picture* with the answer drawn into a copy of it; None where there is nothing to draw."""
        ...


def squeezed(array: NDArray) -> NDArray:
    """*array* without its leading dimensions of 1."""
    while array.ndim > 1 and array.shape[0] == 1:
        array = array[0]
    return array


def finite(array: NDArray) -> NDArray:
    """*array* as float64 with what is not a number turned to -inf, so that it never ranks first."""
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
