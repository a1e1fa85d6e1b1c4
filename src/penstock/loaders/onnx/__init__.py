"""ONNX files (opset 6 and later, ai.onnx.ml) to models; the `onnx` package parses them."""

from penstock.loaders.onnx.reader import load
from penstock.loaders.onnx.wire import may_begin, recognizes

__all__ = ["load", "may_begin", "recognizes"]
