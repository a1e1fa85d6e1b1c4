"""Shared by tests of the XNNPACK driver: the device, operands with scales, and one run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pytest

import penstock
from penstock.drivers.xnnpack import XnnpackDevice
from penstock.hal import AccuracyClass, Device
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from penstock.ir.operation import AttributeValue

F32: Final = DType.FLOAT32

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None,
    reason="LiteRT is not installed: pip install 'penstock-nn[xnnpack]'",
)


def device() -> XnnpackDevice:
    return XnnpackDevice()


def q(scale: float, zero_point: int = 0, channels: int = 1, dimension: int = 0) -> Quantization:
    """One scale, or the same for each of several channels."""
    scales = (float(np.float32(scale)),) * channels
    return Quantization(scales, (zero_point,) * channels, dimension if channels > 1 else None)


def one(
    kind: str,
    inputs: Sequence[NDArray | tuple[DType, Sequence[int | None]] | None],
    outputs: Sequence[tuple[DType, Sequence[int | None] | None]],
    attributes: Mapping[str, AttributeValue] | None = None,
    scales: Mapping[int, Quantization] | None = None,
    out_scale: Quantization | None = None,
) -> Model:
    """A model of one operation: arrays are constants, pairs inputs, None is omitted; *scales* by
    position.
    """
    builder, scales = ModelBuilder(), scales or {}
    indexes: list[int | None] = []
    for position, each in enumerate(inputs):
        scale = scales.get(position)
        if each is None:
            indexes.append(None)
        elif isinstance(each, tuple):
            # A list is a shape.
            indexes.append(builder.input(*each, f"x{position}", scale))  # type: ignore[arg-type]
        else:
            indexes.append(builder.constant(each, f"c{position}", scale))
    made = [(dtype, None if s is None else tuple(s), out_scale) for dtype, s in outputs]
    return builder.build(builder.operation(kind, indexes, made, attributes))


def drawn(model: Model, seed: int = 0) -> list[NDArray]:
    """Inputs over the range of their types; floats are normal numbers, unknown dimensions 3."""
    rng = np.random.default_rng(seed)
    found: list[NDArray] = []
    for operand in model.inputs:
        shape = [3 if d is None else d for d in operand.shape or ()]
        if operand.dtype is DType.BOOL:
            found.append(rng.integers(0, 2, shape).astype(bool))
        elif operand.dtype.is_float:
            found.append((rng.standard_normal(shape) * 2).astype(operand.dtype.numpy))
        else:
            limits = np.iinfo(operand.dtype.numpy)
            low, high = max(limits.min, -1000), min(limits.max, 1000)
            found.append(rng.integers(low, high + 1, shape).astype(operand.dtype.numpy))
    return found


def run_on(
    devices: Sequence[str | Device],
    model: Model,
    inputs: Sequence[NDArray],
    accuracy: AccuracyClass = "faithful",
) -> list[NDArray]:
    """The outputs of one run on *devices* alone."""
    policy = penstock.Policy(accuracy=accuracy, allow_fallback=False)
    with penstock.compile(
        model, devices=devices, cache=False, policy=policy, num_threads=1
    ) as compiled:
        return [np.array(output) for output in compiled.run(list(inputs))]
