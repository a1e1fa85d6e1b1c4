"""Runs a program on LiteRT's reference kernels: python reference_kernels.py PROGRAM [ARGS].

Penstock is held to those; by default LiteRT runs what XNNPACK makes of a network.
"""

from __future__ import annotations

import inspect
import runpy
import sys

from ai_edge_litert import interpreter

if __name__ == "__main__":
    constructor = interpreter.Interpreter.__init__
    constructor.__defaults__ = tuple(
        interpreter.OpResolverType.BUILTIN_REF if isinstance(d, interpreter.OpResolverType) else d
        for d in constructor.__defaults__
    )
    resolver = inspect.signature(constructor).parameters["experimental_op_resolver_type"].default
    if resolver is not interpreter.OpResolverType.BUILTIN_REF:
        sys.exit("this LiteRT chooses its kernels in another way")
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
