"""Recognises a TFLite file by its first bytes."""

from __future__ import annotations

from typing import Final

from penstock.loaders.header import check_header

FILE_IDENTIFIER: Final = b"TFL3"
"""As in `penstock.export.tflite.schema`, which is much to import for this."""


def recognizes(content: memoryview) -> bool:
    """Whether *content* carries TFLite's file identifier."""
    return bytes(content[4:8]) == FILE_IDENTIFIER


def may_begin(head: memoryview, size: int | None) -> bool:
    """Whether a file of *size* bytes (None: unknown) that begins with *head* is a TFLite file. If
    its root is outside the file, raises the error that `load` raises.
    """
    if not recognizes(head):
        return False
    check_header(head, size, FILE_IDENTIFIER)
    return True
