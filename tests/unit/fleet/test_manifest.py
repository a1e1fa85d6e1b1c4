"""Output files and their manifest: one file a block, committed once, whoever else wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.failures import FileError
from penstock.fleet.ray import (
    AlreadyCommitted,
    Block,
    Incomplete,
    Part,
    input_blocks,
    read_manifest,
)
from penstock.fleet.ray.manifest import MANIFEST, PARTS, commit, existing_part, write_part

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[ray]'")
pq = pytest.importorskip("pyarrow.parquet")

BLOCKS = [Block("000000-a", ("one", "two"), 2), Block("000001-b", ("three",), 1)]
TABLES = [pa.table({"path": ["one", "two"]}), pa.table({"path": ["three"]})]


def written(place: Path) -> list[Part]:
    return [write_part(place, b, t) for b, t in zip(BLOCKS, TABLES, strict=True)]


def test_readers_see_the_rows_of_the_manifest_alone(tmp_path: Path) -> None:
    parts = written(tmp_path)
    late = write_part(tmp_path, BLOCKS[0], pa.table({"path": ["one", "other"]}))
    commit(tmp_path, "job", BLOCKS, [*parts, late])
    (tmp_path / PARTS / ".000001-b.half").write_bytes(b"PAR1")
    manifest = read_manifest(tmp_path)
    assert len(list((tmp_path / PARTS).iterdir())) == 4
    assert manifest.rows == 3
    assert manifest.table(tmp_path).column("path").to_pylist() == ["one", "two", "three"]


def test_an_attempt_never_changes_what_another_one_wrote(tmp_path: Path) -> None:
    first = write_part(tmp_path, BLOCKS[0], TABLES[0])
    before = (tmp_path / first.file).read_bytes()
    other = write_part(tmp_path, BLOCKS[0], pa.table({"path": ["one", "other"]}))
    assert other.file != first.file
    assert (tmp_path / first.file).read_bytes() == before


def test_a_repeated_block_finds_its_file(tmp_path: Path) -> None:
    assert existing_part(tmp_path, BLOCKS[0]) is None
    part = write_part(tmp_path, BLOCKS[0], TABLES[0])
    assert existing_part(tmp_path, BLOCKS[0]) == part
    (tmp_path / part.file).write_bytes(b"damaged")
    assert existing_part(tmp_path, BLOCKS[0]) is None


def test_a_block_without_a_file_prevents_the_commit(tmp_path: Path) -> None:
    part = write_part(tmp_path, BLOCKS[0], TABLES[0])
    with pytest.raises(Incomplete, match="1 of 2 blocks have no output: 000001-b"):
        commit(tmp_path, "job", BLOCKS, [part])
    assert not (tmp_path / MANIFEST).exists()


def test_a_file_with_lost_rows_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(Incomplete, match="has 2 rows, 1 were answered"):
        write_part(tmp_path, BLOCKS[0], TABLES[1])


def test_only_one_of_two_jobs_in_a_directory_commits(tmp_path: Path) -> None:
    parts = written(tmp_path)
    first = commit(tmp_path, "first", BLOCKS, parts)
    with pytest.raises(AlreadyCommitted, match="has a manifest already"):
        commit(tmp_path, "second", BLOCKS, parts)
    assert read_manifest(tmp_path) == first


def test_files_that_were_changed_or_removed_are_named(tmp_path: Path) -> None:
    parts = written(tmp_path)
    manifest = commit(tmp_path, "job", BLOCKS, parts)
    pq.write_table(pa.table({"path": ["one", "other"]}), tmp_path / parts[0].file)
    with pytest.raises(Incomplete, match="has other content than the manifest says"):
        manifest.table(tmp_path)
    (tmp_path / parts[0].file).unlink()
    with pytest.raises(Incomplete, match="is missing"):
        manifest.verify(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged"),
        (b'{"job": "j", "rows": "three", "parts": []}', "is damaged"),
        (b'{"job": "j", "rows": 0, "parts": [], "format": 2}', "has format 2"),
        (
            (
                b'{"job": "j", "rows": 1, "parts": '
                b'[{"block": "b", "file": "../x.parquet", "rows": 1, "sha256": ""}]}'
            ),
            "not below parts/",
        ),
    ],
)
def test_damaged_manifests_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(FileError, match=reason):
        read_manifest(tmp_path)


def test_blocks_are_named_by_what_they_hold(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", "c.wav", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    blocks = input_blocks(tmp_path, "job", rows=2)
    assert [[Path(f).name for f in b.files] for b in blocks] == [["a.png", "b.png"], ["c.wav"]]
    assert [b.rows for b in blocks] == [2, 1]
    assert input_blocks(tmp_path, "job", rows=2) == blocks
    assert {b.name for b in input_blocks(tmp_path, "other", rows=2)}.isdisjoint(
        b.name for b in blocks
    )
    (tmp_path / "a.png").write_bytes(b"changed")
    changed = input_blocks(tmp_path, "job", rows=2)
    assert changed[0].name != blocks[0].name
    assert changed[1] == blocks[1]


def test_a_row_group_of_parquet_is_a_block(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(5))}), tmp_path / "t.parquet", row_group_size=2)
    blocks = input_blocks(tmp_path, "job")
    assert [(b.rows, b.group) for b in blocks] == [(2, 0), (2, 1), (1, 2)]


def test_a_directory_without_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="has no picture, sound"):
        input_blocks(tmp_path, "job")
    with pytest.raises(FileError, match="is not a directory"):
        input_blocks(tmp_path / "nowhere", "job")
