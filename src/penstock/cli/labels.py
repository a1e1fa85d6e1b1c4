"""Label lists: from a file, or from the model's metadata."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.failures import FileError, os_reason

if TYPE_CHECKING:
    from penstock.ir import Metadata

MAX_BYTES: Final = 16 * 2**20


def read_labels(path: Path) -> tuple[str, ...]:
    """One label a line; the line's number, from 0, is the class. Raises `FileError`."""
    # NumPy comes with it, which a list of options does without.
    from penstock.memory.sealed_file import open_file

    try:
        with BufferedReader(open_file(str(path))) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    if len(content) > MAX_BYTES:
        raise FileError(path, f"more than {MAX_BYTES:,} bytes; no list of labels is that long")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(path, "not a text file in UTF-8") from None
    labels = tuple(line.strip() for line in text.splitlines())
    while labels and not labels[-1]:
        labels = labels[:-1]
    if not labels:
        raise FileError(path, "has no labels")
    return labels


def model_labels(metadata: Metadata) -> tuple[str, ...] | None:
    """The labels of the first output that has any."""
    return next((o.labels for o in metadata.outputs if o.labels), None)
