"""Output files, and the manifest that commits them.

An output file is named after its input block and its own content, so an attempt never changes what
another one wrote. The manifest names one file for each block; readers read these alone.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from penstock.cli.failures import FileError, os_reason
from penstock.errors import PenstockError
from penstock.fleet.ray.blocks import Block

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST: Final = "manifest.json"
PARTS: Final = "parts"
FORMAT: Final = 1
MAX_BYTES: Final = 2**28
"""A longer manifest is not read."""


class AlreadyCommitted(PenstockError):
    """The directory has the manifest of another job, or of an earlier run of this one."""


class Incomplete(PenstockError):
    """A block has no output file, or an output file is not what the manifest says."""


class Part(Struct, frozen=True):
    """The output *file*, below the directory, of one block, with its SHA-256."""

    block: str
    file: str
    rows: int
    sha256: str


class Manifest(Struct, frozen=True):
    """The output files of the job *job*, in the order of their blocks."""

    job: str
    rows: int
    parts: tuple[Part, ...]
    format: int = FORMAT

    def files(self, directory: str | Path) -> list[str]:
        """The paths of the output files."""
        return [str(Path(directory, part.file)) for part in self.parts]

    def verify(self, directory: str | Path) -> None:
        """Raises `Incomplete` for the first file that is missing or has other content."""
        for part in self.parts:
            path = Path(directory, part.file)
            if not path.is_file():
                raise Incomplete(f"{path}: is missing; the manifest names it for {part.block}")
            if _digest(path) != part.sha256:
                raise Incomplete(f"{path}: has other content than the manifest says")

    def table(self, directory: str | Path) -> pa.Table:
        """All rows. Raises `Incomplete` as `verify` does."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.verify(directory)
        return pa.concat_tables([pq.read_table(path) for path in self.files(directory)])


def read_manifest(directory: str | Path) -> Manifest:
    """The manifest of *directory*. Raises `FileError` if there is none, or it is damaged."""
    path = Path(directory, MANIFEST)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    if len(content) > MAX_BYTES:
        raise FileError(path, f"more than {MAX_BYTES:,} bytes")
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise FileError(path, f"is damaged: {error}") from error
    if found.format != FORMAT:
        raise FileError(path, f"has format {found.format}; this version reads {FORMAT}")
    for part in found.parts:
        if Path(part.file).parent != Path(PARTS) or part.file != f"{PARTS}/{Path(part.file).name}":
            raise FileError(path, f"names the file {part.file!r}, which is not below {PARTS}/")
    return found


def write_part(directory: str | Path, block: Block, table: pa.Table) -> Part:
    """Writes *table* under its final name in one step. Raises `Incomplete` for lost rows."""
    import pyarrow.parquet as pq

    if table.num_rows != block.rows:
        raise Incomplete(
            f"block {block.name} has {block.rows} rows, {table.num_rows} were answered"
        )
    place = Path(directory, PARTS)
    place.mkdir(parents=True, exist_ok=True)
    started = place / f".{block.name}.{uuid.uuid4().hex}"
    try:
        pq.write_table(table, started)
        _flush(started)
        digest = _digest(started)
        name = f"{block.name}.{digest[:16]}.parquet"
        started.replace(place / name)
    finally:
        started.unlink(missing_ok=True)
    return Part(block.name, f"{PARTS}/{name}", block.rows, digest)


def existing_part(directory: str | Path, block: Block) -> Part | None:
    """A complete output file that an earlier attempt left for *block*; None if there is none."""
    for path in sorted(Path(directory, PARTS).glob(f"{block.name}.*.parquet")):
        digest = _digest(path)
        if path.name == f"{block.name}.{digest[:16]}.parquet":
            return Part(block.name, f"{PARTS}/{path.name}", block.rows, digest)
    return None


def commit(
    directory: str | Path, job: str, blocks: Sequence[Block], parts: Iterable[Part]
) -> Manifest:
    """Writes the manifest of *parts*, one for each of *blocks*, in one step.

    Of several parts of a block the first counts. Raises `Incomplete` if a block has none, and
    `AlreadyCommitted` if the directory has a manifest, whoever wrote it first.
    """
    found: dict[str, Part] = {}
    for part in parts:
        found.setdefault(part.block, part)
    names = [block.name for block in blocks]
    if missing := [name for name in names if name not in found]:
        raise Incomplete(f"{len(missing)} of {len(names)} blocks have no output: {missing[0]}, ...")
    chosen = tuple(found[name] for name in names)
    manifest = Manifest(job, sum(part.rows for part in chosen), chosen)
    target = Path(directory, MANIFEST)
    started = target.with_name(f".{MANIFEST}.{uuid.uuid4().hex}")
    try:
        started.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        _flush(started)
        # Unlike a rename, a link fails if the name exists.
        target.hardlink_to(started)
    except FileExistsError:
        raise refusal(directory) from None
    finally:
        started.unlink(missing_ok=True)
    _flush(target.parent)
    return manifest


def refusal(directory: str | Path) -> AlreadyCommitted:
    """The error of a job whose directory has a manifest."""
    text = "has a manifest already: name another directory, or remove this one"
    return AlreadyCommitted(f"{directory}: {text}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
