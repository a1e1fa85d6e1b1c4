"""A client by tritonclient, for `benchmarks.serving`; runs in the environment of the clients.

`serving_client.py GRPC_PORT NAME DATATYPE ROWS,...`: each line on stdin is `grpc COUNT` or `shared
COUNT`, and is answered by a line with the seconds of each request, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tritonclient.grpc as library
from tritonclient.utils import shared_memory, triton_to_np_dtype

KEY: Final = f"/penstock-bench-{os.getpid()}"
MOST_OUTPUT: Final = 1 << 20


def main() -> None:
    port, name, datatype, dimensions = sys.argv[1:]
    shape = [int(size) for size in dimensions.split(",")]
    client: Any = library.InferenceServerClient(f"127.0.0.1:{port}")
    array = np.zeros(shape, triton_to_np_dtype(datatype))
    (output,) = client.get_model_metadata("net").outputs
    size = array.nbytes
    region = shared_memory.create_shared_memory_region("r", KEY, size + MOST_OUTPUT)
    try:
        shared_memory.set_shared_memory_region(region, [array])
        client.register_system_shared_memory("r", KEY, size + MOST_OUTPUT)
        placed = library.InferInput(name, shape, datatype)
        placed.set_shared_memory("r", size)
        wanted = library.InferRequestedOutput(output.name)
        wanted.set_shared_memory("r", MOST_OUTPUT, offset=size)

        def over_grpc() -> None:
            given = library.InferInput(name, shape, datatype)
            given.set_data_from_numpy(array)
            client.infer("net", [given]).as_numpy(output.name)

        def in_shared_memory() -> None:
            client.infer("net", [placed], outputs=[wanted])

        calls: dict[str, Callable[[], None]] = {"grpc": over_grpc, "shared": in_shared_memory}
        for line in sys.stdin:
            kind, count = line.split()
            sys.stdout.write(json.dumps([seconds(calls[kind]) for _ in range(int(count))]) + "\n")
            sys.stdout.flush()
    finally:
        shared_memory.destroy_shared_memory_region(region)


def seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


main()
