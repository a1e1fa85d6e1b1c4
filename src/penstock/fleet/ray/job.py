"""A directory of inputs to Parquet files, on a cluster: every row once, whatever is retried."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

import penstock
from penstock.distribution import install_command
from penstock.errors import NotAvailable
from penstock.fleet.ray.blocks import ROWS, Block, input_blocks
from penstock.fleet.ray.manifest import (
    MANIFEST,
    Manifest,
    Part,
    commit,
    existing_part,
    refusal,
    write_part,
)
from penstock.fleet.ray.predicting import Predict

if TYPE_CHECKING:
    import pyarrow as pa

BATCH: Final = 64
"""Rows of a block that are answered together."""

MAX_TASKS: Final = 1000
"""More blocks share tasks, several each."""


class BlockWriter:
    """Answers whole blocks and writes their output files; an actor of `predict_to_parquet`."""

    def __init__(
        self, target: str, model: str, options: Mapping[str, Any], kind: type[Predict] = Predict
    ) -> None:
        self._target = target
        self._predict = kind(model, **options)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """*batch* has the blocks as JSON; the result has their parts as JSON."""
        blocks = [msgspec.json.decode(each, type=Block) for each in batch["block"]]
        parts = [msgspec.json.encode(self._part(block)).decode() for block in blocks]
        return {"part": np.asarray(parts, object)}

    def _part(self, block: Block) -> Part:
        found = existing_part(self._target, block)
        return found or write_part(self._target, block, self._answered(block))

    def _answered(self, block: Block) -> pa.Table:
        import pyarrow as pa

        table = read_block(block)
        answered = [
            self._predict(table.slice(start, BATCH)) for start in range(0, table.num_rows, BATCH)
        ]
        return pa.concat_tables(answered)


def read_block(block: Block) -> pa.Table:
    """The rows of *block*: a column `path` for files, the columns of the file for Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if block.group is None:
        return pa.table({"path": list(block.files)})
    with pq.ParquetFile(block.files[0]) as opened:
        return opened.read_row_group(block.group)


def predict_to_parquet(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    model: str | Path,
    *,
    rows: int = ROWS,
    actors: int | tuple[int, int] = 1,
    num_cpus: float | None = 1,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    kind: type[Predict] = Predict,
    **options: Any,
) -> Manifest:
    """Answers all files of *source* into Parquet files below *target*, and commits them.

    *source* is a directory, or files: pictures, sounds and `.npy` files, *rows* of them a block,
    or Parquet files, a row group a block. *actors* is a number of actors, or the least and the
    greatest; each has one model, compiled with *options*, the arguments of `Predict`, and reserves
    *num_cpus*, *num_gpus* and *resources* of Ray. *source*, *target* and *model* lie where every
    node has them under the same name.

    An attempt that failed is repeated by Ray, as often as it takes. Repeating a job that ended
    before it committed keeps the blocks that were written. Raises `AlreadyCommitted` if *target*
    has a manifest, `Incomplete` if rows are lost, and Ray's errors.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise NotAvailable(f"ray is not installed: {install_command('ray')}") from error

    place, file = Path(target).absolute(), Path(model).absolute()
    if (place / MANIFEST).exists():
        raise refusal(place)
    job = _job(file, options, kind)
    blocks = input_blocks(source, job, rows)
    if any(block.group is None for block in blocks):
        options.setdefault("columns", ["path"])
    given = [{"block": msgspec.json.encode(block).decode()} for block in blocks]
    least, most = (actors, actors) if isinstance(actors, int) else actors
    parts = ray.data.from_items(given, override_num_blocks=min(len(given), MAX_TASKS)).map_batches(
        BlockWriter,
        fn_constructor_args=(str(place), str(file), options, kind),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        **({} if resources is None else {"resources": dict(resources)}),
    )
    written = (msgspec.json.decode(row["part"], type=Part) for row in parts.iter_rows())
    return commit(place, job, blocks, written)


def _job(model: Path, options: Mapping[str, Any], kind: type[Predict]) -> str:
    """Names what is done: the model's content, the options, and Penstock's version."""
    with model.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    said = sorted((name, repr(value)) for name, value in options.items())
    what = (content, said, kind.__qualname__, penstock.__version__)
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()
