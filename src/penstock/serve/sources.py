"""Where a server's models come from: files, and directories of versions."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.errors import InputError

FILES: Final = (".tflite", ".onnx")
NAME: Final = re.compile(r"[\w.-]{1,128}")
"""Names of models. A colon separates the name of a signature."""


class Source(Struct, frozen=True):
    """Where a model comes from: a file, or a directory with a directory for each version."""

    name: str
    path: Path


def sources_of(words: list[str]) -> list[Source]:
    """The models that a command line names, each as FILE, NAME=FILE or a repository's directory.

    A repository has a directory for each model, with a directory for each version (a number) that
    holds a model file. Raises `InputError`, and `OSError` for a path that cannot be read.
    """
    found: list[Source] = []
    for word in words:
        name, equals, rest = word.partition("=")
        path = Path(rest if equals else word)
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if equals:
            found.append(Source(name, path))
        elif path.is_dir():
            inside = [Source(each.name, each) for each in sorted(path.iterdir()) if each.is_dir()]
            if not inside:
                raise InputError(
                    f"{path}: a repository has a directory for each model; it is empty"
                )
            found += inside
        else:
            found.append(Source(path.stem, path))
    names: set[str] = set()
    for source in found:
        if NAME.fullmatch(source.name) is None:
            raise InputError(
                f"{source.path}: {source.name!r} is no name of a model (letters, digits, '_', '.' "
                "and '-'); NAME=FILE gives another"
            )
        if source.name in names:
            raise InputError(f"two models are named {source.name!r}; NAME=FILE gives another name")
        names.add(source.name)
    return found


def file_of(path: Path, version: str) -> tuple[str, Path]:
    """The version and the file that a load of the source at *path* takes: *version*, "" for the
    newest. The version of a lone file is "". Raises `InputError`.
    """
    if not path.is_dir():
        if version:
            raise InputError(f"{path} is a file; it has no versions to choose from")
        return "", path
    versions = [each for each in path.iterdir() if each.is_dir() and each.name.isdecimal()]
    if version:
        versions = [each for each in versions if each.name == version]
    if not versions:
        wanted = f"named {version!r}" if version else "whose name is a number: a version"
        raise InputError(f"{path} has no directory {wanted}")
    newest = max(versions, key=lambda each: int(each.name))
    files = [each for each in sorted(newest.iterdir()) if each.suffix in FILES]
    if len(files) != 1:
        raise InputError(f"{newest} has {len(files)} files {' or '.join(FILES)}; it needs one")
    return newest.name, files[0]
