"""The protocol over HTTP, by requests written from its specification."""

from __future__ import annotations

import gzip
import http.client
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.serve import Limits, Server
from penstock.serve.access import Access
from tests.support_serving import (
    Asker,
    RecordingRelu,
    ask,
    relu_file,
    serving,
    settings_on,
    tensor,
    two_signatures_file,
)

TOKEN, ADMIN = "t" * 16, "a" * 16
INFER = "/v2/models/relu/infer"
X = [[1.0, -2.0, 3.0]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = Limits(body=10_000, header=2000, tensors=4)
    files = {"relu": relu_file(), "two": two_signatures_file()}
    settings = settings_on(limits=limits)
    with serving(tmp_path_factory.mktemp("models"), files, settings) as made:
        yield made


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, {"relu": relu_file()}, access=Access(TOKEN, ADMIN)) as made:
        yield made


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_health_and_metadata(server: Server) -> None:
    assert ask(server, "GET", "/v2/health/live").status == 200
    assert ask(server, "GET", "/v2/health/ready").json() == {"ready": True}
    assert ask(server, "GET", "/v2").json()["name"] == "penstock"
    for path in ("/v2/models/relu", "/v2/models/relu/versions/1"):
        assert ask(server, "GET", f"{path}/ready").status == 200
        assert ask(server, "GET", path).json() == {
            "name": "relu",
            "versions": ["1"],
            "platform": "penstock",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
        }


def test_signature_is_a_model_behind_a_colon(server: Server) -> None:
    described = ask(server, "GET", "/v2/models/two%3Aother").json()
    assert described["name"] == "two:other"
    assert described["inputs"][0]["name"] == "a"
    reply = ask(server, "POST", "/v2/models/two:other/infer", {"inputs": [tensor(X, "a")]})
    assert reply.json()["outputs"][0]["name"] == "b"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/nix", 404),
        ("GET", "/v2/models/nix/ready", 404),
        ("GET", "/v2/models/relu/versions/2", 404),
        ("GET", "/v2/nix", 404),
        ("GET", INFER, 405),
        ("POST", "/v2/models/nix/infer", 404),
        ("POST", "/v2/repository/index", 403),
        ("POST", "/v2/repository/models/relu/load", 403),
        ("POST", "/v2/repository/models/relu/unload", 403),
    ],
)
def test_errors_are_json_objects(server: Server, method: str, path: str, status: int) -> None:
    body = {"inputs": [tensor(X)]} if method == "POST" else None
    reply = ask(server, method, path, body)
    assert reply.status == status
    assert [*reply.json()] == ["error"]


def test_inference_in_json(server: Server) -> None:
    reply = ask(server, "POST", INFER, {"id": "7", "inputs": [tensor(X)]})
    answer = reply.json()
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    summary = json.loads(answer.pop("parameters")["receipt"])
    assert summary["devices"] == ["reference"]
    assert answer == {
        "model_name": "relu",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 0.0, 3.0]}],
    }


def test_whole_receipt_on_request(server: Server) -> None:
    body = {"inputs": [tensor(X)], "parameters": {"receipt": True}}
    whole = json.loads(ask(server, "POST", INFER, body).json()["parameters"]["full_receipt"])
    assert whole["steps"][0]["device"] == "reference"


def binary_request(extra: bytes = b"", **outputs: object) -> tuple[bytes, dict[str, str]]:
    data = struct.pack("<3f", *X[0])
    given = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
    head = {"inputs": [{**given, "parameters": {"binary_data_size": len(data)}}], **outputs}
    encoded = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(encoded))}
    return encoded + data + extra, headers


@pytest.mark.parametrize(
    "chosen",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    ],
)
def test_inference_with_binary_tensors(server: Server, chosen: Any) -> None:
    body, headers = binary_request(**chosen)
    reply = ask(server, "POST", INFER, body, headers)
    size = int(reply.headers["inference-header-content-length"])
    head = json.loads(reply.body[:size])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 12}
    assert struct.unpack("<3f", reply.body[size:]) == (1.0, 0.0, 3.0)


def test_output_in_json_although_others_are_binary(server: Server) -> None:
    wanted = [{"name": "y", "parameters": {"binary_data": False}}]
    body, headers = binary_request(outputs=wanted, parameters={"binary_data_output": True})
    assert ask(server, "POST", INFER, body, headers).json()["outputs"][0]["data"] == [1, 0, 3]


def test_compressed_body(server: Server) -> None:
    body, headers = binary_request()
    headers["content-encoding"] = "gzip"
    assert ask(server, "POST", INFER, gzip.compress(body), headers).status == 200
    bomb = gzip.compress(bytes(1_000_000))
    assert len(bomb) < 10_000
    assert ask(server, "POST", INFER, bomb, headers).status == 413
    assert ask(server, "POST", INFER, gzip.compress(body)[:-9], headers).status == 400
    assert ask(server, "POST", INFER, body, headers | {"content-encoding": "br"}).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"inputs": 5}',
        b"[" * 5000,
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [NaN]}]}',
        json.dumps({"inputs": []}).encode(),
        json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3]}]}).encode(),
        json.dumps({"inputs": [{**tensor(X), "shape": [1, 4]}]}).encode(),
        json.dumps({"inputs": [{**tensor(X), "datatype": "FP8"}]}).encode(),
        json.dumps({"inputs": [tensor(X)], "parameters": {"timeout": "soon"}}).encode(),
        json.dumps({"inputs": [tensor(X)], "parameters": {"priority": -1}}).encode(),
        json.dumps({"inputs": [tensor(X)], "parameters": {"sequence_id": 5}}).encode(),
        json.dumps({"inputs": [tensor(X)], "outputs": [{"name": "nix"}]}).encode(),
        json.dumps({"inputs": [{**tensor(X), "parameters": {"binary_data_size": 99}}]}).encode(),
        json.dumps(
            {"inputs": [{**tensor(X), "parameters": {"shared_memory_region": "r"}}]}
        ).encode(),
    ],
)
def test_malformed_request_is_refused_by_name(server: Server, body: bytes) -> None:
    reply = ask(server, "POST", INFER, body)
    assert reply.status == 400
    assert reply.json()["error"]


def test_bytes_behind_the_tensors_are_refused(server: Server) -> None:
    body, headers = binary_request(b"more")
    reply = ask(server, "POST", INFER, body, headers)
    assert (reply.status, reply.json()["error"]) == (400, "4 bytes follow the last input")


@pytest.mark.parametrize("length", ["-1", "x", "99999", "1" * 50])
def test_header_length_that_is_none_is_refused(server: Server, length: str) -> None:
    body, _ = binary_request()
    headers = {"Inference-Header-Content-Length": length}
    assert ask(server, "POST", INFER, body, headers).status == 400


def test_sizes_beyond_the_limits_are_refused(server: Server) -> None:
    assert ask(server, "POST", INFER, bytes(10_001)).status == 413
    body, _ = binary_request(bytes(3000))
    headers = {"Inference-Header-Content-Length": "2001"}
    assert ask(server, "POST", INFER, body, headers).status == 413
    assert ask(server, "POST", INFER, {"inputs": [tensor([1.0])] * 5}).status == 413


def test_body_without_a_length_is_counted_as_it_arrives(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=30)
    parts = iter([bytes(6000), bytes(6000)])
    connection.request("POST", INFER, parts, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_timeout_of_a_request_is_its_deadline(tmp_path: Path) -> None:
    device = RecordingRelu()
    with serving(tmp_path, {"relu": relu_file()}, settings_on(device)) as made:
        device.hold()
        first = Asker(ask, made, "POST", INFER, {"inputs": [tensor(X)]})
        device.await_run()
        late = {"inputs": [tensor(X)], "parameters": {"timeout": 1000}}
        reply = ask(made, "POST", INFER, late)
        assert (reply.status, "timeout" in reply.json()["error"]) == (504, True)
        device.go_on.set()
        assert first.answer().status == 200


def test_requests_beyond_the_queue_get_503(tmp_path: Path) -> None:
    device = RecordingRelu()
    settings = settings_on(device, limits=Limits(queue=1, requests=2))
    with serving(tmp_path, {"relu": relu_file()}, settings) as made:
        queue = made.service.repository.find("relu")[0].signature(None).queue
        device.hold()
        askers = [Asker(ask, made, "POST", INFER, {"inputs": [tensor(X)]})]
        device.await_run()
        askers.append(Asker(ask, made, "POST", INFER, {"inputs": [tensor(X)]}))
        while not queue.depth:
            pass
        assert ask(made, "POST", INFER, {"inputs": [tensor(X)]}).status == 503
        device.go_on.set()
        assert [asker.answer().status for asker in askers] == [200, 200]


def test_request_in_progress_ends_before_the_server(tmp_path: Path) -> None:
    device = RecordingRelu()
    with serving(tmp_path, {"relu": relu_file()}, settings_on(device)) as made:
        device.hold()
        first = Asker(ask, made, "POST", INFER, {"inputs": [tensor(X)]})
        device.await_run()
        made.service.drain()
        assert ask(made, "GET", "/v2/health/ready").status == 503
        assert ask(made, "GET", "/v2/health/live").status == 200
        assert ask(made, "POST", INFER, {"inputs": [tensor(X)]}).status == 503
        closing = Asker(made.close)
        device.go_on.set()
        assert first.answer().json()["outputs"][0]["data"] == [1, 0, 3]
        closing.answer()


def test_token_is_asked_for_everywhere_but_at_health(guarded: Server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert ask(guarded, "GET", path).status == 200
    for headers in ({}, bearer("x" * 16), {"authorization": "Basic eA=="}):
        for path in ("/v2", "/v2/models/relu", "/metrics"):
            reply = ask(guarded, "GET", path, headers=headers)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert ask(guarded, "POST", INFER, {"inputs": [tensor(X)]}, headers).status == 401
    for token in (TOKEN, ADMIN):
        assert ask(guarded, "GET", "/v2", headers=bearer(token)).status == 200
        body = {"inputs": [tensor(X)]}
        assert ask(guarded, "POST", INFER, body, bearer(token)).status == 200


def test_repository_calls_need_the_admin_token(guarded: Server) -> None:
    index = "/v2/repository/index"
    assert ask(guarded, "POST", index, headers=bearer(TOKEN)).status == 403
    admin = bearer(ADMIN)
    ready = {"name": "relu", "version": "1", "state": "READY", "reason": ""}
    assert ask(guarded, "POST", index, headers=admin).json() == [ready]
    model = "/v2/repository/models/relu"
    assert ask(guarded, "POST", f"{model}/unload", headers=admin).status == 200
    assert ask(guarded, "POST", index, {"ready": True}, admin).json() == []
    assert ask(guarded, "POST", INFER, {"inputs": [tensor(X)]}, admin).status == 503
    assert (
        ask(guarded, "POST", f"{model}/load", {"parameters": {"config": "{}"}}, admin).status == 400
    )
    assert ask(guarded, "POST", f"{model}/load", {}, admin).status == 200
    assert ask(guarded, "POST", INFER, {"inputs": [tensor(X)]}, admin).status == 200
    assert ask(guarded, "POST", "/v2/repository/models/nix/load", {}, admin).status == 404


def test_metrics_count_requests_and_errors(tmp_path: Path) -> None:
    with serving(tmp_path, {"relu": relu_file()}) as made:
        for path, body in ((INFER, tensor(X)), ("/v2/models/nix/infer", tensor(X))):
            ask(made, "POST", path, {"inputs": [body]})
        text = ask(made, "GET", "/metrics").body.decode()
    for line in (
        'penstock_requests_total{model="relu",outcome="ok"} 1.0',
        'penstock_requests_total{model="other",outcome="UnknownModel"} 1.0',
        'penstock_steps_total{device="reference",model="relu"} 1.0',
        'penstock_batch_requests_bucket{le="1.0",model="relu"} 1.0',
        'penstock_queue_requests{model="relu",signature=""} 0.0',
        'penstock_compiled_steps{cache="off",device="reference",model="relu"} 1.0',
    ):
        assert line in text
