"""Inputs that are no picture or no sound are refused, saying what they look like."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock import ir
from penstock.cli.failures import FileError
from penstock.cli.feed import Wishes, feed
from penstock.cli.feed.normalization import UNIT
from penstock.cli.feed.sound import read_sound
from tests.unit.cli.support_slots import Body, slot

FLOAT = ir.DType.FLOAT32


def tensor(
    shape: ir.Shape, dtype: ir.DType = FLOAT, scale: float | None = None, zero_point: int = 0
) -> ir.Operand:
    quantization = None if scale is None else ir.Quantization((scale,), (zero_point,))
    return ir.Operand(dtype, shape, ir.Lifetime.SUBGRAPH_INPUT, "x", quantization)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 8), (255, 0, 255)).save(tmp_path / "x.png")
    return tmp_path / "x.png"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    with wave.open(str(tmp_path / "x.wav"), "wb") as opened:
        opened.setsampwidth(2)
        opened.setnchannels(1)
        opened.setframerate(16000)
        opened.writeframes(np.arange(-8000, 8000, dtype="<i2").tobytes())
    return tmp_path / "x.wav"


def dense(outputs: int, values: int, result: ir.Shape) -> Body:
    def body(builder: ir.ModelBuilder, x: int) -> int:
        weights = builder.constant(np.ones((outputs, values), np.float32), "w")
        (y,) = builder.operation("FULLY_CONNECTED", [x, weights, None], [(FLOAT, result)])
        return y

    return body


def reshaped(shape: tuple[int, ...], kernel: tuple[int, int]) -> Body:
    """A reshape and a convolution with a kernel of that height and width."""

    def body(builder: ir.ModelBuilder, x: int) -> int:
        to = builder.constant(np.array(shape, np.int32), "shape")
        (map_,) = builder.operation("RESHAPE", [x, to], [(FLOAT, shape)])
        weights = builder.constant(np.ones((2, *kernel, shape[3]), np.float32), "w")
        bias = builder.constant(np.zeros(2, np.float32), "b")
        (y,) = builder.operation(
            "CONV_2D",
            [map_, weights, bias],
            [(FLOAT, (*shape[:3], 2))],
            {"padding": "SAME", "stride_h": 1, "stride_w": 1},
        )
        return y

    return body


def refused_picture(picture: Path, *arguments: object) -> str:
    with pytest.raises(FileError) as caught:
        feed([str(picture)], [slot(*arguments)], Wishes())  # type: ignore[arg-type]  # passed on
    return str(caught.value)


def refused_sound(sound: Path, *arguments: object) -> str:
    with pytest.raises(FileError) as caught:
        read_sound(sound, slot(*arguments))  # type: ignore[arg-type]  # passed on
    return str(caught.value)


@pytest.mark.parametrize(
    ("shape", "looks"),
    [
        ((1, 49, 10, 1), ""),
        ((1, 30, 1, 40), "a spectrogram, or a sequence, of 30 x 40 values"),
        ((1, 640), "640 values in a row"),
        ((None, 640), "640 values in a row"),
        ((None, 43844, 1), "43844 values in a row"),
        ((1, None, 40), "a spectrogram, or a sequence, of ? x 40 values"),
    ],
)
def test_a_picture_for_another_shape_says_what_that_looks_like(
    picture: Path, shape: ir.Shape, looks: str
) -> None:
    if not looks:
        assert feed([str(picture)], [slot(tensor(shape))], Wishes()).pictures
        return
    assert f"which is not the shape of a picture; it looks like {looks}" in refused_picture(
        picture, tensor(shape)
    )


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point"),
    [(ir.DType.INT8, 0.5847, 83), (ir.DType.INT8, 0.102, -128), (ir.DType.UINT8, 0.3, 255)],
)
def test_a_picture_for_a_grey_map_of_another_range_is_refused(
    picture: Path, dtype: ir.DType, scale: float, zero_point: int
) -> None:
    text = refused_picture(picture, tensor((1, 49, 10, 1), dtype, scale, zero_point))
    assert "no usual normalization of pictures gives" in text
    assert "a spectrogram, or a sequence, of 49 x 10 values" in text


def test_the_callers_scheme_makes_a_map_of_any_range_a_picture(picture: Path) -> None:
    given = slot(tensor((1, 49, 10, 1), ir.DType.INT8, 0.5847, 83))
    assert feed([str(picture)], [given], Wishes(UNIT)).pictures


def test_metadata_that_calls_it_an_image_makes_a_map_of_any_range_a_picture(picture: Path) -> None:
    given = slot(
        tensor((1, 49, 10, 1), ir.DType.INT8, 0.5847, 83), ir.TensorMetadata(content="image")
    )
    assert feed([str(picture)], [given], Wishes()).pictures


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point"),
    [
        (ir.DType.INT8, 1 / 255, -128),
        (ir.DType.UINT8, 1.0, 0),
        (ir.DType.INT8, 3.24 / 255, -95),
        (ir.DType.INT8, 1 / 127, 0),
    ],
)
def test_grey_pictures_of_usual_ranges_are_fed(
    picture: Path, dtype: ir.DType, scale: float, zero_point: int
) -> None:
    given = slot(tensor((1, 28, 28, 1), dtype, scale, zero_point))
    assert feed([str(picture)], [given], Wishes()).pictures


@pytest.mark.parametrize("content", ["feature", "audio"])
def test_a_picture_for_what_the_metadata_calls_otherwise_is_refused(
    picture: Path, content: str
) -> None:
    assert "which the metadata calls a" in refused_picture(
        picture, tensor((1, 8, 8, 3)), ir.TensorMetadata(content=content)
    )


def test_a_picture_for_a_sequence_of_vectors_is_refused(picture: Path) -> None:
    text = refused_picture(picture, tensor((1, 8, 6)), None, dense(5, 6, (1, 8, 5)))
    assert (
        "FULLY_CONNECTED reads each row by itself; it looks like a sequence of 8 vectors of 6 "
        "values" in text
    )


def test_a_grey_picture_that_goes_into_one_layer_as_a_whole_is_fed(picture: Path) -> None:
    given = slot(tensor((1, 8, 6)), None, dense(5, 48, (1, 5)))
    assert feed([str(picture)], [given], Wishes()).pictures


def test_a_picture_for_places_in_a_table_is_refused(picture: Path) -> None:
    def body(builder: ir.ModelBuilder, x: int) -> int:
        table = builder.constant(np.ones((300, 4), np.float32), "t")
        (y,) = builder.operation("GATHER", [table, x], [(FLOAT, (1, 8, 8, 4))])
        return y

    text = refused_picture(picture, tensor((1, 8, 8), ir.DType.INT32), None, body)
    assert "takes its values for places in a table" in text


def test_a_picture_for_four_channels_that_no_convolution_reads_is_refused(picture: Path) -> None:
    text = refused_picture(picture, tensor((1, 8, 6, 4)), None, dense(5, 4, (1, 8, 6, 5)))
    assert "which does not read pictures of 4 channels" in text


def test_a_picture_for_truth_values_is_refused(picture: Path) -> None:
    assert "no numbers for pixels" in refused_picture(picture, tensor((1, 8, 8, 3), ir.DType.BOOL))


def test_a_sound_for_a_spectrogram_is_refused(sound: Path) -> None:
    text = refused_sound(sound, tensor((1, 1960)), None, reshaped((1, 49, 40, 1), (10, 8)))
    assert "which is no waveform" in text
    assert "it looks like a spectrogram of 49 x 40 values" in text


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [((1, 1960, 1, 1), (9, 1)), ((1, 1, 1960, 1), (1, 9)), ((1, 49, 40, 1), (1, 9))],
)
def test_a_sound_for_convolutions_in_one_dimension_is_fed(
    sound: Path, shape: tuple[int, ...], kernel: tuple[int, int]
) -> None:
    samples, _, _ = read_sound(sound, slot(tensor((1, 1960)), None, reshaped(shape, kernel)))
    assert samples.shape == (1, 1960)


@pytest.mark.parametrize("batch", [1, None])
def test_a_sound_for_a_vector_of_features_is_refused(sound: Path, batch: int | None) -> None:
    text = refused_sound(sound, tensor((batch, 257)), None, dense(4, 257, (batch, 4)))
    assert "it looks like a vector of 257 features" in text


def test_a_sound_for_what_the_metadata_calls_a_sound_is_fed(sound: Path) -> None:
    metadata = ir.TensorMetadata(content="audio")
    samples, _, _ = read_sound(sound, slot(tensor((1, 257)), metadata, dense(4, 257, (1, 4))))
    assert samples.shape == (1, 257)


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point"),
    [(ir.DType.INT8, 0.1017, -128), (ir.DType.INT16, 0.000625, 0), (ir.DType.INT8, 0.391, 89)],
)
def test_a_sound_for_a_range_that_is_no_waveforms_is_refused(
    sound: Path, dtype: ir.DType, scale: float, zero_point: int
) -> None:
    text = refused_sound(sound, tensor((1, 1960), dtype, scale, zero_point))
    assert "is not that of a waveform" in text


def test_a_range_of_16_bit_samples_takes_16_bit_samples(sound: Path) -> None:
    samples, _, _ = read_sound(sound, slot(tensor((1, 16000), ir.DType.INT16, 1.0, 0)))
    assert samples[0, :3].tolist() == [-8000, -7999, -7998]
    samples, _, _ = read_sound(sound, slot(tensor((1, 16000), ir.DType.INT8, 256.0, 0)))
    assert samples[0, 0] == round(-8000 / 256)


def test_sound_for_a_picture_input_is_refused_with_a_hint(sound: Path) -> None:
    assert "it looks like a picture of 224 x 224" in refused_sound(sound, tensor((1, 224, 224, 3)))


def test_a_batch_of_unknown_size_takes_one_sound(sound: Path) -> None:
    samples, _, _ = read_sound(sound, slot(tensor((None, 16000))))
    assert samples.shape == (1, 16000)
    samples, _, _ = read_sound(sound, slot(tensor((None, None))))
    assert samples.shape == (1, 16000)


def test_a_sound_of_another_rate_than_the_metadata_says_is_refused(sound: Path) -> None:
    metadata = ir.TensorMetadata(content="audio", sample_rate=44100)
    text = refused_sound(sound, tensor((1, 16000)), metadata)
    assert (
        "has 16000 samples a second, and the model takes 44100: resample the sound to 44100 Hz"
        in text
    )
    metadata = ir.TensorMetadata(content="audio", sample_rate=16000)
    assert read_sound(sound, slot(tensor((1, 16000)), metadata))[1] == []
