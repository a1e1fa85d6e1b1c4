"""Operations that choose, resize, reduce and normalise: their programs give what the reference
device gives.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise import judge, legalise
from penstock.driverkit.site import Refused, make_sites
from penstock.errors import GeneralFailure
from penstock.ir import DType, NDArray, Quantization
from penstock.ir.operation import AttributeValue
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer, values

F32, F16, F64, BOOL = DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.BOOL
I8, U8, I16, I32, I64 = DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64
U16, U32, U64 = DType.UINT16, DType.UINT32, DType.UINT64
NUMBERS: Final = (F32, F16, I8, U8, I16, I32, I64)
EVERY: Final = (*NUMBERS, F64, U16, U32, U64, BOOL)


def numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    if dtype is BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype is DType.UINT64:
        return rng.integers(0, 2**64, shape, np.uint64)
    return np.asarray(values(rng, dtype, shape))


def fed(array: NDArray, scale: float | None = None, zero_point: int = 0) -> Given:
    return Given(array, () if scale is None else (scale,), zero_point, fed=True)


def whole(*numbers_: int) -> Given:
    return Given(np.array(numbers_, np.int32))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, U8, I8, I16], ids=lambda d: d.value)
def test_bilinear_resizes_are_those_of_the_reference(dtype: DType, align: bool, half: bool) -> None:
    if align and half:
        pytest.skip("TFLite has no such resize")
    rng = np.random.default_rng(0)
    attributes: dict[str, AttributeValue] = {"align_corners": align, "half_pixel_centers": half}
    for size, out in (
        ((5, 7), (10, 14)), ((9, 4), (3, 5)), ((1, 3), (4, 1)), ((6, 6), (6, 6)), ((1, 1), (4, 3)),
        ((3, 2), (33, 17)), ((2, 3), (16, 24)), ((4, 3), (4, 6)), ((3, 4), (6, 4)),
    ):  # fmt: skip
        pixels = values(rng, dtype, (2, *size, 3))
        if dtype in {U8, I8}:
            pixels[1] = rng.choice([np.iinfo(pixels.dtype).min, np.iinfo(pixels.dtype).max], 3)
        image = fed(pixels, 0.1 if dtype in {U8, I8} else None)
        model = layer(
            "RESIZE_BILINEAR", [image, whole(*out)], (dtype, image.quantization), attributes
        )
        check(model, feeds([image]))
        nearest = layer(
            "RESIZE_NEAREST_NEIGHBOR", [image, whole(*out)], (dtype, image.quantization), attributes
        )
        check(nearest, feeds([image]))


@pytest.mark.parametrize(("dtype", "wide"), [(U8, U16), (I8, I16)], ids=lambda d: d.value)
def test_resizes_by_a_power_of_two_need_16_bits(dtype: DType, wide: DType) -> None:
    attributes: dict[str, AttributeValue] = {"align_corners": False, "half_pixel_centers": True}
    for out, short, count in (((8, 16), True, 2), ((8, 8), True, 1), ((9, 12), False, 1),
                              ((4, 4), True, 1)):  # fmt: skip
        image = fed(np.zeros((1, 4, 4, 3), dtype.numpy), 0.1)
        model = layer(
            "RESIZE_BILINEAR", [image, whole(*out)], (dtype, image.quantization), attributes
        )
        bodies = [kernel.body for kernel in legalise(model).kernels]
        assert len(bodies) == count
        types = {s.dtype for body in bodies for s in body.steps}
        assert types <= {dtype, wide} if short else wide not in types


@pytest.mark.parametrize("indexes", [I32, I64, I16], ids=lambda d: d.value)
@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.value)
def test_gather_at_positions_that_a_run_knows(dtype: DType, indexes: DType) -> None:
    rng = np.random.default_rng(1)
    for axis, batches, shape, chosen in (
        (0, 0, (7, 3), (4,)), (1, 0, (2, 5, 3), (2, 3)), (2, 1, (3, 2, 6), (3, 4)),
        (0, 0, (9,), ()), (-1, 0, (2, 70), (33,)),
    ):  # fmt: skip
        data = fed(numbers(rng, dtype, shape))
        places = fed(rng.integers(0, shape[axis], chosen).astype(indexes.numpy))
        attributes: dict[str, AttributeValue] = {"axis": axis, "batch_dims": batches}
        model = layer("GATHER", [data, places], (dtype, None), attributes)
        check(model, feeds([data, places]))
        if places.array.size > 1:
            outside = places.array.copy()
            outside.reshape(-1)[-1] = shape[axis]
            with pytest.raises(GeneralFailure, match="an index outside"):
                interpreter.run(legalise(model), [data.array, outside])
        known = Given(places.array)
        check(layer("GATHER", [data, known], (dtype, None), attributes), feeds([data]))


def test_gather_nd_at_positions_that_a_run_knows() -> None:
    rng = np.random.default_rng(2)
    for shape, outer, depth in (((4, 5, 6), (3,), 2), ((7, 3), (2, 2), 1), ((3, 4), (5,), 2)):
        data = fed(numbers(rng, F32, shape))
        places = np.stack([rng.integers(0, n, outer) for n in shape[:depth]], -1).astype(np.int32)
        model = layer("GATHER_ND", [data, fed(places)], (F32, None), {})
        check(model, [data.array, places])
        outside = places.copy()
        outside.reshape(-1)[0] = -1
        with pytest.raises(GeneralFailure, match="an index outside"):
            interpreter.run(legalise(model), [data.array, outside])
        check(layer("GATHER_ND", [data, Given(places)], (F32, None), {}), [data.array])


def test_constant_indexes_outside_are_refused() -> None:
    data = fed(np.zeros((4, 3), np.float32))
    for kind, array in (("GATHER", np.array([4])), ("GATHER_ND", np.array([[0, 3]]))):
        places = Given(array.astype(np.int32))
        attributes: dict[str, AttributeValue] = {"axis": 0, "batch_dims": 0}
        model = layer(kind, [data, places], (F32, None), attributes if kind == "GATHER" else {})
        (site,) = make_sites(model)
        with pytest.raises(Refused, match="outside"):
            judge(site)


@pytest.mark.parametrize("dtype", [F32, I8, I64, BOOL], ids=lambda d: d.value)
def test_one_hot(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    on, off = (Given(numbers(rng, dtype, ())) for _ in range(2))
    for axis in (-1, 0, 1):
        places = fed(rng.integers(-1, 6, (3, 4)).astype(np.int32))
        inputs = [places, Given(np.array(5, np.int32)), on, off]
        check(layer("ONE_HOT", inputs, (dtype, None), {"axis": axis}), feeds([places]))


@pytest.mark.parametrize("kind", ["ARG_MAX", "ARG_MIN"])
@pytest.mark.parametrize("dtype", [F32, F16, I8, U8, I16, I32, I64, BOOL], ids=lambda d: d.value)
def test_the_place_of_an_extreme(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    for axis, made in ((0, I32), (1, I64), (-1, I32)):
        array = numbers(rng, dtype, (5, 4, 19))
        array[:, 1] = array[:, 2]
        if dtype.is_float:
            array[1] = math.nan
            array[2, 0, :7] = math.nan
            array[3] = math.inf
        model = layer(kind, [fed(array), whole(axis)], (made, None), {})
        check(model, [array])
    for size in (256, 257):
        long = numbers(rng, dtype, (3, size))
        check(layer(kind, [fed(long), whole(1)], (I32, None), {}), [long])


@pytest.mark.parametrize("dtype", [F32, I8, I32, I64], ids=lambda d: d.value)
def test_the_greatest_in_order(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    array = (values(rng, dtype, (3, 40)) % 7).astype(dtype.numpy)
    if dtype.is_float:
        array[0, :3] = [math.nan, math.inf, -math.inf]
    model = layer(
        "TOPK_V2", [fed(array), Given(np.array(6, np.int32))], (dtype, None), {}, [(I32, None)]
    )
    check(model, [array])


def test_embedding_lookup() -> None:
    rng = np.random.default_rng(6)
    ids = fed(rng.integers(0, 9, (5,)).astype(np.int32))
    plain = Given(values(rng, F32, (9, 3, 2)))
    model = layer("EMBEDDING_LOOKUP", [ids, plain], (F32, None), {})
    check(model, feeds([ids]))
    with pytest.raises(GeneralFailure, match="an index outside"):
        interpreter.run(legalise(model), [np.array([0, 1, 9, 2, 3], np.int32)])
    table = Given(values(rng, I8, (9, 6)), (0.03,))
    check(layer("EMBEDDING_LOOKUP", [ids, table], (F32, None), {}), feeds([ids]))


@pytest.mark.parametrize("dtype", [F32, I32, I64], ids=lambda d: d.value)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(dtype: DType, exclusive: bool, reverse: bool) -> None:
    rng = np.random.default_rng(7)
    array = values(rng, dtype, (3, 8, 5))
    attributes: dict[str, AttributeValue] = {"exclusive": exclusive, "reverse": reverse}
    for axis in range(3):
        model = layer(
            "CUMSUM", [fed(array), Given(np.array(axis, np.int32))], (dtype, None), attributes
        )
        check(model, [array])


def test_reversed_sequences() -> None:
    rng = np.random.default_rng(8)
    array, lengths = values(rng, F32, (3, 6, 2)), np.array([0, 6, 4], np.int32)
    attributes: dict[str, AttributeValue] = {"seq_dim": 1, "batch_dim": 0}
    model = layer("REVERSE_SEQUENCE", [fed(array), fed(lengths)], (F32, None), attributes)
    check(model, [array, lengths])
    with pytest.raises(GeneralFailure, match="a length over 6"):
        interpreter.run(legalise(model), [array, np.array([0, 7, 4], np.int32)])


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.value)
def test_elements_of_every_type_are_moved(dtype: DType) -> None:
    rng = np.random.default_rng(9)
    array = fed(numbers(rng, dtype, (2, 6, 4)))
    out = (dtype, None)
    two, second = whole(2, 1, 3), Given(np.array(1, np.int32))
    check(layer("TILE", [array, two], out, {}), feeds([array]))
    check(layer("TRANSPOSE", [array, whole(2, 0, 1)], out, {}), feeds([array]))
    check(layer("REVERSE_V2", [array, whole(1)], out, {}), feeds([array]))
    check(layer("BROADCAST_TO", [array, whole(3, 2, 6, 4)], out, {}), feeds([array]))
    check(layer("SPLIT", [second, array], out, {"num_splits": 2}, [(dtype, None)]), feeds([array]))
    joined: dict[str, AttributeValue] = {"axis": 1, "fused_activation_function": "NONE"}
    check(layer("CONCATENATION", [array, array], out, joined), feeds([array, array]))
    check(layer("SLICE", [array, whole(0, 1, 0), whole(2, 3, -1)], out, {}), feeds([array]))
    if dtype is not BOOL:
        check(layer("CHANNEL_SHUFFLE", [array], out, {"groups": 3, "axis": 1}), feeds([array]))


WINDOW: Final[dict[str, AttributeValue]] = {
    "stride_h": 2, "stride_w": 1, "filter_height": 3, "filter_width": 2,
}  # fmt: skip


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("dtype", [F32, F16, I8, U8, I16], ids=lambda d: d.value)
@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"])
def test_pools(kind: str, dtype: DType, padding: str) -> None:
    if kind == "L2_POOL_2D" and not dtype.is_float:
        pytest.skip("a pool of floats alone")
    rng = np.random.default_rng(10)
    array = values(rng, dtype, (2, 7, 6, 5))
    if dtype.is_float:
        array[0, 1, 1, :3] = [math.nan, math.inf, -math.inf]
    for activation in ("NONE", "RELU6"):
        scale = None if dtype.is_float else 0.05
        given = fed(array, scale, 3 if dtype in {I8, U8} else 0)
        attributes = {**WINDOW, "padding": padding, "fused_activation_function": activation}
        check(layer(kind, [given], (dtype, given.quantization), attributes), [array])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((k, d) for k in ("SUM", "MEAN") for d in NUMBERS),
     *((k, d) for k in ("REDUCE_MAX", "REDUCE_MIN") for d in (*NUMBERS, BOOL)),
     *(("REDUCE_PROD", d) for d in (F32, I32, I64, BOOL)), ("SUM", BOOL), ("REDUCE_ANY", BOOL),
     ("REDUCE_ALL", BOOL)],
)  # fmt: skip
def test_reductions(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(11)
    for axes in ((0,), (1, 2), (-1,), (0, 1, 2)):
        array = numbers(rng, dtype, (3, 4, 21))
        scale, made = None, None
        if dtype in {I8, U8, I16}:
            scale, zero = 0.03, 0 if dtype is I16 else 5
            made = Quantization((0.03 if kind.startswith("REDUCE") else 0.04,), (zero,))
        elif dtype.is_float and kind.startswith("REDUCE"):
            array[0, 0, :3] = [math.nan, 1.0, 2.0]
        given = fed(array, scale, made.zero_point if made else 0)
        for keep in (False, True):
            model = layer(kind, [given, whole(*axes)], (dtype, made), {"keep_dims": keep})
            check(model, [array])


@pytest.mark.parametrize("dtype", [F32, F16, I8, U8, I16], ids=lambda d: d.value)
@pytest.mark.parametrize("scale", [0.004, 0.1, 1.0])
def test_softmax(dtype: DType, scale: float) -> None:
    rng = np.random.default_rng(12)
    made = {I8: (2.0**-8, -128), U8: (2.0**-8, 0), I16: (2.0**-15, 0)}.get(dtype)
    for shape in ((3, 10), (2, 3, 257), (1, 1)):
        if made is None:
            array = (rng.standard_normal(shape) * 20).astype(dtype.numpy)
            given, after = fed(array), None
        else:
            zero = 0 if dtype is I16 else 7
            given = fed(values(rng, dtype, shape), scale / 100 if dtype is I16 else scale, zero)
            after = Quantization((made[0],), (made[1],))
        check(layer("SOFTMAX", [given], (dtype, after), {"beta": 1.0}), feeds([given]))


@pytest.mark.parametrize("dtype", [F32, F16, I8, U8], ids=lambda d: d.value)
def test_logarithms_of_softmax(dtype: DType) -> None:
    rng = np.random.default_rng(13)
    for scale in (0.01, 0.06, 0.3):
        if dtype.is_float:
            given, made = fed((rng.standard_normal((4, 33)) * 9).astype(dtype.numpy)), None
        else:
            given = fed(values(rng, dtype, (4, 33)), scale, 9)
            made = Quantization((1 / 16,), (127 if dtype is I8 else 255,))
        check(layer("LOG_SOFTMAX", [given], (dtype, made), {}), feeds([given]))


@pytest.mark.parametrize("dtype", [F32, F16, I8, U8], ids=lambda d: d.value)
def test_vectors_over_their_length(dtype: DType) -> None:
    rng = np.random.default_rng(14)
    for shape in ((5, 8), (2, 3, 41), (1, 1), (1, 3000)):
        array = values(rng, dtype, shape)
        array.reshape(-1, shape[-1])[0] = 0
        zero = {I8: -3, U8: 128}.get(dtype, 0)
        given = fed(array, None if dtype.is_float else 0.01, zero)
        made = None if dtype.is_float else Quantization((1 / 128,), (0 if dtype is I8 else 128,))
        attributes: dict[str, AttributeValue] = {"fused_activation_function": "NONE"}
        check(layer("L2_NORMALIZATION", [given], (dtype, made), attributes), [array])


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("radius", [0, 2, 50])
def test_normalisation_by_neighbours(beta: float, radius: int) -> None:
    rng = np.random.default_rng(15)
    array = values(rng, F32, (2, 3, 2, 11))
    attributes: dict[str, AttributeValue] = {
        "radius": radius, "bias": 1.5, "alpha": 0.3, "beta": beta,
    }  # fmt: skip
    check(layer("LOCAL_RESPONSE_NORMALIZATION", [fed(array)], (F32, None), attributes), [array])


@pytest.mark.parametrize("dtype", [F32, I32, I64, DType.UINT8], ids=lambda d: d.value)
def test_shapes_and_fills(dtype: DType) -> None:
    rng = np.random.default_rng(16)
    array = fed(numbers(rng, dtype, (3, 4)))
    check(layer("SHAPE", [array], (I32, None), {}), feeds([array]))
    check(layer("RANK", [array], (I32, None), {}), feeds([array]))
    check(layer("ZEROS_LIKE", [array], (dtype, None), {}), feeds([array]))
    value = fed(numbers(rng, dtype, ()))
    check(layer("FILL", [whole(2, 5), value], (dtype, None), {}), feeds([value]))
