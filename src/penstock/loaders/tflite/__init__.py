"""Loads TensorFlow Lite files (schema v3)."""

from penstock.loaders.tflite.reader import load, may_begin, recognizes

__all__ = ["load", "may_begin", "recognizes"]
