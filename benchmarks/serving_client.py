"""A client by tritonclient, for `benchmarks.serving`; runs in the environment of the clients.

`serving_client.py GRPC_PORT NAME DATATYPE ROWS,...`: each line on stdin is answered by a line of
JSON. `grpc COUNT` and `shared COUNT` ask one request after the other, and say the seconds of each.
`closed KIND CLIENTS COUNT` asks with so many requests at a time, of the kind `grpc` or `shared`; it
says the requests a second, and the processor time of the client in seconds a request. `open
RATE COUNT SEED` asks at random times, RATE a second on average, whatever is answered (Poisson
arrivals); it says the seconds of each request since the time at which it was due, and how many were
refused.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import tritonclient.grpc as library
from tritonclient.utils import shared_memory, triton_to_np_dtype

Answered: TypeAlias = Callable[..., None]
"""Called with the result and the error of a request, one of which is None."""

KEY: Final = f"/penstock-bench-{os.getpid()}"
MOST_OUTPUT: Final = 1 << 20
MOST_CLIENTS: Final = 16
"""Requests at a time; each has its own tensors in shared memory."""

MOST_SECONDS: Final = 60.0
"""The longest wait for answers after the last request of an open loop."""


def main() -> None:
    port, name, datatype, dimensions = sys.argv[1:]
    shape = [int(size) for size in dimensions.split(",")]
    client: Any = library.InferenceServerClient(f"127.0.0.1:{port}")
    array = np.zeros(shape, triton_to_np_dtype(datatype))
    (output,) = client.get_model_metadata("net").outputs
    size = array.nbytes
    room = -(-size // 4096) * 4096 + MOST_OUTPUT
    region = shared_memory.create_shared_memory_region("r", KEY, MOST_CLIENTS * room)
    try:
        client.register_system_shared_memory("r", KEY, MOST_CLIENTS * room)
        slots = []
        for start in range(0, MOST_CLIENTS * room, room):
            shared_memory.set_shared_memory_region(region, [array], offset=start)
            placed = library.InferInput(name, shape, datatype)
            placed.set_shared_memory("r", size, offset=start)
            wanted = library.InferRequestedOutput(output.name)
            wanted.set_shared_memory("r", MOST_OUTPUT, offset=start + room - MOST_OUTPUT)
            slots.append(([placed], [wanted]))

        def over_grpc() -> None:
            given = library.InferInput(name, shape, datatype)
            given.set_data_from_numpy(array)
            client.infer("net", [given]).as_numpy(output.name)

        def in_shared_memory() -> None:
            inputs, outputs = slots[0]
            client.infer("net", inputs, outputs=outputs)

        given = library.InferInput(name, shape, datatype)
        given.set_data_from_numpy(array)
        begin = partial(client.async_infer, "net", [given])

        def begin_grpc(_slot: int, answered: Answered) -> None:
            message = library.InferInput(name, shape, datatype)
            message.set_data_from_numpy(array)
            client.async_infer("net", [message], partial(read, answered))

        def read(answered: Answered, result: Any, error: Exception | None) -> None:
            if result is not None:
                result.as_numpy(output.name)
            answered(result, error)

        def begin_shared(slot: int, answered: Answered) -> None:
            inputs, outputs = slots[slot]
            client.async_infer("net", inputs, answered, outputs=outputs)

        kinds = {"grpc": begin_grpc, "shared": begin_shared}
        calls: dict[str, Callable[..., Any]] = {
            "grpc": lambda count: one_by_one(over_grpc, int(count)),
            "shared": lambda count: one_by_one(in_shared_memory, int(count)),
            "closed": lambda kind, clients, count: closed(kinds[kind], int(clients), int(count)),
            "open": lambda rate, count, seed: opened(begin, float(rate), int(count), int(seed)),
        }
        for line in sys.stdin:
            kind, *words = line.split()
            sys.stdout.write(json.dumps(calls[kind](*words)) + "\n")
            sys.stdout.flush()
    finally:
        shared_memory.destroy_shared_memory_region(region)


def one_by_one(call: Callable[[], None], count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def closed(begin: Callable[[int, Answered], None], clients: int, count: int) -> dict[str, float]:
    """Requests a second with *clients* of them at a time, and processor time in seconds of each."""
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    errors: list[Exception] = []

    def answered(slot: int, result: object, error: Exception | None) -> None:  # noqa: ARG001
        if error is not None:
            errors.append(error)
        slots.put(slot)

    for slot in range(clients):
        slots.put(slot)
    began, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        slot = slots.get()
        begin(slot, partial(answered, slot))
    for _ in range(clients):
        slots.get()
    if errors:
        raise errors[0]
    seconds, spent = time.perf_counter() - began, time.process_time() - used
    return {"rate": count / seconds, "spent": spent / count}


def opened(begin: Callable[..., Any], rate: float, count: int, seed: int) -> dict[str, Any]:
    """Asks *count* requests, *rate* a second on average, without waiting for answers."""
    chance, left = random.Random(seed), threading.Semaphore(0)  # noqa: S311  # no secret
    taken: list[float] = []
    refused: list[str] = []

    def answered(due: float, result: object, error: Any) -> None:  # noqa: ARG001  # by name
        if error is None:
            taken.append(time.perf_counter() - due)
        elif "RESOURCE_EXHAUSTED" in str(error.status()):
            refused.append(str(error))
        else:
            raise error
        left.release()

    due = time.perf_counter()
    for _ in range(count):
        due += chance.expovariate(rate)
        time.sleep(max(0.0, due - time.perf_counter()))
        begin(partial(answered, due))
    for _ in range(count):
        if not left.acquire(timeout=MOST_SECONDS):
            raise TimeoutError("requests got no answer")
    return {"seconds": taken, "refused": len(refused)}


main()
