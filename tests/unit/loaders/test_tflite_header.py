"""The first bytes of a TFLite file."""

from __future__ import annotations

from penstock.export.tflite import schema
from penstock.loaders.tflite import header


def test_the_header_has_the_identifier_of_the_schema() -> None:
    assert header.FILE_IDENTIFIER == schema.FILE_IDENTIFIER
