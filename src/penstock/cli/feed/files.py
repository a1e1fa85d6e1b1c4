"""The files that INPUT arguments name: regular files, read where they lie, and pipes, read once
into memory.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

from penstock.cli.failures import FileError, os_reason
from penstock.errors import LimitExceeded
from penstock.memory.sealed_file import SealedFile, read_path

EMPTY: Final = "the file is empty; copy or download it again"


class Piped:
    """What came through a pipe, under the name that the pipe was given by."""

    def __init__(self, path: Path, content: SealedFile) -> None:
        self._path, self._content = path, content

    def __str__(self) -> str:
        return str(self._path)

    @property
    def suffix(self) -> str:
        return self._path.suffix

    def open(self, mode: Literal["rb"]) -> BinaryIO:
        """The content from its beginning, as often as it is asked for."""
        return io.BytesIO(self._content.view)


InputFile: TypeAlias = Path | Piped


def input_file(name: str) -> InputFile:
    """The file of this name. Raises `FileError` for one that is empty or cannot be read."""
    path = Path(name)
    found: InputFile = path
    try:
        if path.is_file():
            size = path.stat().st_size
        else:
            content = read_path(path)
            found, size = Piped(path, content), len(content)
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    except (LimitExceeded, ValueError) as error:
        raise FileError(path, str(error)) from None
    if not size:
        raise FileError(path, EMPTY)
    return found
