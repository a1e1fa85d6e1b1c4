"""LiteRT's Python interpreter, call for call.

import penstock.tflite as tflite

interpreter = tflite.Interpreter("net.tflite")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.tflite.aliases import install_aliases
    from penstock.tflite.delegates import Delegate, load_delegate
    from penstock.tflite.interpreter import Interpreter, InterpreterWithCustomOps, SignatureRunner
    from penstock.tflite.resolver import OpResolverType

__getattr__ = lazily(
    __name__,
    {
        "aliases": "install_aliases",
        "delegates": "Delegate load_delegate",
        "interpreter": "Interpreter InterpreterWithCustomOps SignatureRunner",
        "resolver": "OpResolverType",
    },
)

__all__ = [
    "Delegate",
    "Interpreter",
    "InterpreterWithCustomOps",
    "OpResolverType",
    "SignatureRunner",
    "install_aliases",
    "load_delegate",
]
