"""The calls of KServe's clients, which run unchanged in the environment of the clients."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.serve.access import Access
from tests.serve_clients.test_tritonclient import PYTHON, Y, reversed_words_file
from tests.support_serving import relu_file, serving

TOKEN = "t" * 16

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="kserve is not installed: bash tests/serve_clients/install"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the calls of `kserve_calls.py` gave."""
    files = {"relu": relu_file(), "words": reversed_words_file()}
    place = tmp_path_factory.mktemp("models")
    with serving(place, files, access=Access(TOKEN), grpc=True) as server:
        program = Path(__file__).with_name("kserve_calls.py")
        ports = str(server.port), str(server.grpc_port)
        done = subprocess.run(
            [str(PYTHON), str(program), *ports, TOKEN],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_server_and_model_are_ready(results: Any, transport: str) -> None:
    found = results[transport]
    assert (found["live"], found["ready"], found["model ready"]) == (True, True, True)


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_inferences_answer_with_their_receipts(results: Any, transport: str) -> None:
    found = results[transport]
    assert found["first"]["values"] == found["in json"]["values"] == Y
    assert found["words"]["values"] == ["z", "", "a"]
    assert (found["first"]["model"], found["first"]["id"]) == ("relu", "7")
    assert json.loads(found["first"]["receipt"])["devices"] == ["reference"]


@pytest.mark.parametrize(
    ("transport", "expected"),
    [("rest", ["404", "401"]), ("grpc", ["NOT_FOUND", "UNAUTHENTICATED"])],
)
def test_errors_have_their_status(results: Any, transport: str, expected: list[str]) -> None:
    assert [results[transport][name] for name in ("unknown model", "without token")] == expected
