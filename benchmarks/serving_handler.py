"""A server of grpcio that does nothing but run a network, for `benchmarks.serving`: what gRPC
itself adds to a run.

    python -m benchmarks.serving_handler NETWORK DEVICE ROWS,...

It prints its port. The call `/Bare/Run` runs the network on zeros and ignores its message.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

import penstock

CALL = "/Bare/Run"


def main() -> None:
    path, device, dimensions = sys.argv[1:]
    shape = tuple(int(size) for size in dimensions.split(","))
    compiled = penstock.compile(path, devices=[device], shapes={0: shape})
    array = np.zeros(shape, compiled.inputs[0].dtype.numpy)
    compiled.run([array])

    def run(_message: bytes, _context: Any) -> bytes:
        compiled.run([array])
        return b""

    _, service, name = CALL.split("/")
    calls = {name: grpc.unary_unary_rpc_method_handler(run)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, calls)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
