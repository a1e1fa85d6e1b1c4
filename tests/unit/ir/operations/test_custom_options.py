"""Options of custom operators: read as their kernels read them; anything else is one named
error.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from flatbuffers import flexbuffers
from hypothesis import given, strategies as st

from penstock.errors import InvalidAttribute
from penstock.ir import Attributes
from penstock.ir.operations import custom_options as options

PARSERS = (
    options.detection_post_process,
    options.transpose_conv_bias,
    options.windowed_pool,
    options.audio_spectrogram,
    options.mfcc,
    options.numeric_verify,
    options.hadamard_size,
    options.dot_product_attention,
)
DETECTION: dict[str, Any] = {
    "max_detections": 10,
    "max_classes_per_detection": 1,
    "nms_score_threshold": 0.25,
    "nms_iou_threshold": 0.5,
    "num_classes": 90,
    "y_scale": 10.0,
    "x_scale": 10.0,
    "h_scale": 5.0,
    "w_scale": 5.0,
}


def attributes(data: bytes) -> Attributes:
    return Attributes(custom_code="Op", custom_options=data)


def flexible(**values: Any) -> Attributes:
    return attributes(bytes(flexbuffers.Dumps(values)))


def test_detection_options_are_read() -> None:
    found = options.detection_post_process(flexible(**DETECTION, _output_quantized=True))
    assert (found.max_detections, found.num_classes, found.y_scale) == (10, 90, 10.0)
    assert (found.detections_per_class, found.use_regular_nms) == (100, False)
    found = options.detection_post_process(
        flexible(**DETECTION, detections_per_class=7, use_regular_nms=True)
    )
    assert (found.detections_per_class, found.use_regular_nms) == (7, True)


def test_custom_options_accept_integers_for_reals() -> None:
    assert options.detection_post_process(flexible(**{**DETECTION, "y_scale": 10})).y_scale == 10.0


@pytest.mark.parametrize("name", DETECTION)
@pytest.mark.parametrize("value", ["text", [1, 2], {"a": 1}, None])
def test_custom_options_refuse_values_that_are_not_numbers(name: str, value: Any) -> None:
    with pytest.raises(InvalidAttribute, match=name):
        options.detection_post_process(flexible(**{**DETECTION, name: value}))


@pytest.mark.parametrize("value", [-1, 2**31, 2**40, 1.5])
def test_custom_options_refuse_counts_out_of_range(value: float) -> None:
    with pytest.raises(InvalidAttribute, match="max_detections"):
        options.detection_post_process(flexible(**{**DETECTION, "max_detections": value}))


def test_sound_options_are_read() -> None:
    found = options.audio_spectrogram(flexible(window_size=480, stride=160, magnitude_squared=True))
    assert (found.window_size, found.stride, found.magnitude_squared) == (480, 160, True)
    assert found.fft_length == 512
    for bad in ({"window_size": 1, "stride": 1}, {"window_size": 4, "stride": 0}, {"stride": 1}):
        with pytest.raises(InvalidAttribute):
            options.audio_spectrogram(flexible(**bad, magnitude_squared=False))
    cepstrum = options.mfcc(
        flexible(
            upper_frequency_limit=4000,
            lower_frequency_limit=20,
            filterbank_channel_count=40,
            dct_coefficient_count=13,
        )
    )
    assert (cepstrum.upper_frequency_limit, cepstrum.dct_coefficient_count) == (4000.0, 13)
    verify = options.numeric_verify(flexible(tolerance=5.0, log_if_failed=True))
    assert (verify.tolerance, verify.log_if_failed) == (5.0, True)


def test_mediapipe_structures_are_read() -> None:
    pool = options.windowed_pool(attributes(struct.pack("<8i", 1, 2, 3, 4, 5, 1, -1, -1)))
    assert pool == options.WindowedPool("SAME", 2, 3, 4, 5, "RELU")
    short = options.windowed_pool(attributes(struct.pack("<5i", 2, 1, 1, 2, 2)))
    assert short == options.WindowedPool("VALID", 1, 1, 2, 2, "NONE")
    assert options.transpose_conv_bias(attributes(struct.pack("<3i", 1, 2, 3))) == (
        options.TransposeConvBias("SAME", 2, 3)
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 11,
        struct.pack("<3i", 0, 2, 2),
        struct.pack("<3i", 1, 0, 2),
        struct.pack("<3i", 1, 2, -1),
    ],
)
def test_mediapipe_structures_refuse_invalid_values(data: bytes) -> None:
    with pytest.raises(InvalidAttribute):
        options.transpose_conv_bias(attributes(data))


def test_too_long_custom_options_are_refused() -> None:
    with pytest.raises(InvalidAttribute, match="bytes of options"):
        options.mfcc(attributes(bytes(options.MAX_OPTIONS + 1)))


@given(st.binary(max_size=200))
def test_any_bytes_give_custom_options_or_a_named_error(data: bytes) -> None:
    for parse in PARSERS:
        try:
            parse(attributes(data))
        except InvalidAttribute:
            continue


@given(st.data())
def test_damaged_bytes_give_custom_options_or_a_named_error(data: Any) -> None:
    content = bytearray(flexbuffers.Dumps(DETECTION))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = options.detection_post_process(attributes(bytes(content)))
    except InvalidAttribute:
        return
    assert 0 <= found.max_detections < 2**31


def test_deeply_nested_custom_options_are_cheap() -> None:
    """Each level holds the one below twice: written out, 2**40 elements."""
    builder = flexbuffers.Builder(share_strings=True, share_keys=True)
    deep: Any = 1
    for _ in range(12):
        deep = [deep, deep]
    with builder.Map():
        builder.Key("max_detections")
        builder.Add(deep)
    start = time.process_time()
    with pytest.raises(InvalidAttribute):
        options.detection_post_process(attributes(bytes(builder.Finish())))
    assert time.process_time() - start < 1
