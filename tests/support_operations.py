"""Single operations as models, for tests of drivers that translate them for an engine: drawn
inputs, and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

import penstock
from penstock.hal import AccuracyClass, Device
from penstock.ir import DType, Model, ModelBuilder, NDArray

F32: Final = DType.FLOAT32
Given: TypeAlias = "NDArray | tuple[int, ...] | Callable[[ModelBuilder], int] | None"
"""An input of an operation: a constant, the shape of a float32 input, what makes an operand, or
omitted.
"""


@dataclass(frozen=True)
class OneOperation:
    """A model of one operation over drawn inputs: normal numbers, or integers of any size."""

    name: str
    model: Model

    def inputs(self, seed: int = 0) -> list[NDArray]:
        rng = np.random.default_rng(seed)
        found: list[NDArray] = []
        for operand in self.model.inputs:
            shape = [d or 0 for d in operand.shape or ()]
            if operand.dtype is DType.BOOL:
                found.append(rng.integers(0, 2, shape).astype(np.bool_))
            elif operand.dtype is F32:
                found.append((rng.standard_normal(shape) * 3).astype(np.float32))
            else:
                limits = np.iinfo(operand.dtype.numpy)
                drawn = rng.integers(limits.min, limits.max + 1, shape)
                found.append(drawn.astype(operand.dtype.numpy))
        return found


def operation(
    name: str,
    kind: str,
    given: Sequence[Given],
    shapes: Sequence[tuple[int, ...]],
    attributes: Mapping[str, object] | None = None,
    dtypes: Sequence[DType] = (),
) -> OneOperation:
    """*kind* over *given*; *shapes* are those of its outputs, *dtypes* their types (none: all
    float32).
    """
    builder = ModelBuilder()
    indexes: list[int | None] = []
    for place, each in enumerate(given):
        if each is None:
            indexes.append(None)
        elif isinstance(each, tuple):
            indexes.append(builder.input(F32, each, f"x{place}"))
        elif callable(each):
            indexes.append(each(builder))
        else:
            indexes.append(builder.constant(each, f"c{place}"))
    outputs = list(zip(dtypes or [F32] * len(shapes), shapes, strict=True))
    # Any attributes.
    made = builder.operation(kind, indexes, outputs, attributes)  # type: ignore[arg-type]
    return OneOperation(name, builder.build(made))


def run_on(
    devices: Sequence[str | Device],
    model: Model,
    inputs: Sequence[Sequence[NDArray]],
    accuracy: AccuracyClass = "faithful",
) -> list[list[NDArray]]:
    """The outputs of *model* for each of *inputs*, on *devices* alone, compiled once and not
    cached.
    """
    policy = penstock.Policy(accuracy=accuracy, allow_fallback=False)
    with penstock.compile(
        model, devices=devices, cache=False, policy=policy, num_threads=1
    ) as compiled:
        return [[np.array(output) for output in compiled.run(list(given))] for given in inputs]
