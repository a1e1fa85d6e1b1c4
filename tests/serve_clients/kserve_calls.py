"""Calls a server by KServe's clients, over both transports, and prints what comes back as JSON.

Runs in the clients' own environment: `kserve_calls.py PORT GRPC_PORT TOKEN`. The server has the
models `relu` (float32, rows of 3) and `words` (3 strings, which it reverses), and wants the token.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import httpx
import numpy as np
from grpc import RpcError
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
WORDS = np.array([b"a", b"", b"z"], object)


def request(model: str, array: Any, datatype: str, *, binary: bool = True) -> InferRequest:
    tensor = InferInput("x", [*array.shape], datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [tensor], request_id="7")


async def outcome(call: Awaitable[Any]) -> Any:
    """What *call* returns, or the status of its error."""
    try:
        return await call
    except httpx.HTTPStatusError as error:
        return str(error.response.status_code)
    except RpcError as error:
        return error.code().name


async def over_rest(address: str, token: str) -> dict[str, Any]:
    names = {"authorization": f"Bearer {token}"}
    client = InferenceRESTClient(RESTConfig(protocol="v2"))

    async def infer(model: str, array: Any, datatype: str, **options: Any) -> Any:
        made = request(model, array, datatype, **options)
        # The client adds the header of this request to the mapping.
        return await client.infer(address, made, model_name=model, headers={**names})

    first = await infer("relu", X, "FP32")
    found = {
        "live": await client.is_server_live(address),
        "ready": await client.is_server_ready(address),
        "model ready": await client.is_model_ready(address, "relu", headers=names),
        "first": described(first),
        "in json": described(await infer("relu", X, "FP32", binary=False)),
        "words": described(await infer("words", WORDS, "BYTES")),
        "unknown model": await outcome(infer("nix", X, "FP32")),
        "without token": await outcome(
            client.infer(address, request("relu", X, "FP32"), model_name="relu")
        ),
    }
    await client.close()
    return found


async def over_grpc(address: str, token: str) -> dict[str, Any]:
    names = [("authorization", f"Bearer {token}")]
    async with InferenceGRPCClient(address) as client:

        async def infer(model: str, array: Any, datatype: str, **options: Any) -> Any:
            made = request(model, array, datatype, **options)
            return await client.infer(made, headers=names)

        first = await infer("relu", X, "FP32")
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": await client.is_model_ready("relu", headers=names),
            "first": described(first),
            "in json": described(await infer("relu", X, "FP32", binary=False)),
            "words": described(await infer("words", WORDS, "BYTES")),
            "unknown model": await outcome(infer("nix", X, "FP32")),
            "without token": await outcome(client.infer(request("relu", X, "FP32"))),
        }


def described(answer: Any) -> dict[str, Any]:
    """The values, the names and the receipt of an answer."""
    output = answer.outputs[0]
    values = output.as_numpy().tolist()
    receipt = answer.parameters["receipt"]
    return {
        "values": [v.decode() if isinstance(v, bytes) else v for v in values],
        "model": answer.model_name,
        "id": answer.id,
        "receipt": receipt if isinstance(receipt, str) else receipt.string_param,
    }


async def main() -> None:
    port, grpc_port, token = sys.argv[1:]
    results = {
        "rest": await over_rest(f"http://127.0.0.1:{port}", token),
        "grpc": await over_grpc(f"127.0.0.1:{grpc_port}", token),
    }
    sys.stdout.write(json.dumps(results))


asyncio.run(main())
