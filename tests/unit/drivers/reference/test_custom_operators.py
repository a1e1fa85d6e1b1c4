"""Custom operators of LiteRT: language models, verification, MediaPipe and sound."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from penstock import loaders
from penstock.drivers.reference import sound
from penstock.drivers.reference.kernel import Kernel
from penstock.errors import GeneralFailure, InvalidAttribute, LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from penstock.ir.infer import infer_shapes
from penstock.ir.operations import OPERATIONS
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, q, refusal, run_alone
from tests.support_runs import BUILT_IN, DELEGATED, assert_same_runs, custom, flexible
from tests.unit.loaders.files import FileBuilder

F32 = DType.FLOAT32


def floats(seed: int, *shape: int) -> NDArray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.FLOAT16])
@pytest.mark.parametrize(("tolerance", "log"), [(5.0, False), (0.0, False), (0.05, True)])
def test_numeric_verify_returns_differences(dtype: DType, tolerance: float, log: bool) -> None:
    stored = np.random.default_rng(0).integers(0, 100, (2, 3)).astype(dtype.numpy)
    scale = q(0.1, 0 if dtype is DType.INT16 else 3) if dtype.is_integer else None
    options = flexible({"tolerance": tolerance, "log_if_failed": log})
    given = [Given(stored, scale), Given(10 * floats(1, 2, 3))]
    assert_agrees(run_alone("CUSTOM:NumericVerify", given, [Wanted(F32)], options), 0)


def verify(reference: NDArray, **options: Any) -> NDArray:
    operands = [Operand(DType.INT8, (2,), quantization=q(0.5)), Operand(F32, (2,))]
    row = custom("NumericVerify", flexible(options))
    run = kernel_of("CUSTOM:NumericVerify", operands, [Operand(F32, (2,))], **row)
    return run([np.array([2, 4], np.int8), reference])[0]


def test_numeric_verify_fails_beyond_the_tolerance_on_request() -> None:
    options = {"tolerance": 2.0, "log_if_failed": True}
    assert verify(np.array([2, 3], np.float32), **options).tolist() == [-1, -1]
    with pytest.raises(GeneralFailure, match=r"2\.0 stands for 3\.5"):
        verify(np.array([1, 3.5], np.float32), **options)
    with pytest.raises(ShapeMismatch):
        verify(np.zeros(3, np.float32), **options)


def rotate(x: NDArray, size: int) -> bytes:
    file = FileBuilder()
    ends = file.tensor("x", x.shape), file.tensor("y", x.shape)
    options = flexible({"hadamard_size": size})
    file.operator("CUSTOM:aeq.hadamard_rotation", ends[:1], ends[1:], custom_options=options)
    return file.finish(ends[:1], ends[1:])


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 4), 4), ((2, 8), 4), ((3, 64), 64), ((1, 2, 128), 128), ((2, 2), 1), ((2, 1024), 1024)],
)
def test_hadamard_rotation_is_the_product_with_the_matrix(
    shape: tuple[int, ...], size: int
) -> None:
    x = floats(2, *shape)
    assert_same_runs(rotate(x, size), [[x]], BUILT_IN)


def test_hadamard_rotation_is_its_own_inverse() -> None:
    x = floats(3, 2, 16)
    row = custom("x", flexible({"hadamard_size": 16}))
    run = kernel_of(
        "CUSTOM:aeq.hadamard_rotation", [Operand(F32, None)], [Operand(F32, None)], **row
    )
    np.testing.assert_allclose(run(run([x]))[0], x, 1e-6, 1e-6)
    with pytest.raises(ShapeMismatch, match="multiple of 16"):
        run([floats(3, 2, 24)])


@pytest.mark.parametrize("size", [0, 3, -4, 2**40])
def test_hadamard_rotation_refuses_other_sizes(size: int) -> None:
    row = custom("x", flexible({"hadamard_size": size}))
    with pytest.raises(InvalidAttribute, match="hadamard_size"):
        kernel_of("CUSTOM:aeq.hadamard_rotation", [Operand(F32, None)], [Operand(F32, None)], **row)


def attend(arrays: list[NDArray], options: dict[str, Any]) -> bytes:
    file = FileBuilder()
    inputs = [file.tensor(f"i{i}", a.shape) for i, a in enumerate(arrays)]
    output = file.tensor("output", arrays[0].shape)
    name = "CUSTOM:odml.scaled_dot_product_attention"
    file.operator(name, inputs, [output], custom_options=flexible(options))
    return file.finish(inputs, [output])


@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"scale": 0.375, "logit_cap": 2.5}])
@pytest.mark.parametrize("mask", [None, (1, 1, 3, 5), (1, 1, 1, 5), (1, 4, 3, 5)])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_agrees_with_its_definition(
    options: dict[str, Any], mask: tuple[int, ...] | None, heads: int
) -> None:
    arrays = [floats(4, 1, 3, 4, 8), floats(5, 1, 5, heads, 8), floats(6, 1, 5, heads, 8)]
    arrays += [] if mask is None else [floats(7, *mask)]
    assert_same_runs(attend(arrays, options), [arrays], DELEGATED, 1e-6)


def test_attention_refuses_heads_that_do_not_divide() -> None:
    arrays = [floats(4, 1, 3, 4, 8), floats(5, 1, 5, 3, 8), floats(6, 1, 5, 3, 8)]
    with pytest.raises(ShapeMismatch, match="a multiple of the keys' 3"):
        infer_shapes(loaders.load(attend(arrays, {})))


REAL = Operand(DType.FLOAT32, None)
SAME, VALID = 1, 2


def _pool(kind: str, padding: int, stride: int, size: int) -> Kernel:
    options = struct.pack("<6i", padding, stride, stride, size, size, 0)
    outputs = [REAL, REAL] if kind == "MaxPoolingWithArgmax2D" else [REAL]
    inputs = [REAL] if kind == "MaxPoolingWithArgmax2D" else [REAL, REAL]
    return kernel_of(f"CUSTOM:{kind}", inputs, outputs, custom_code=kind, custom_options=options)


@pytest.mark.parametrize("size", [2, 3])
def test_pooling_remembers_the_place_of_the_greatest_by_column(size: int) -> None:
    image = np.random.default_rng(0).normal(0, 1, (2, 2 * size, 3 * size, 4)).astype(np.float32)
    values, places = _pool("MaxPoolingWithArgmax2D", VALID, size, size)([image])
    indexes = places.view(np.uint32)
    for at in np.ndindex(values.shape):
        n, y, x, c = at
        window = image[n, y * size : (y + 1) * size, x * size : (x + 1) * size, c]
        assert values[at] == window.max()
        assert window.T.reshape(-1)[indexes[at]] == window.max()


@pytest.mark.parametrize("size", [2, 3])
def test_unpooling_puts_values_back_and_zero_elsewhere(size: int) -> None:
    image = np.random.default_rng(1).normal(0, 1, (1, 2 * size, 2 * size, 3)).astype(np.float32)
    values, places = _pool("MaxPoolingWithArgmax2D", VALID, size, size)([image])
    (back,) = _pool("MaxUnpooling2D", VALID, size, size)([values, places])
    assert back.shape == image.shape
    np.testing.assert_array_equal(back[back != 0], image[back != 0])
    assert np.count_nonzero(back) == values.size


def test_unpooling_refuses_an_index_outside_its_window() -> None:
    kernel = _pool("MaxUnpooling2D", SAME, 2, 2)
    values = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="windows"):
        kernel([values, np.full((1, 1, 1, 1), 4, np.uint32).view(np.float32)])


@pytest.mark.parametrize(("padding", "stride"), [(SAME, 2), (VALID, 2), (SAME, 1)])
def test_a_transposed_convolution_spreads_filters_and_cuts_the_padding(
    padding: int, stride: int
) -> None:
    rng = np.random.default_rng(2)
    image = rng.normal(0, 1, (1, 4, 5, 3)).astype(np.float32)
    filters = rng.normal(0, 1, (2, 3, 3, 3)).astype(np.float32)
    bias = rng.normal(0, 1, 2).astype(np.float32)
    kind = "Convolution2DTransposeBias"
    options = struct.pack("<3i", padding, stride, stride)
    kernel = kernel_of(
        f"CUSTOM:{kind}", [REAL] * 3, [REAL], custom_code=kind, custom_options=options
    )
    (got,) = kernel([image, filters, bias])
    np.testing.assert_allclose(got, _spread(image, filters, bias, padding, stride), 1e-4, 1e-5)


def _spread(image: NDArray, filters: NDArray, bias: NDArray, padding: int, stride: int) -> NDArray:
    _, height, width, _ = image.shape
    channels, tall, wide, _ = filters.shape
    whole = np.zeros((1, stride * (height - 1) + tall, stride * (width - 1) + wide, channels))
    for y, x in np.ndindex(height, width):
        block = np.einsum("i,ohwi->hwo", image[0, y, x], filters)
        whole[0, y * stride : y * stride + tall, x * stride : x * stride + wide] += block
    if padding == SAME:
        rows = max(tall - (height - 1) % stride - 1, 0)
        columns = max(wide - (width - 1) % stride - 1, 0)
        top, left = rows // 2, columns // 2
        whole = whole[:, top : whole.shape[1] - (rows - top)]
        whole = whole[:, :, left : whole.shape[2] - (columns - left)]
    result: NDArray = whole + bias
    return result


SOUNDS = [(100, 1, 16, 8), (100, 2, 17, 5), (64, 1, 64, 64), (63, 1, 64, 1), (640, 1, 400, 160)]
SOUNDS += [(10, 3, 2, 1), (4000, 1, 480, 160)]


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("samples", "channels", "window", "stride"), SOUNDS)
def test_spectrogram_agrees_with_litert(
    samples: int, channels: int, window: int, stride: int, squared: bool
) -> None:
    sound = np.random.default_rng(samples).normal(size=(samples, channels)).astype(np.float32)
    options = {"window_size": window, "stride": stride, "magnitude_squared": squared}
    found = run_alone("CUSTOM:AudioSpectrogram", [Given(sound)], [Wanted(F32)], flexible(options))
    assert_agrees(found, 1e-7)


def spectrum(sound: NDArray, **options: Any) -> NDArray:
    inputs, outputs = [Operand(F32, sound.shape)], [Operand(F32, None)]
    row = custom("AudioSpectrogram", flexible(options))
    (result,) = kernel_of("CUSTOM:AudioSpectrogram", inputs, outputs, **row)([sound])
    return result


def test_a_spectrogram_is_a_windowed_fourier_sum() -> None:
    sound = np.random.default_rng(0).normal(size=(20, 1)).astype(np.float32)
    got = spectrum(sound, window_size=6, stride=5, magnitude_squared=True)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(6) / 6)
    for frame in range(3):
        part = sound[5 * frame : 5 * frame + 6, 0] * window
        for frequency in range(5):
            turns = np.exp(-2j * np.pi * frequency * np.arange(6) / 8)
            wanted = abs((part * turns).sum()) ** 2
            assert got[0, frame, frequency] == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_spectrogram_refuses_too_large_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    none = spectrum(np.zeros((1, 1), np.float32), window_size=2**20, stride=1)
    assert none.shape == (1, 0, 2**19 + 1)
    monkeypatch.setattr(sound, "MOST_ELEMENTS", 100)
    with pytest.raises(LimitExceeded, match="100 is the limit"):
        spectrum(np.zeros((99, 1), np.float32), window_size=8, stride=1)
    with pytest.raises(ShapeMismatch):
        spectrum(np.zeros(99, np.float32), window_size=8, stride=1)


FILTERS: dict[str, tuple[tuple[int, ...], int, dict[str, float]]] = {
    "speech": ((1, 4, 257), 16000, {}),
    "every coefficient": (
        (2, 3, 513),
        16000,
        {"upper_frequency_limit": 8000.0, "dct_coefficient_count": 40},
    ),
    "from 0 Hz": ((1, 3, 129), 8000, {"lower_frequency_limit": 0.0}),
    "a fraction is cut off": ((1, 3, 129), 8000, {"upper_frequency_limit": 3999.5}),
    "above the spectrum": ((1, 3, 129), 8000, {"upper_frequency_limit": 5000.0}),
    "few frequencies": ((1, 3, 9), 8000, {}),
    "just inside": ((1, 2, 129), 8000, {"upper_frequency_limit": 4030.0}),
    "just outside": ((1, 2, 129), 8000, {"upper_frequency_limit": 4032.0}),
    "one coefficient": ((1, 3, 129), 8000, {"dct_coefficient_count": 1}),
}


def cepstral(**changes: float) -> dict[str, float]:
    return {
        "upper_frequency_limit": 4000.0,
        "lower_frequency_limit": 20.0,
        "filterbank_channel_count": 40,
        "dct_coefficient_count": 13,
        **changes,
    }


@pytest.mark.parametrize("case", FILTERS)
def test_mfcc_agrees_with_litert(case: str) -> None:
    shape, rate, changes = FILTERS[case]
    power = (np.random.default_rng(1).normal(size=shape) ** 2).astype(np.float32)
    given = [Given(power), Given(np.array([rate], np.int32), constant=True)]
    options = flexible(cepstral(**changes))
    assert_agrees(run_alone("CUSTOM:Mfcc", given, [Wanted(F32)], options), 1e-7)


def coefficients(power: NDArray, rate: int, **changes: float) -> NDArray:
    inputs, outputs = [Operand(F32, None), Operand(DType.INT32, (1,))], [Operand(F32, None)]
    row = custom("Mfcc", flexible(cepstral(**changes)))
    (result,) = kernel_of("CUSTOM:Mfcc", inputs, outputs, **row)(
        [power, np.array([rate], np.int32)]
    )
    return result


@pytest.mark.parametrize(
    ("bins", "rate", "changes"),
    [
        (9, 0, {}),
        (9, -8000, {}),
        (1, 8000, {}),
        (9, 8000, {"lower_frequency_limit": 5000.0}),
        (9, 8000, {"lower_frequency_limit": -20.0}),
    ],
)
def test_mfcc_refuses_impossible_filters(bins: int, rate: int, changes: dict[str, float]) -> None:
    with pytest.raises(ShapeMismatch):
        coefficients(np.ones((1, 1, bins), np.float32), rate, **changes)


def test_mfcc_refuses_more_coefficients_than_channels() -> None:
    inputs, outputs = [Operand(F32, None), Operand(DType.INT32, (1,))], [Operand(F32, None)]
    options = flexible(cepstral(dct_coefficient_count=41))
    row = custom("Mfcc", options)
    assert "41 coefficients of 40" in refusal("CUSTOM:Mfcc", inputs, outputs, **row)


def test_mfcc_refuses_too_large_filters() -> None:
    big = {"filterbank_channel_count": 2**20, "dct_coefficient_count": 2**20}
    with pytest.raises(LimitExceeded, match="cosine transform"):
        coefficients(np.ones((1, 1, 9), np.float32), 8000, **big)


BROKEN = [
    flexible(cepstral(upper_frequency_limit=float("nan"))),
    flexible(cepstral(lower_frequency_limit=1e30)),
    flexible(cepstral(filterbank_channel_count=0)),
    flexible(cepstral(dct_coefficient_count=-1)),
    flexible({}),
    b"",
    b"\xff" * 40,
    bytes(1 << 17),
]


@pytest.mark.parametrize("options", BROKEN)
def test_sound_operators_name_malformed_options(options: bytes) -> None:
    inputs, outputs = [Operand(F32, (1, 1, 9)), Operand(DType.INT32, (1,))], [Operand(F32, None)]
    row = custom("Mfcc", options)
    assert OPERATIONS["CUSTOM:Mfcc"].complete(row)
    with pytest.raises(InvalidAttribute, match="Mfcc"):
        kernel_of("CUSTOM:Mfcc", inputs, outputs, **row)
