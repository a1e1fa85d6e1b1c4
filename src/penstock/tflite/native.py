"""`Delegate`: native delegates, by LiteRT's name for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.delegates.native import NativeDelegate


class Delegate(NativeDelegate):
    """A TFLite delegate in the shared library *library*, which LiteRT runs; see
    `penstock.delegates.load_delegate`.

    Raises `DelegateNotLoaded`, a `ValueError` and an `OSError`, if the library cannot be loaded or
    LiteRT is not installed; `AttributeError` for a library without a delegate; `ValueError`, in the
    library's words, if it refuses to make one.
    """

    # LiteRT's words for a missing argument name its class.
    def __init__(self, library: str, options: Mapping[Any, Any] | None = None) -> None:
        super().__init__(library, options)
