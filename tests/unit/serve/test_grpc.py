"""The protocol over gRPC, by grpcio on the messages of `open_inference.proto`."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.serve import Limits, Server
from penstock.serve.access import Access
from penstock.serve.rpc.schema import SERVICE, protocol, schema_of
from tests.support_serving import (
    PATIENCE_S,
    Asker,
    RecordingRelu,
    relu_file,
    serving,
    settings_on,
)
from tests.unit.serve.test_scheduling import await_depth

TOKEN, ADMIN = "t" * 16, "a" * 16
RAW = struct.pack("<3f", 1.0, -2.0, 3.0)


class Client:
    """Calls a server's gRPC port."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self._metadata = [("authorization", f"Bearer {token}")] if token else None

    def __call__(self, called: str, /, timeout: float | None = PATIENCE_S, **fields: Any) -> Any:
        found = protocol()
        call = found.calls[called]
        stub = self._channel.unary_unary(
            f"/{found.package}.{SERVICE}/{called}",
            request_serializer=call.request.SerializeToString,
            response_deserializer=call.response.FromString,
        )
        return stub(call.request(**fields), timeout=timeout, metadata=self._metadata)

    def infer(self, timeout: float | None = PATIENCE_S, **fields: Any) -> Any:
        given: dict[str, Any] = {
            "model_name": "relu",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3]}],
            "raw_input_contents": [RAW],
        }
        return self("ModelInfer", timeout, **{**given, **fields})

    def refused(self, called: str, /, **fields: Any) -> grpc.StatusCode:
        """The status that the call ends with."""
        with pytest.raises(grpc.RpcError) as caught:
            self.infer(**fields) if called == "ModelInfer" else self(called, **fields)
        code: grpc.StatusCode = caught.value.code()
        return code

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = settings_on(limits=Limits(body=100_000, tensors=4))
    place = tmp_path_factory.mktemp("models")
    with serving(place, {"relu": relu_file()}, settings, rest=False, grpc=True) as server:
        made = Client(server)
        yield made
        made.close()


def test_health_and_metadata_over_grpc(client: Client) -> None:
    assert client("ServerLive").live
    assert client("ServerReady").ready
    assert client("ModelReady", name="relu").ready
    assert client("ServerMetadata").name == "penstock"
    described = client("ModelMetadata", name="relu", version="1")
    assert [*described.versions] == ["1"]
    assert [(i.name, i.datatype, [*i.shape]) for i in described.inputs] == [("x", "FP32", [-1, 3])]


def test_inference_with_raw_tensors(client: Client) -> None:
    answer = client.infer(id="7", outputs=[{"name": "y"}])
    assert (answer.model_name, answer.model_version, answer.id) == ("relu", "1", "7")
    assert [(o.name, o.datatype, [*o.shape]) for o in answer.outputs] == [("y", "FP32", [1, 3])]
    assert struct.unpack("<3f", answer.raw_output_contents[0]) == (1.0, 0.0, 3.0)
    summary = json.loads(answer.parameters["receipt"].string_param)
    assert summary["devices"] == ["reference"]


def test_inference_with_typed_contents(client: Client) -> None:
    contents = {"fp32_contents": [1.0, -2.0, 3.0]}
    given = [{"name": "x", "datatype": "FP32", "shape": [1, 3], "contents": contents}]
    answer = client.infer(inputs=given, raw_input_contents=[])
    assert struct.unpack("<3f", answer.raw_output_contents[0]) == (1.0, 0.0, 3.0)


X: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3]}


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [], "raw_input_contents": []},
        {"raw_input_contents": [RAW[:-1]]},
        {"raw_input_contents": [RAW, RAW]},
        {"raw_input_contents": []},
        {"inputs": [{**X, "shape": [-1, 3]}]},
        {"inputs": [{**X, "datatype": "FP16"}], "raw_input_contents": []},
        {"inputs": [{**X, "contents": {"fp32_contents": [1, 2, 3]}}]},
        {"inputs": [{**X, "parameters": {"shared_memory_region": {"string_param": "r"}}}]},
        {"outputs": [{"name": "nix"}]},
        {"outputs": [{"name": "y", "parameters": {"classification": {"int64_param": 1}}}]},
        {"parameters": {"timeout": {"string_param": "soon"}}},
        {"parameters": {"sequence_id": {"int64_param": 5}}},
    ],
)
def test_malformed_request_is_an_invalid_argument(client: Client, fields: dict[str, Any]) -> None:
    assert client.refused("ModelInfer", **fields) is grpc.StatusCode.INVALID_ARGUMENT


def test_statuses_of_other_refusals(client: Client) -> None:
    assert client.refused("ModelInfer", model_name="nix") is grpc.StatusCode.NOT_FOUND
    assert client.refused("ModelMetadata", name="nix") is grpc.StatusCode.NOT_FOUND
    assert client.refused("RepositoryIndex") is grpc.StatusCode.PERMISSION_DENIED
    big = {"raw_input_contents": [bytes(200_000)]}
    assert client.refused("ModelInfer", **big) is grpc.StatusCode.RESOURCE_EXHAUSTED
    many = {"inputs": [X] * 5, "raw_input_contents": [RAW] * 5}
    assert client.refused("ModelInfer", **many) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_token_of_grpc_calls(tmp_path: Path) -> None:
    access = Access(TOKEN, ADMIN)
    with serving(tmp_path, {"relu": relu_file()}, access=access, rest=False, grpc=True) as server:
        nobody, user, admin = Client(server), Client(server, TOKEN), Client(server, ADMIN)
        assert nobody("ServerLive").live
        assert nobody.refused("ModelInfer") is grpc.StatusCode.UNAUTHENTICATED
        assert user.infer().outputs[0].name == "y"
        assert user.refused("RepositoryIndex") is grpc.StatusCode.PERMISSION_DENIED
        (entry,) = admin("RepositoryIndex").models
        assert (entry.name, entry.version, entry.state) == ("relu", "1", "READY")
        admin("RepositoryModelUnload", model_name="relu")
        assert user.refused("ModelInfer") is grpc.StatusCode.UNAVAILABLE
        admin("RepositoryModelLoad", model_name="relu")
        assert user.infer().model_version == "1"
        for made in (nobody, user, admin):
            made.close()


def test_requests_beyond_the_queue_and_past_their_deadline(tmp_path: Path) -> None:
    device = RecordingRelu()
    settings = settings_on(device, limits=Limits(queue=1))
    with serving(tmp_path, {"relu": relu_file()}, settings, rest=False, grpc=True) as server:
        client = Client(server)
        queue = server.service.repository.find("relu")[0].signature(None).queue
        device.hold()
        # One client has a timeout, the other none.
        askers = [Asker(client.infer)]
        device.await_run()
        late = client.refused("ModelInfer", parameters={"timeout": {"int64_param": 1000}})
        assert late is grpc.StatusCode.DEADLINE_EXCEEDED
        askers.append(Asker(client.infer, None))
        await_depth(queue, 1)
        assert client.refused("ModelInfer") is grpc.StatusCode.RESOURCE_EXHAUSTED
        device.go_on.set()
        for asker in askers:
            assert asker.answer().outputs[0].name == "y"
        client.close()


def test_client_that_leaves_cancels_its_request(tmp_path: Path) -> None:
    device = RecordingRelu()
    settings = settings_on(device)
    with serving(tmp_path, {"relu": relu_file()}, settings, rest=False, grpc=True) as server:
        client = Client(server)
        device.hold()
        first = Asker(client.infer)
        device.await_run()
        assert client.refused("ModelInfer", timeout=0.05) is grpc.StatusCode.DEADLINE_EXCEEDED
        device.go_on.set()
        first.answer()
        client.close()
    assert device.shapes == [(1, 3)]


def test_messages_are_those_of_the_file() -> None:
    found = protocol()
    assert found.package == "inference"
    fields = {f.name: f.number for f in found.messages["ModelInferRequest"].DESCRIPTOR.fields}
    assert fields == {
        "model_name": 1,
        "model_version": 2,
        "id": 3,
        "parameters": 4,
        "inputs": 5,
        "outputs": 6,
        "raw_input_contents": 7,
    }


@pytest.mark.parametrize(
    "text",
    [
        "message A { string",
        "message A { string a = x; }",
        "enum A {}",
        'syntax = "proto2";',
        "message A { map<int32, string> a = 1; }",
        "service A { rpc B(C) returns (D) }",
        "message A ; $",
    ],
)
def test_file_in_another_language_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        schema_of(text)
