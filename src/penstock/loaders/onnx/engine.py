"""The `onnx` package: parses the protobuf, imported when the first ONNX file is loaded."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import NotAModel, NotAvailable

MISSING = "loading an ONNX file needs the onnx package: install it by 'pip install penstock[onnx]'"
MAX_MESSAGE = 200


def onnx() -> Any:
    """The package. Raises `NotAvailable`, naming the extra, where it is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise NotAvailable(f"{MISSING} ({error})") from error


def parse(content: bytes) -> Any:
    """The `ModelProto` in *content*; `NotAModel` where the bytes are no such message."""
    package = onnx()
    try:
        return package.ModelProto.FromString(content)
    except Exception as error:  # noqa: BLE001  # the parser's own class differs by its version
        said = str(error).strip().splitlines()
        reason = said[0][:MAX_MESSAGE] if said else type(error).__name__
        raise NotAModel(f"the file is no ONNX model: {reason}") from None
