"""The calls of tritonclient, which runs unchanged in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.serve.access import Access
from penstock.serve.rpc.schema import protocol
from tests.conftest import ROOT
from tests.support_serving import relu_file, serving, settings_on
from tests.unit.loaders.files import FileBuilder

PYTHON = ROOT / "build" / "serve-clients" / "bin" / "python"
ADMIN = "a" * 16
Y = [[1.0, 0.0, 3.0], [4.0, 5.0, 0.0]]

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="tritonclient is not installed: bash tests/serve_clients/install",
)


def reversed_words_file() -> bytes:
    file = FileBuilder()
    x, y = file.tensor("x", [3], "STRING"), file.tensor("y", [3], "STRING")
    places = file.tensor("places", [3], "INT32", np.array([2, 1, 0], np.int32))
    file.operator("GATHER", [x, places], [y])
    return file.finish([x], [y])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the calls of `calls.py` gave."""
    files = {"relu": relu_file(), "words": reversed_words_file()}
    place, access = tmp_path_factory.mktemp("models"), Access(admin=ADMIN)
    settings = replace(settings_on(), shared_memory="penstock-clients-")
    with serving(place, files, settings, access, grpc=True) as server:
        program = Path(__file__).with_name("calls.py")
        ports = str(server.port), str(server.grpc_port)
        done = subprocess.run(
            [str(PYTHON), str(program), *ports, ADMIN],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_server_and_models_describe_themselves(results: Any, transport: str) -> None:
    found = results[transport]
    assert (found["live"], found["ready"], found["model ready"]) == (True, True, True)
    assert found["server"] == "penstock"
    (x,), (y,) = found["model"]["inputs"], found["model"]["outputs"]
    assert (found["model"]["versions"], found["model"]["platform"]) == (["1"], "penstock")
    for tensor, name in ((x, "x"), (y, "y")):
        assert (tensor["name"], tensor["datatype"]) == (name, "FP32")
        assert [int(size) for size in tensor["shape"]] == [-1, 3]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_inferences_answer(results: Any, transport: str) -> None:
    found = results[transport]
    wanted = ["first", "named", "asynchronous", "loaded"]
    if transport == "http":
        wanted += ["in json", "gzip", "deflate"]
    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, Y)
    assert found["words"] == ["\xff", "", "a"]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_tensors_in_shared_memory(results: Any, transport: str) -> None:
    found = results[transport]["shared memory"]
    assert found == {"output": Y, "registered": True, "after": False}


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_every_answer_has_a_receipt(results: Any, transport: str) -> None:
    response = results[transport]["response"]
    assert (response["model_name"], response["id"]) == ("relu", "7")
    assert json.loads(response["receipt"])["devices"] == ["reference"]


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("http", ["404", "400", "403", "503"]),
        (
            "grpc",
            [
                "StatusCode.NOT_FOUND",
                "StatusCode.INVALID_ARGUMENT",
                "StatusCode.PERMISSION_DENIED",
                "StatusCode.UNAVAILABLE",
            ],
        ),
    ],
)
def test_errors_have_their_status(results: Any, transport: str, expected: list[str]) -> None:
    calls = ("unknown model", "unknown output", "index without token", "unloaded")
    assert [results[transport][name] for name in calls] == expected


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_model_has_its_configuration(results: Any, transport: str) -> None:
    config = results[transport]["config"]
    (x,), (y,) = config["input"], config["output"]
    assert (config["name"], config["platform"]) == ("relu", "penstock")
    assert int(config.get("max_batch_size", 0)) == 0
    for tensor, name in ((x, "x"), (y, "y")):
        assert (tensor["name"], tensor["data_type"]) == (name, "TYPE_FP32")
        assert [int(size) for size in tensor["dims"]] == [-1, 3]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_statistics_count_the_inferences_of_a_version(results: Any, transport: str) -> None:
    found = results[transport]
    statistics = found["statistics"]
    assert (statistics["name"], statistics["version"]) == ("relu", "1")
    stats = statistics["inference_stats"]
    succeeded, failed = int(stats["success"]["count"]), int(stats["fail"]["count"])
    assert int(statistics["inference_count"]) == int(statistics["execution_count"]) == succeeded
    assert succeeded >= 2
    assert failed >= 1
    assert int(stats["compute_infer"]["ns"]) > 0
    assert int(statistics["batch_stats"][0]["compute_infer"]["count"]) == succeeded
    assert int(statistics["last_inference"]) > 0
    assert int(statistics["memory_usage"][0]["byte_size"]) > 0
    assert found["statistics of"] == ["relu", "words"]


@pytest.mark.parametrize(
    ("transport", "status"), [("http", "404"), ("grpc", "StatusCode.UNIMPLEMENTED")]
)
def test_calls_that_do_not_apply_are_refused(results: Any, transport: str, status: str) -> None:
    refused = results[transport]["refused"]
    assert len(refused) == 7 + (transport == "grpc")
    assert set(refused.values()) == {status}


@pytest.mark.parametrize(
    ("transport", "status"), [("http", "400"), ("grpc", "StatusCode.INVALID_ARGUMENT")]
)
def test_requests_for_what_no_model_has_are_invalid(
    results: Any, transport: str, status: str
) -> None:
    invalid = results[transport]["invalid"]
    assert invalid == dict.fromkeys(("sequence", "classes", "config"), status)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_repository_is_listed_for_the_admin(results: Any, transport: str) -> None:
    assert results[transport]["index"] == ["relu", "words"]


def test_every_field_has_the_number_and_type_of_the_clients_messages(results: Any) -> None:
    own: dict[str, dict[str, list[int]]] = {}

    def add(message: Any) -> None:
        own[message.full_name] = {f.name: [f.number, f.type] for f in message.fields}
        for nested in message.nested_types:
            add(nested)

    for kind in protocol().messages.values():
        add(kind.DESCRIPTOR)
    theirs = results["fields"]
    for name, fields in own.items():
        assert {field: theirs[name].get(field) for field in fields} == fields, name
