"""`penstock serve`: starts, answers, and ends with SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from tests.conftest import ROOT
from tests.support_serving import PATIENCE_S, relu_file, tensor

PROMPT_S = 5
"""The compile takes many times as long."""


def answer(port: int, path: str, body: object = None) -> bytes:
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", content, PATIENCE_S) as reply:
        found: bytes = reply.read()
        return found


def await_ready(port: int) -> None:
    """Returns once every model is ready; the server listens before."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            answer(port, "/v2/health/ready")
        except urllib.error.HTTPError:
            time.sleep(0.02)
        else:
            return
    pytest.fail("the server did not become ready")


def test_server_answers_until_sigterm_and_logs_each_inference(tmp_path: Path) -> None:
    file = tmp_path / "net.tflite"
    file.write_bytes(relu_file())
    words = [f"relu={file}", "--port", "0", "--grpc-port", "0", "-d", "reference", "--no-cache"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *words, "--log", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PENSTOCK_DEVICES": "reference"},
    ) as server:
        try:
            assert server.stdout is not None
            listening = json.loads(server.stdout.readline())
            port = listening["port"]
            assert listening["host"] == "127.0.0.1"
            await_ready(port)
            body = {"inputs": [tensor([[1, -2, 3]])]}
            found = json.loads(answer(port, "/v2/models/relu/infer", body))
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=PATIENCE_S)
        finally:
            server.kill()
    assert found["outputs"][0]["data"] == [1, 0, 3]
    assert server.returncode == 0
    (line,) = [json.loads(line) for line in log.splitlines()]
    assert (line["model"], line["outcome"], line["devices"]) == ("relu", "ok", ["reference"])


def test_request_of_the_page_is_answered_as_it_says() -> None:
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    (file,) = re.findall(r"(?m)^penstock serve (\S+)$", page)
    (described,) = re.findall(r"(?m)^(\{\"name\":.*)\.\.\.$", page)
    ((path, body),) = re.findall(r"(?s)localhost:8000(\S+/infer) -d '(.*?)'\n", page)
    ((first, last),) = re.findall(r"(?m)^(\{\"model_name\":.*)\.\.\.(,.*)$", page)
    words = [str(ROOT / file), "--port", "0", "--grpc-port", "-1", "-d", "reference", "--no-cache"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *words, "--max-batch", "8", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            await_ready(port)
            metadata = answer(port, path.removesuffix("/infer")).decode()
            found = answer(port, path, json.loads(body)).decode()
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=PATIENCE_S)
        finally:
            server.kill()
    assert metadata.startswith(described)
    assert found.startswith(first)
    assert found.endswith(last)
    assert log in page
    assert log.count("\n") == 1


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_server_ends_promptly_while_a_model_is_compiled(corpus: Path, seconds: float) -> None:
    file = corpus / "models" / "networks" / "movenet_lightning_int8.tflite"
    words = [str(file), "--port", "0", "--grpc-port", "-1"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *words, "-d", "llvm", "--no-cache", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            time.sleep(seconds)
            with pytest.raises(urllib.error.HTTPError, match="503"):
                answer(port, "/v2/health/ready")
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=PATIENCE_S)
        finally:
            server.kill()
    assert (server.returncode, log) == (0, "")
    assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{file}", "--token-file", "nix"], "nix"),
        (["{file}", "--tls-key", "k"], "both a certificate and its key"),
        (["{file}", "--max-batch", "5000"], "from 1 to 1024"),
        (["{file}", "-d", "nix"], "nix"),
    ],
)
def test_wrong_line_ends_with_usage(tmp_path: Path, words: list[str], message: str) -> None:
    file = tmp_path / "net.tflite"
    file.write_bytes(relu_file())
    result = CliRunner().invoke(app, ["serve", *(word.format(file=file) for word in words)])
    assert (result.exit_code, message in result.output) == (2, True)


@pytest.mark.parametrize("is_repository", [False, True])
def test_damaged_file_ends_with_the_code_and_the_words_of_other_commands(
    tmp_path: Path, is_repository: bool
) -> None:
    file = tmp_path / "net" / "1" / "model.tflite" if is_repository else tmp_path / "net.tflite"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"# Penstock")
    words = ["--port", "0", "--grpc-port", "-1"]
    result = CliRunner().invoke(app, ["serve", str(tmp_path if is_repository else file), *words])
    assert result.exit_code == 3
    named = tmp_path / "net" if is_repository else file
    assert f"penstock: error: {named}: the file begins with" in result.output


def test_missing_file_ends_with_the_code_of_a_missing_file() -> None:
    result = CliRunner().invoke(app, ["serve", "nix.tflite"])
    assert (result.exit_code, "nix.tflite: No such file" in result.output) == (3, True)


def test_bad_setting_ends_with_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", "relative")
    file = tmp_path / "net.tflite"
    file.write_bytes(relu_file())
    for words in (["serve", "--port", "0", "--grpc-port", "-1"], ["run"]):
        result = CliRunner().invoke(app, [*words, str(file), "-d", "reference"])
        assert (result.exit_code, "must be an absolute path" in result.output) == (2, True)


def test_missing_extra_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.startswith(("penstock.serve.", "grpc", "uvicorn")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["serve", str(tmp_path)])
    assert result.exit_code == 2
    assert "pip install 'penstock-nn[serve]'" in result.output
