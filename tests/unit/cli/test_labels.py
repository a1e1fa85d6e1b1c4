"""Label files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import files
from penstock.cli.failures import FileError
from penstock.cli.files import model_labels, read_labels
from penstock.ir import Metadata, TensorMetadata


def test_labels_are_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes("\ufeffcat\r\n dog \nFüchse\n\n\n".encode())
    assert read_labels(tmp_path / "l.txt") == ("cat", "dog", "Füchse")


def test_an_empty_line_inside_keeps_its_number(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a\n\nb\n")
    assert read_labels(tmp_path / "l.txt") == ("a", "", "b")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "has no labels"), (b"\n\n", "has no labels"), (b"\xff\xfe\x80", "UTF-8")],
)
def test_malformed_label_file_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "l.txt").write_bytes(content)
    with pytest.raises(FileError, match=reason):
        read_labels(tmp_path / "l.txt")


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 8)
    (tmp_path / "l.txt").write_text("a label too many\n")
    with pytest.raises(FileError, match="more than 8 bytes"):
        read_labels(tmp_path / "l.txt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"l\.txt: No such file"):
        read_labels(tmp_path / "l.txt")


def test_the_models_labels_are_those_of_its_first_labelled_output() -> None:
    outputs = (TensorMetadata(), TensorMetadata(labels=("a", "b")), TensorMetadata(labels=("c",)))
    assert model_labels(Metadata(outputs=outputs)) == ("a", "b")
    assert model_labels(Metadata()) is None
