"""Every model of the corpus can be a message, and arrives equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ModelError
from penstock.ipc import wire
from penstock.ipc.codec import Packer, Unpacker, decode_call
from penstock.loaders import load


@pytest.mark.parametrize("kind", ["network", "unit"])
def test_models_of_the_corpus_arrive_whole(
    corpus: Path, manifest: dict[str, Any], kind: str
) -> None:
    arrived = 0
    for entry in manifest["entries"]:
        if entry["kind"] != kind or entry["format"] != "tflite":
            continue
        try:
            model = load(corpus / "models" / entry["file"])
        except ModelError:
            continue
        pack = Packer()
        frame = pack.frame(wire.SupportedOperations(pack.model(model)))
        call = decode_call(frame.data)
        assert isinstance(call, wire.SupportedOperations)
        received = Unpacker(frame.handles).model(call.model)
        assert received.subgraphs == model.subgraphs, entry["id"]
        assert received.digest.structure == model.digest.structure, entry["id"]
        arrived += 1
    assert arrived > 20
