"""Loads TensorFlow Lite files (schema v3)."""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.loaders.tflite.header import may_begin, recognizes
    from penstock.loaders.tflite.reader import load

__all__ = ["load", "may_begin", "recognizes"]

__getattr__ = lazily(__name__, {"header": "may_begin recognizes", "reader": "load"})
