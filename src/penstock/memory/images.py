"""Images of hardware buffers, for drivers that take the non-BLOB form; the runtime never maps one."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.errors import GeneralFailure
from penstock.hal import Memory
from penstock.memory.handles import (
    HardwareBufferDescription,
    HardwareBufferFormat as Format,
)
from penstock.memory.mapping import HARDWARE_BUFFER, Mapping, announce, region_of

PIXELS: Final[dict[int, tuple[str, int]]] = {
    Format.R8G8B8A8_UNORM: ("u1", 4),
    Format.R8G8B8X8_UNORM: ("u1", 4),
    Format.R8G8B8_UNORM: ("u1", 3),
    Format.R16G16B16A16_FLOAT: ("<f2", 4),
    Format.D16_UNORM: ("<u2", 1),
    Format.D32_FLOAT: ("<f4", 1),
    Format.S8_UINT: ("u1", 1),
    Format.R8_UNORM: ("u1", 1),
    Format.R16_UINT: ("<u2", 1),
    Format.R16G16_UINT: ("<u2", 2),
}
"""Formats whose pixels are whole numbers side by side: their dtype, and how many make a pixel."""


def map_image(memory: Memory) -> Mapping:
    """Maps a `hardware_buffer`: an array of shape (layers, height, width, numbers a pixel), of the
    format's dtype.

    Its rows may lie apart. The CPU's use of a dma-buf is announced until the mapping is closed.
    Raises `GeneralFailure` for other memory, a description at odds with the name or with the
    buffer's size, a format whose pixels are no numbers side by side, and what cannot be mapped.
    """
    description: object = None
    match memory.name, memory.handle:
        case "hardware_buffer", (int(fd), HardwareBufferDescription() as description):
            pass
        case _:
            raise GeneralFailure(
                f"{memory.name!r} with the handle {memory.handle!r} is no {HARDWARE_BUFFER}"
            )
    if description.format not in PIXELS:
        raise GeneralFailure(f"images of format {description.format:#x} cannot be read here")
    name, numbers = PIXELS[description.format]
    kind: np.dtype[np.generic] = np.dtype(name)
    d, stride = description, description.stride or description.width
    if min(d.width, d.height, d.layers) < 1 or stride < d.width:
        raise GeneralFailure(f"{d} describes no image")
    needed = d.layers * d.height * stride * numbers * kind.itemsize
    if needed > memory.size:
        raise GeneralFailure(f"{d} takes {needed} bytes of a memory of {memory.size}")
    flat = region_of(memory, fd)[:needed].view(kind)
    mapping = Mapping(flat.reshape(d.layers, d.height, stride, numbers)[:, :, : d.width])
    mapping.ended = announce(mapping, fd)
    return mapping
