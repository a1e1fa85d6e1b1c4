"""Tools of every benchmark: alternating measurement, and rows of results."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.ir import Model

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """One measure: its median *value* and its limit (None: no limit)."""

    benchmark: str
    measure: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the limit holds; None without a limit."""
        return None if self.limit is None else self.value <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def interleaved(subjects: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each subject's value in each of *rounds*.

    Within a round the subjects alternate, and each round starts with the next subject. Other load
    on the machine therefore affects all alike.
    """
    names = list(subjects)
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for position in range(len(names)):
            name = names[(turn + position) % len(names)]
            values[name].append(subjects[name]())
    return values


def medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(v) for name, v in values.items()}


def seconds(action: Callable[[], object]) -> float:
    """The latency of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def worked(action: Callable[[], object]) -> float:
    """Processor seconds of one call.

    Unlike wall time, they do not grow when other processes use the core, which would hit the longer
    of two calls harder.
    """
    began = time.process_time()
    action()
    return time.process_time() - began


def corpus_model(name: str) -> Path | None:
    """A network of the test corpus, or None where there is no corpus."""
    corpus = Path(os.environ.get("PENSTOCK_CORPUS") or ROOT.parent / "shared").expanduser()
    path = corpus / "models" / "networks" / f"{name}.tflite"
    return path if path.is_file() else None


def other_shapes(model: Model, inputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of *inputs* that are not those of the model, by name."""
    return {
        operand.name: array.shape
        for operand, array in zip(model.inputs, inputs, strict=True)
        if operand.shape != array.shape
    }
