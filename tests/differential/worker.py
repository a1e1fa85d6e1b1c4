"""LiteRT in a process of its own: it takes files and inputs from a pipe, and sends back what came
of them.

Models drawn at random bring LiteRT down now and then; a process apart takes nobody with it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TypeAlias

import numpy as np

from penstock.ir import NDArray
from penstock.ir.types import PACKED, dtype_of

Answer: TypeAlias = "list[NDArray] | str"
"""The outputs of a run, or why LiteRT refuses it."""

MEMORY = 3 << 30
"""Address space beyond what the process has when it starts: what asks for more is refused, not paid
for.
"""

RESOLVERS = ("BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES")


def serve(pipe: Connection) -> None:
    """Answers (file, inputs, resolver) until None comes."""
    _limit_memory()
    while (task := pipe.recv()) is not None:
        pipe.send(run(*task))


def run(file: bytes, inputs: Sequence[NDArray], resolver: str) -> Answer:
    """One run with the kernels of *resolver*, or the reason why there is none."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    try:
        interpreter = Interpreter(
            model_content=file,
            num_threads=1,
            experimental_op_resolver_type=OpResolverType[resolver],
        )
        details = interpreter.get_input_details()
        for detail, array in zip(details, inputs, strict=True):
            if tuple(detail["shape"]) != array.shape:
                interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for detail, array in zip(details, inputs, strict=True):
            interpreter.set_tensor(detail["index"], plain(array))
        interpreter.invoke()
        return [
            np.array(interpreter.get_tensor(detail["index"]))
            for detail in interpreter.get_output_details()
        ]
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        return str(error) or type(error).__name__


def plain(array: NDArray) -> NDArray:
    """*array* as LiteRT's interface has it: types of less than a byte in bytes."""
    dtype = dtype_of(array.dtype)
    if dtype not in PACKED:
        return array
    return array.astype(np.uint8 if dtype.value.startswith("u") else np.int8)


def _limit_memory() -> None:
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY,) * 2)
    except (ImportError, OSError):  # a system that knows no such limit
        return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
