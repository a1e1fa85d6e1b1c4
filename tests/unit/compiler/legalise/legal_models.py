"""Models of one layer to legalise, and what their programs must give: what the reference device
gives.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

import penstock
from penstock.compiler import interpreter, pipeline
from penstock.compiler.checks import check as check_program
from penstock.compiler.legalise import legalise
from penstock.compiler.target import Target
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization, infer_shapes
from penstock.ir.operation import AttributeValue

TOLERANCE: Final = 3e-6
"""Of the largest output: what the order of float sums may change."""


class Given(Struct, frozen=True):
    """An input of a layer: its *array*, with *scales* and *zero_points* where it is quantised, and
    its type where the array does not say it. A constant unless it is *fed*.
    """

    array: NDArray
    scales: tuple[float, ...] = ()
    zero_point: int = 0
    dimension: int | None = None
    dtype: DType | None = None
    fed: bool = False

    @property
    def quantization(self) -> Quantization | None:
        if not self.scales:
            return None
        return Quantization(self.scales, (self.zero_point,) * len(self.scales), self.dimension)


def layer(
    kind: str,
    inputs: Sequence[Given | None],
    output: tuple[DType, Quantization | None],
    attributes: Mapping[str, AttributeValue],
    more: Sequence[tuple[DType, Quantization | None]] = (),
) -> Model:
    """A model of one operation. *output* and *more* are the types of its outputs."""
    builder = ModelBuilder()
    numbers: list[int | None] = []
    for position, given in enumerate(inputs):
        if given is None:
            numbers.append(None)
        elif given.fed:
            dtype = given.dtype or DType(given.array.dtype.name)
            shape, name = given.array.shape, f"x{position}"
            numbers.append(builder.input(dtype, shape, name, given.quantization))
        else:
            quantization, dtype_ = given.quantization, given.dtype
            numbers.append(builder.constant(given.array, quantization=quantization, dtype=dtype_))
    made = [(dtype, None, quantization) for dtype, quantization in (output, *more)]
    return infer_shapes(builder.build(builder.operation(kind, numbers, made, dict(attributes))))


def feeds(inputs: Sequence[Given | None]) -> list[NDArray]:
    """The arrays of the inputs that are fed."""
    return [given.array for given in inputs if given is not None and given.fed]


def check(
    model: Model, arrays: Sequence[NDArray], stages: Collection[str] = tuple(pipeline.PASSES)
) -> list[NDArray]:
    """The program of *model* gives what the reference device gives, as it is written and after each
    of *stages*, for both kinds of bytes: integers bit for bit. It holds every invariant after every
    pass. Returns the outputs.
    """
    with penstock.compile(model, devices=["reference"], cache=False) as compiled:
        wanted = list(compiled.run(list(arrays)))
    program = legalise(model)
    check_program(program)
    compare(interpreter.run(program, arrays), wanted, "legalise")
    targets = Target(bytes="unsigned"), Target(bytes="signed")
    for target in targets:
        staged = program
        for stage, step in pipeline.PASSES.items():
            staged = step(staged, target)
            check_program(staged)
            if stage in stages:
                compare(interpreter.run(staged, arrays), wanted, f"{stage}, {target.bytes}")
    return [np.asarray(array) for array in wanted]


def compare(got: Sequence[NDArray], wanted: Sequence[NDArray], stage: str) -> None:
    """Integers are equal, floats within `TOLERANCE` of the largest."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), stage
        if other.dtype.kind != "f":
            np.testing.assert_array_equal(one, other, stage)
            continue
        finite = np.abs(other[np.isfinite(other)], dtype=np.float64)
        tolerance = 1e-3 if other.dtype == np.float16 else TOLERANCE
        bound = tolerance * float(finite.max(initial=1e-30))
        np.testing.assert_allclose(one, other, 0, bound, err_msg=stage)


def values(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> NDArray:
    """Random values of a type: floats within 2, integers over their whole range."""
    if dtype.is_float:
        return rng.uniform(-2, 2, shape).astype(dtype.numpy)
    bits = dtype.bits or 0
    low, high = (0, 2**bits) if dtype.value[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    held = np.int8 if bits < 8 else dtype.numpy
    return rng.integers(low, high, shape).astype(held)


def scales_of(rng: np.random.Generator, count: int, low: float, high: float) -> tuple[float, ...]:
    """Random scales, even in their logarithms, as float32."""
    logs = rng.uniform(math.log(low), math.log(high), count)
    return tuple(float(np.float32(math.exp(x))) for x in logs)
