"""Models of one operation, with regions where it has some, run by the reference driver and by
LiteRT.

add = combining("STABLEHLO_ADD", DType.FLOAT32) model = single("STABLEHLO_REDUCE", [x, zero],
[(DType.FLOAT32, (2,))], {"dimensions": (1,)}, body_subgraph_index=add) check(model, [x, zero])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

import penstock
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization, Shape, SubgraphBuilder
from penstock.ir.operation import AttributeValue
from penstock.ir.types import dtype_of

Body: TypeAlias = Callable[[SubgraphBuilder], Sequence[int]]
"""Fills a region: adds its inputs and operations, and returns its outputs."""

FLOAT_TOLERANCE: Final = 2e-6
"""Of the largest finite output: what the order of float sums may change."""


def kind_of(array: NDArray) -> DType:
    found = dtype_of(array.dtype)
    assert found is not None
    return found


def single(
    kind: str,
    inputs: Sequence[NDArray],
    outputs: Sequence[tuple[DType, Shape]],
    attributes: Mapping[str, AttributeValue] | None = None,
    constant: Collection[int] = (),
    quantization: Quantization | None = None,
    **regions: Body | Sequence[Body],
) -> Model:
    """A model of one operation; *constant* are the positions of inputs that are constants,
    *regions* the bodies by attribute; every operand has *quantization*.
    """
    builder = ModelBuilder()
    made: dict[str, AttributeValue] = dict(attributes or {})
    given = [
        builder.constant(x, quantization=quantization)
        if at in constant
        else builder.input(kind_of(x), x.shape, f"x{at}", quantization)
        for at, x in enumerate(inputs)
    ]
    for name, body in regions.items():
        if callable(body):
            made[name] = _added(builder, body)
        else:
            made[name] = tuple(_added(builder, one) for one in body)
    written = [(dtype, shape, quantization) for dtype, shape in outputs]
    return builder.build(builder.operation(kind, given, written, made))


def _added(builder: ModelBuilder, body: Body) -> int:
    region = builder.subgraph("region")
    return builder.add_subgraph(region.finish(body(region)))


def combining(kind: str, dtype: DType, swapped: bool = False, **attributes: Any) -> Body:
    """A region of one operation on two scalars."""

    def body(region: SubgraphBuilder) -> Sequence[int]:
        a, b = region.input(dtype, ()), region.input(dtype, ())
        pair = [b, a] if swapped else [a, b]
        return region.operation(kind, pair, [(dtype, ())], attributes)

    return body


def replacing(dtype: DType) -> Body:
    """A region that gives its second argument."""

    def body(region: SubgraphBuilder) -> Sequence[int]:
        region.input(dtype, ())
        return [region.input(dtype, ())]

    return body


def computed(model: Model, feeds: Sequence[NDArray]) -> list[NDArray]:
    """The outputs that the reference driver computes."""
    with penstock.compile(model, devices=["reference"]) as compiled:
        outputs = compiled(*feeds)
        return [np.array(outputs[at]) for at in range(len(outputs))]


def judged(model: Model, feeds: Sequence[NDArray], *, reference: bool = True) -> list[NDArray]:
    """The outputs of LiteRT's reference kernels, or of its ordinary ones, for the exported model.

    The interpreter runs in this process: only for models of which LiteRT is known to survive them.
    """
    from tests.support_litert import litert

    kinds = litert.OpResolverType
    runner = litert.Interpreter(
        model_content=write(model),
        num_threads=1,
        experimental_op_resolver_type=kinds.BUILTIN_REF
        if reference
        else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    runner.allocate_tensors()
    for detail, array in zip(runner.get_input_details(), feeds, strict=True):
        runner.set_tensor(detail["index"], array)
    runner.invoke()
    return [np.array(runner.get_tensor(d["index"])) for d in runner.get_output_details()]


def check(model: Model, feeds: Sequence[NDArray], *, reference: bool = True) -> None:
    """The reference driver gives what LiteRT gives, in the same types and shapes: integers bit for
    bit, floats within `FLOAT_TOLERANCE` of the largest.
    """
    outputs, wanted = computed(model, feeds), judged(model, feeds, reference=reference)
    for got, want in zip(outputs, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind not in "fc":
            np.testing.assert_array_equal(got, want)
            continue
        largest = np.max(np.abs(want[np.isfinite(want)]), initial=1e-30)
        np.testing.assert_allclose(got, want, 0, FLOAT_TOLERANCE * float(largest))


def values(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> NDArray:
    """Numbers over the whole range of an integer type; floats and complex numbers within [-4,
    4].
    """
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    real = rng.uniform(-4, 4, shape)
    if dtype.is_float:
        return real.astype(dtype.numpy)
    return (real + 1j * rng.uniform(-4, 4, shape)).astype(dtype.numpy)
