"""The corpus's TFLite files as test parameters."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CORPUS, IN_CI, NO_CORPUS

Entry = dict[str, Any]


@cache
def entries(*kinds: str) -> list[Entry]:
    """The `.tflite` entries of these kinds; empty without a corpus."""
    if CORPUS is None:
        return []
    manifest = json.loads((CORPUS / "models" / "manifest.json").read_bytes())
    return [e for e in manifest["entries"] if e["kind"] in kinds and e["format"] == "tflite"]


def parameters(*kinds: str) -> list[Any]:
    """One parameter an entry, named by its id; without a corpus one that skips, or in CI fails."""
    found = [pytest.param(e, id=e["id"]) for e in entries(*kinds)]
    if found:
        return found
    return [
        pytest.param({}, id="no-corpus", marks=() if IN_CI else pytest.mark.skip(reason=NO_CORPUS))
    ]


def path_of(entry: Entry) -> Path:
    if CORPUS is None:
        pytest.fail(NO_CORPUS, pytrace=False)
    file: str = entry["file"]
    return CORPUS / "models" / file


def stops_at(entry: Entry) -> str:
    """Where the reference runtime stops: load, allocate, invoke, crash, or "runs"."""
    stage: str = entry.get("reference_runtime", {}).get("stops_at", "runs")
    return stage.split(maxsplit=1)[0]
