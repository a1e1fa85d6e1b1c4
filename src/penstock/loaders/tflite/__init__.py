"""Loads TensorFlow Lite files (schema v3)."""

from penstock.loaders.tflite.reader import load, recognizes

__all__ = ["load", "recognizes"]
