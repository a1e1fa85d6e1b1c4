"""Requests to the deployment over HTTP, and of several elements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.fleet.ray import Predict, serving

pytest.importorskip("starlette", reason="starlette is not installed: pip install '.[ray]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[ray]'")
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits"


class Request:
    """A request whose body comes in pieces of one kibibyte."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def stream(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 1024):
            yield self._body[start : start + 1024]


@pytest.fixture(scope="module")
def predict() -> Predict:
    return Predict(str(DIGITS / "digits_int8.tflite"), columns=["picture"])


def ask(predict: Predict, body: bytes) -> tuple[int, dict[str, Any]]:
    async def answers(row: tuple[object, ...]) -> dict[str, Any]:
        return serving.answered(predict, [row])[0]

    response = asyncio.run(serving.over_http(Request(body), answers))
    return response.status_code, json.loads(bytes(response.body))


def test_a_body_is_answered_or_says_why_not(predict: Predict) -> None:
    status, answer = ask(predict, DIGITS.joinpath("seven.png").read_bytes())
    assert (status, answer["label"], answer["error"]) == (200, "7", None)
    status, answer = ask(predict, b"no picture")
    assert status == 422
    assert "not a PNG, JPEG or BMP picture" in answer["error"]
    status, answer = ask(predict, b"")
    assert status == 422
    assert "is empty" in answer["error"]


def test_a_body_beyond_the_limit_is_refused_as_it_comes(
    predict: Predict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_BODY", 4096)
    assert ask(predict, b"x" * 5000) == (413, {"error": "more than 4,096 bytes"})


def test_elements_for_other_inputs_than_the_model_has_are_refused(predict: Predict) -> None:
    with pytest.raises(InputError, match="2 elements are given for the 1 inputs"):
        serving.answered(predict, [(b"", b"")])
