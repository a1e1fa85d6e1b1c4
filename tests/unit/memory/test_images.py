from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import GeneralFailure
from penstock.hal import Memory
from penstock.memory import (
    HardwareBuffer,
    HardwareBufferDescription as Description,
    HardwareBufferFormat as Format,
    HardwareBufferHandle,
)
from penstock.memory.hardware import BITS_PER_PIXEL, PIXELS, map_image
from penstock.testing.resources import Resources


@given(st.sampled_from(sorted(PIXELS)), st.integers(1, 99), st.integers(1, 9), st.integers(1, 3))
def test_an_image_is_read_and_written_row_by_row(
    kind: int, width: int, height: int, layers: int
) -> None:
    name, numbers = PIXELS[kind]
    with HardwareBuffer.allocate(width, height, format=kind, layers=layers) as buffer:
        with map_image(buffer.memory) as mapping:
            assert mapping.array.shape == (layers, height, width, numbers)
            assert mapping.array.dtype == np.dtype(name)
            mapping.array[...] = 7
        with buffer.lock() as content:
            pixels = content.view(name).reshape(layers, height, buffer.description.stride, numbers)
            assert (pixels[:, :, :width] == 7).all()
            assert not pixels[:, :, width:].any()


def test_pixels_are_as_large_as_their_format_says() -> None:
    for kind, (name, numbers) in PIXELS.items():
        assert np.dtype(name).itemsize * numbers * 8 == BITS_PER_PIXEL[kind]


@pytest.mark.parametrize(
    ("name", "description", "size", "complaint"),
    [
        ("hardware_buffer_blob", Description(Format.R8_UNORM, 4, 4), 16, "is no hardware_buffer"),
        ("hardware_buffer", "an image", 16, "is no hardware_buffer"),
        ("hardware_buffer", Description(Format.BLOB, 16), 16, "0x21 cannot be read"),
        ("hardware_buffer", Description(Format.Y8CB8CR8_420, 2, 2), 16, "0x23 cannot be read"),
        ("hardware_buffer", Description(0x777, 2, 2), 16, "0x777 cannot be read"),
        ("hardware_buffer", Description(Format.R8_UNORM, 4, 5), 16, "takes 20 bytes"),
        ("hardware_buffer", Description(Format.R8_UNORM, 4, 4, stride=5), 16, "takes 20 bytes"),
        ("hardware_buffer", Description(Format.R8_UNORM, 4, 4, stride=3), 16, "describes no image"),
        ("hardware_buffer", Description(Format.R8_UNORM, 0, 4), 16, "describes no image"),
        ("hardware_buffer", Description(Format.R8_UNORM, 4, 4), 1 << 40, "claims the bytes"),
    ],
)
def test_malformed_image_memory_is_refused(
    name: str, description: Any, size: int, complaint: str
) -> None:
    with HardwareBuffer.allocate(16) as buffer, Resources.unchanged("a refused image"):
        memory = Memory(name, HardwareBufferHandle(buffer.memory.handle.fd, description), size)
        with pytest.raises(GeneralFailure, match=complaint):
            map_image(memory)


def test_a_plain_descriptor_is_no_image() -> None:
    with pytest.raises(GeneralFailure, match="is no hardware_buffer"):
        map_image(Memory("hardware_buffer", 3, 16))
