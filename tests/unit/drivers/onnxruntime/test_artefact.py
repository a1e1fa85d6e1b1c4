"""The payload of the ONNX Runtime driver's cache file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pytest

from penstock.driverkit.artefact import Ports, ports_of
from penstock.drivers.onnxruntime import loading, preparation
from penstock.errors import GeneralFailure
from penstock.memory.sealed_file import HAS_MEMFD, LEAST_SEALED, is_write_sealed
from tests.support_artefacts import network

PORTS: Final = ports_of(network())


def packed(manifest: object) -> memoryview:
    body = msgspec.msgpack.encode(manifest)
    return memoryview(len(body).to_bytes(4, "little") + body + b"model")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (memoryview(b"abc"), "no manifest"),
        (memoryview((1 << 30).to_bytes(4, "little") + b"abc"), "longer than its file"),
        (packed([1, 2, 3]), "cannot be read"),
        (packed(loading.Manifest(2, "1", PORTS)), "schema 2"),
        (packed(loading.Manifest(1, "1", Ports((), (), (0,)))), "forwards inputs"),
    ],
)
def test_nothing_but_what_is_written_is_read(content: memoryview, reason: str) -> None:
    with pytest.raises(GeneralFailure, match=reason):
        loading.unpack(content)


def test_unpack_returns_the_packed_manifest_and_model() -> None:
    manifest, model = loading.unpack(
        memoryview(b"".join(preparation.pack([b"model"], PORTS, "1.2")))
    )
    assert (manifest.engine, manifest.ports) == ("1.2", PORTS)
    assert loading._source(model) == b"model"


@pytest.mark.skipif(not HAS_MEMFD, reason="models are in files without a name on Linux")
def test_a_large_model_is_read_from_a_file_that_nothing_can_write() -> None:
    content = bytes(LEAST_SEALED)
    _, model = loading.unpack(memoryview(b"".join(preparation.pack([content], PORTS, "1.2"))))
    path = loading._source(model)
    assert isinstance(path, Path)
    assert path.read_bytes() == content
    assert model.fd is not None
    assert is_write_sealed(model.fd)
