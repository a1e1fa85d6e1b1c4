"""TFLite's metadata format as a schema; the notation is explained in `fields.py`."""

from __future__ import annotations

from typing import Final

from penstock.export.tflite import metadata_schema
from penstock.export.tflite.fields import Schema

METADATA: Final = Schema(
    metadata_schema.FILE_IDENTIFIER,
    "ModelMetadata",
    metadata_schema.TABLES,
    metadata_schema.ENUMS,
    metadata_schema.UNIONS,
)
"""TensorFlow Lite metadata schema 1.5."""
