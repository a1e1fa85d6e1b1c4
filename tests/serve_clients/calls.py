"""Calls a server by tritonclient, over both transports, and prints what comes back as JSON.

Runs in the clients' own environment: `calls.py PORT GRPC_PORT ADMIN_TOKEN`. The server has the
models `relu` (float32, rows of 3) and `words` (3 strings, which it reverses).
"""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException, shared_memory

PREFIX = "penstock-clients-"
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
WORDS = np.array([b"a", b"", b"\xff"], object)


def outcome(call: Callable[[], Any]) -> Any:
    """What *call* returns, or the status of its error."""
    try:
        return call()
    except InferenceServerException as error:
        return error.status()


def calls(library: ModuleType, address: str, token: str) -> dict[str, Any]:
    """The results of every call, by name."""
    client: Any = library.InferenceServerClient(address)
    names = {"authorization": f"Bearer {token}"}
    as_json = {"as_json": True} if library is over_grpc else {}

    def given(name: str, array: Any, datatype: str) -> Any:
        tensor = library.InferInput(name, [*array.shape], datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def infer(model: str = "relu", **options: Any) -> Any:
        return client.infer(model, [given("x", X, "FP32")], **options)

    first = infer(request_id="7", priority=1, timeout=60_000_000)
    named = infer(outputs=[library.InferRequestedOutput("y")], model_version="1")
    words = client.infer("words", [given("x", WORDS, "BYTES")])
    found: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model ready": client.is_model_ready("relu", "1"),
        "server": client.get_server_metadata(**as_json)["name"],
        "model": client.get_model_metadata("relu", **as_json),
        "first": first.as_numpy("y").tolist(),
        "named": named.as_numpy("y").tolist(),
        "response": response_of(first),
        "words": [word.decode("latin-1") for word in words.as_numpy("y")],
        "unknown model": outcome(lambda: infer("nix")),
        "unknown output": outcome(
            lambda: infer(outputs=[library.InferRequestedOutput("nix")]),
        ),
        "index without token": outcome(client.get_model_repository_index),
    }
    if library is over_http:
        tensor = library.InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(X, binary_data=False)
        output = library.InferRequestedOutput("y", binary_data=False)
        found["in json"] = client.infer("relu", [tensor], outputs=[output]).as_numpy("y").tolist()
        for name in ("gzip", "deflate"):
            answer = infer(request_compression_algorithm=name)
            found[name] = answer.as_numpy("y").tolist()
    found["config"] = config_of(client.get_model_config("relu", **as_json))
    statistics = client.get_inference_statistics("relu", "1", **as_json)
    (found["statistics"],) = statistics["model_stats"]
    everything = client.get_inference_statistics(**as_json)
    found["statistics of"] = sorted(each["name"] for each in everything["model_stats"])
    x = given("x", X, "FP32")
    found["refused"] = refused(library, client, x)
    found["invalid"] = invalid(library, client, x, names)
    found["shared memory"] = in_shared_memory(library, client)
    found["asynchronous"] = asynchronous(library, client, given("x", X, "FP32"))
    index = client.get_model_repository_index(headers=names, **as_json)
    found["index"] = sorted(entry["name"] for entry in index_of(index))
    client.unload_model("relu", headers=names)
    found["unloaded"] = outcome(infer)
    client.load_model("relu", headers=names)
    found["loaded"] = infer().as_numpy("y").tolist()
    client.close()
    return found


def config_of(found: Any) -> Any:
    """The configuration; over gRPC it lies in an answer."""
    return found.get("config", found)


def refused(library: ModuleType, client: Any, tensor: Any) -> dict[str, Any]:
    """How the calls end that a server of Penstock does not answer."""
    found = {
        "trace settings": outcome(client.get_trace_settings),
        "new trace settings": outcome(lambda: client.update_trace_settings("relu", {})),
        "log settings": outcome(client.get_log_settings),
        "new log settings": outcome(lambda: client.update_log_settings({})),
        "cuda shared memory": outcome(client.get_cuda_shared_memory_status),
        "register cuda": outcome(lambda: client.register_cuda_shared_memory("c", b"AAAA", 0, 8)),
        "unregister cuda": outcome(client.unregister_cuda_shared_memory),
    }
    if library is over_grpc:
        answers: queue.Queue[Any] = queue.Queue()

        def keep(result: Any, error: Any) -> None:
            answers.put("answered" if error is None else error.status())

        client.start_stream(keep)
        # The stream may have been refused before this call, which then raises.
        outcome(lambda: client.async_stream_infer("relu", [tensor]))
        found["stream"] = answers.get(timeout=30)
        client.stop_stream(cancel_requests=True)
    return found


def invalid(library: ModuleType, client: Any, tensor: Any, names: dict[str, str]) -> dict[str, Any]:
    """How requests end that ask for what no model here has."""
    classes = [library.InferRequestedOutput("y", class_count=2)]
    return {
        "sequence": outcome(lambda: client.infer("relu", [tensor], sequence_id=5)),
        "classes": outcome(lambda: client.infer("relu", [tensor], outputs=classes)),
        "config": outcome(lambda: client.load_model("relu", headers=names, config="{}")),
    }


def in_shared_memory(library: ModuleType, client: Any) -> dict[str, Any]:
    """The output that the server writes into a region, and the regions before and after."""
    key, size = f"{PREFIX}{os.getpid()}", X.nbytes
    region = shared_memory.create_shared_memory_region("r", f"/{key}", 2 * size)
    try:
        shared_memory.set_shared_memory_region(region, [X])
        client.register_system_shared_memory("r", f"/{key}", 2 * size)
        as_json = {"as_json": True} if library is over_grpc else {}
        status = client.get_system_shared_memory_status(**as_json)
        tensor = library.InferInput("x", [*X.shape], "FP32")
        tensor.set_shared_memory("r", size)
        output = library.InferRequestedOutput("y")
        output.set_shared_memory("r", size, offset=size)
        client.infer("relu", [tensor], outputs=[output])
        written = shared_memory.get_contents_as_numpy(region, np.float32, [*X.shape], size)
        values = written.tolist()
        client.unregister_system_shared_memory("r")
        after = client.get_system_shared_memory_status(**as_json)
    finally:
        shared_memory.destroy_shared_memory_region(region)
    return {"output": values, "registered": "r" in str(status), "after": "'r'" in str(after)}


def asynchronous(library: ModuleType, client: Any, tensor: Any) -> Any:
    """The output of an inference that a thread of the client's waits for."""
    if library is over_http:
        return client.async_infer("relu", [tensor]).get_result().as_numpy("y").tolist()
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer("relu", [tensor], lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=30)
    return str(error) if error is not None else result.as_numpy("y").tolist()


def response_of(result: Any) -> dict[str, Any]:
    """The names and the receipt in the answer."""
    answer = result.get_response()
    if isinstance(answer, dict):
        receipt, fields = answer["parameters"]["receipt"], answer
        return {**{n: fields[n] for n in ("model_name", "model_version", "id")}, "receipt": receipt}
    receipt = answer.parameters["receipt"].string_param
    own = {"model_name": answer.model_name, "model_version": answer.model_version, "id": answer.id}
    return {**own, "receipt": receipt}


def index_of(index: Any) -> Any:
    return index["models"] if isinstance(index, dict) else index


def fields() -> dict[str, dict[str, list[int]]]:
    """Number and type of every field of every message, by message and name."""
    found: dict[str, dict[str, list[int]]] = {}

    def add(message: Any) -> None:
        found[message.full_name] = {f.name: [f.number, f.type] for f in message.fields}
        for nested in message.nested_types:
            add(nested)

    for file in (service_pb2, model_config_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            add(message)
    return found


def main() -> None:
    port, grpc_port, token = sys.argv[1:]
    results = {
        "http": calls(over_http, f"127.0.0.1:{port}", token),
        "grpc": calls(over_grpc, f"127.0.0.1:{grpc_port}", token),
        "fields": fields(),
    }
    sys.stdout.write(json.dumps(results))


main()
