"""The header of a FlatBuffer: the offset of its root, and the identifier of the file."""

from __future__ import annotations

import struct
from typing import Final

from penstock import errors

HEADER_BYTES: Final = 8
_U32: Final = struct.Struct("<I")


def check_header(head: memoryview, size: int | None, identifier: bytes) -> None:
    """Raises the errors of `flatbuffer.Reader.root` early, if the first bytes show a defect of the
    length, the *identifier*, or the offset of the root.

    *head* are the first 8 bytes or more of a file of *size* bytes (None: unknown).
    """
    if not len(head):
        raise errors.NotAModel("the file is empty; copy or download it again")
    if len(head) < HEADER_BYTES:
        raise errors.TruncatedModel(
            f"the file has {len(head)} bytes, a header takes {HEADER_BYTES}"
        )
    found = bytes(head[4:HEADER_BYTES])
    if found != identifier:
        raise errors.NotAModel(f"the file identifier is {found!r}, not {identifier!r}", offset=4)
    (root,) = _U32.unpack_from(head, 0)
    if not root or (size is not None and root + 4 > size):
        raise errors.OffsetOutOfBounds(
            f"refers to byte {root} of {size}; the file is damaged or truncated", offset=0
        )
