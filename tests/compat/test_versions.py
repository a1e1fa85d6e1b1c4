"""Operator versions: LiteRT and Penstock open the newest one, and refuse the next in the same
words.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from penstock import tflite
from penstock.export.tflite.fields import TFLITE
from penstock.ir.operations import OPERATIONS
from tests.unit.loaders.files import relu

NEWEST: Final = {name: row.versions for name, row in OPERATIONS.items() if row.versions > 1}
"""The operators that have more than one version, by their newest one."""

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")


def listing(name: str, version: int) -> bytes:
    """The model RELU, with an operator code that nothing uses: LiteRT looks for its kernel all the
    same.
    """
    file = relu()
    number = TFLITE.number("BuiltinOperator", name)
    code = {"deprecated_builtin_code": min(number, 127), "builtin_code": number}
    file.codes.append({**code, "version": version})
    return file.encode()


def refusal(module: Any, content: bytes) -> str | None:
    try:
        module.Interpreter(model_content=content)
    except ValueError as error:
        return str(error).strip()
    return None


def registered() -> list[str]:
    """The operators of the format for which LiteRT has a kernel in some version."""
    names = (n for n in TFLITE.numbers("BuiltinOperator") if n != "CUSTOM")
    return [n for n in names if refusal(litert, listing(n, NEWEST.get(n, 1))) is None]


def test_the_newest_versions_are_those_of_litert() -> None:
    names = registered()
    assert len(names) > 160
    assert set(names) >= set(NEWEST)
    for name in names:
        newest = NEWEST.get(name, 1)
        assert refusal(tflite, listing(name, newest)) is None, name
        newer = listing(name, newest + 1)
        said, ours = refusal(litert, newer), refusal(tflite, newer)
        assert said is not None, f"{name} has a version {newest + 1}"
        assert ours is not None
        assert ours.startswith(said), name
