"""Input blocks: the rows that one task answers and one output file holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, json

from penstock.cli.failures import FileError
from penstock.cli.feed.arguments import SUFFIXES

ROWS: Final = 256


class Block(Struct, frozen=True):
    """*rows* rows: a file each, or those of row group *group* of one Parquet file.

    The *name* is made of the block's place, and of the job and the files with their sizes and
    times: blocks of the same name have the same rows, and are answered in the same way.
    """

    name: str
    files: tuple[str, ...]
    rows: int
    group: int | None = None


def input_blocks(
    source: str | Path | Sequence[str | Path], job: str, rows: int = ROWS
) -> list[Block]:
    """The blocks of *source*, a directory or files, in the order of their names.

    Pictures, sounds and `.npy` files make blocks of at most *rows* files, Parquet files a block for
    each row group. *job* names what is done with them. Raises `FileError` if there are none.
    """
    found = _files(source)
    tables = [path for path in found if path.suffix.lower() == ".parquet"]
    singles = [path for path in found if path.suffix.lower() in SUFFIXES]
    groups: list[tuple[list[Path], int, int | None]] = [
        (singles[start : start + rows], len(singles[start : start + rows]), None)
        for start in range(0, len(singles), rows)
    ]
    for path in tables:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as opened:
            described = opened.metadata
            groups += [
                ([path], described.row_group(i).num_rows, i)
                for i in range(described.num_row_groups)
            ]
    if not groups:
        raise FileError(source, "has no picture, sound, .npy or Parquet file")
    return [
        Block(_name(place, job, paths, group), tuple(map(str, paths)), count, group)
        for place, (paths, count, group) in enumerate(groups)
    ]


def _files(source: str | Path | Sequence[str | Path]) -> list[Path]:
    if not isinstance(source, str | Path):
        return [Path(path).absolute() for path in source]
    top = Path(source).absolute()
    if not top.is_dir():
        raise FileError(source, "is not a directory")
    return sorted(path for path in top.rglob("*") if path.is_file())


def _name(place: int, job: str, paths: Iterable[Path], group: int | None) -> str:
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    digest = hashlib.sha256(json.encode((job, states, group))).hexdigest()
    return f"{place:06d}-{digest[:16]}"
