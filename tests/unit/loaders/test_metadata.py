from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from penstock import knobs, loaders
from penstock.errors import IndexOutOfRange, InvalidMetadata, LimitExceeded
from penstock.ir import Metadata
from tests.unit.loaders.files import FileBuilder, described, relu

NORMALIZATION = 1
IMAGE = 2


def with_entry(name: str, content: bytes) -> FileBuilder:
    file = relu()
    file.root["metadata"] = [{"name": name, "buffer": file.buffer(content)}]
    return file


def archive(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return stream.getvalue()


def tensor(**fields: Any) -> dict[str, Any]:
    return {
        "name": "image",
        "description": "a picture",
        "content": {"content_properties_type": IMAGE, "content_properties": {"color_space": 1}},
        "process_units": [
            {"options_type": NORMALIZATION, "options": {"mean": [127.5], "std": [1.0, 2.0, 3.0]}}
        ],
        "stats": {"min": [0.0], "max": [1.0]},
        **fields,
    }


def test_model_without_metadata_has_empty_metadata() -> None:
    assert loaders.load(relu().encode()).metadata == Metadata()


def test_entries_are_kept_raw() -> None:
    model = loaders.load(with_entry("min_runtime_version", b"1.5.0").encode())
    assert model.metadata.entries == {"min_runtime_version": b"1.5.0"}


def test_the_description_of_inputs_and_outputs() -> None:
    content = described(
        input_tensor_metadata=[tensor()], output_tensor_metadata=[tensor(name="scores")]
    )
    metadata = loaders.load(with_entry("TFLITE_METADATA", content).encode()).metadata
    (image,) = metadata.inputs
    assert (metadata.name, metadata.description) == ("net", "what it does")
    assert (image.name, image.description, image.content, image.color_space) == (
        "image",
        "a picture",
        "image",
        "RGB",
    )
    assert image.normalization == ((127.5,), (1.0, 2.0, 3.0))
    assert (image.minimum, image.maximum, image.labels) == ((0.0,), (1.0,), None)
    assert metadata.outputs[0].name == "scores"


@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_labels_come_from_the_archive_behind_the_model(kind: int, compression: int) -> None:
    files = [{"name": "labels.txt", "type": kind}]
    content = described(output_tensor_metadata=[tensor(associated_files=files)])
    model = with_entry("TFLITE_METADATA", content).encode()
    labels = archive({"labels.txt": "cat\ndog\nm\u00fcnster\n".encode()}, compression)
    metadata = loaders.load(model + labels).metadata
    assert metadata.outputs[0].labels == ("cat", "dog", "m\u00fcnster")
    assert set(metadata.files) == {"labels.txt"}


def test_missing_label_files_give_no_labels() -> None:
    files = [{"name": "readme", "type": 1}, {"name": "labels.txt", "type": 2}]
    content = described(output_tensor_metadata=[tensor(associated_files=files)])
    metadata = loaders.load(with_entry("TFLITE_METADATA", content).encode()).metadata
    assert metadata.outputs[0].labels is None


def test_damaged_metadata_is_named() -> None:
    for content in (b"nonsense", described()[:-8], b"\xff" * 4 + described()[4:]):
        with pytest.raises(InvalidMetadata, match="TFLITE_METADATA"):
            loaders.load(with_entry("TFLITE_METADATA", content).encode())
    with pytest.raises(IndexOutOfRange, match="metadata 0"):
        loaders.load(relu().encode(metadata=[{"name": "x", "buffer": 99}]))


def test_a_damaged_archive_is_named() -> None:
    good = archive({"labels.txt": b"cat\n" * 100}, zipfile.ZIP_STORED)
    for at in (30, 45, len(good) - 60, len(good) - 10):
        bad = good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]
        with pytest.raises(InvalidMetadata, match="archive"):
            loaders.load(relu().encode() + bad)


def test_knob_limits_the_bytes_of_the_metadata_archive() -> None:
    content = relu().encode() + archive({"a": bytes(1 << 20), "b": b"1"})
    with knobs.override(metadata_limit_mib=2):
        assert len(loaders.load(content).metadata.files["a"]) == 1 << 20
    with (
        knobs.override(metadata_limit_mib=1),
        pytest.raises(LimitExceeded, match="metadata_limit_mib"),
    ):
        loaders.load(content)


def test_unusual_compression_is_refused() -> None:
    with pytest.raises(InvalidMetadata, match="unusual"):
        loaders.load(relu().encode() + archive({"a": b"1"}, zipfile.ZIP_LZMA))


def test_metadata_entries_share_one_buffer() -> None:
    file = with_entry("first", bytes(5000))
    buffer = file.root["metadata"][0]["buffer"]
    file.root["metadata"] = [{"name": str(i), "buffer": buffer} for i in range(10)]
    with pytest.raises(LimitExceeded):
        loaders.load(file.encode())
