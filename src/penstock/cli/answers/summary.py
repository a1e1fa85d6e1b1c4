"""No task: what the outputs hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.cli.answers.base import Results
from penstock.ir.show import show_shape

if TYPE_CHECKING:
    from PIL.Image import Image

    from penstock.cli.output import Output


SHOWN: Final = 8
"""How many strings of an output are shown, and in how many characters each."""

LONGEST: Final = 60


class Summary:
    """Least, mean and greatest value of each output, in real values; of strings the first few."""

    task = "outputs"
    mislabelled = ""

    def __init__(self, results: Results) -> None:
        self.data: dict[str, Any] = {
            "values": [
                {"name": o.name, "dtype": o.dtype.value, "shape": list(a.shape)}
                | _statistics(results, i)
                for i, (o, a) in enumerate(zip(results.operands, results.arrays, strict=True))
            ]
        }
        self.notes: Sequence[str] = [
            f"{v['name']} holds {', '.join(map(repr, v['strings']))}"
            + (", ..." if np.prod(v["shape"]) > SHOWN else "")
            for v in self.data["values"]
            if v.get("strings")
        ]

    def show(self, output: Output) -> None:
        rows = [
            (
                v["name"],
                v["dtype"] + show_shape(tuple(v["shape"])),
                *(_number(v[k]) for k in ("min", "mean", "max")),
            )
            for v in self.data["values"]
        ]
        output.table(("output", "type", "least", "mean", "greatest"), rows)

    def draw(self, picture: Image) -> Image | None:
        return None


def _statistics(results: Results, position: int) -> dict[str, Any]:
    values = results.real(position)
    if values.dtype.kind == "O":
        first = [bytes(s).decode("utf-8", "replace") for s in values.reshape(-1)[:SHOWN].tolist()]
        return {"min": None, "mean": None, "max": None, "strings": [s[:LONGEST] for s in first]}
    if values.dtype.kind in "OSUc" or values.size == 0:
        return {"min": None, "mean": None, "max": None}
    real = np.asarray(values, np.float64)
    with np.errstate(invalid="ignore"):  # the mean of both infinities is a NaN, and is shown as one
        mean = float(real.mean())
    return {"min": float(real.min()), "mean": mean, "max": float(real.max())}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
