"""Opens a model file for the interpreter. Interpreters on one file share its parsed content."""

from __future__ import annotations

import copy
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.closing import without_frames
from penstock.errors import ModelError, UnknownOperator
from penstock.export.tflite.fields import TFLITE
from penstock.facade import uncollected
from penstock.ir import Model
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import ConstantPool
from penstock.loaders import tflite
from penstock.loaders.header import check_header
from penstock.loaders.tflite.catalog import Catalog, read_catalog
from penstock.loaders.tflite.operators import OperatorCode
from penstock.memory import sealed_file
from penstock.tflite import texts

NULL_MODEL: Final = "The model allocation is null/empty"


def _check_versions(codes: Iterable[OperatorCode]) -> None:
    """Raises `ValueError` for a version without a LiteRT kernel: it may mean something else."""
    for code in codes:
        newest = OPERATIONS.newest(code.type)
        if code.type != "CUSTOM" and not 1 <= code.version <= newest:
            reason = f"version {code.version} of {code.type} is not known, 1 to {newest} are"
            raise ValueError(
                f"Didn't find op for builtin opcode '{code.type}' version '{code.version}'. "
                "An older version of this builtin might be supported. Are you using an old TFLite "
                f"binary with a newer model?\nRegistration failed.\n{reason}"
            ) from UnknownOperator(reason)


class LoadedFile:
    """One file: its catalogue, and the model, which is built on first use."""

    def __init__(self, content: sealed_file.SealedFile, owner: object = None) -> None:
        self.pool = ConstantPool(content.view, content, content.kind)
        self.owner = owner
        with uncollected:
            self.catalog: Catalog = read_catalog(self.pool)
        _check_versions(self.catalog.codes)
        self._lock = threading.Lock()
        self._model: Model | ModelError | None = None

    @property
    def model(self) -> Model:
        """The valid model. Raises the `ModelError` of the first defect, the same each time."""
        with self._lock:
            if self._model is None:
                try:
                    self._model = tflite.load(self.pool).is_all_of(self.pool)
                except ModelError as error:
                    self._model = without_frames(error)
        if isinstance(self._model, ModelError):
            defect = self._model
            # A new error each time: a raised error keeps everything alive that its frames refer to.
            raise copy.copy(defect)
        return self._model


_lock = threading.Lock()
_opened: weakref.WeakValueDictionary[tuple[Any, ...], LoadedFile] = weakref.WeakValueDictionary()


def open_content(content: object) -> LoadedFile:
    """The file with the bytes *content*. Raises `TypeError`, or `ValueError` as LiteRT does."""
    if not isinstance(content, bytes):
        raise TypeError(
            "CreateWrapperFromBuffer(): incompatible function arguments. model_content takes "
            f"bytes, not {type(content).__name__}"
        )
    return _open(("content", id(content)), lambda: sealed_file.seal_bytes(content), content)


def open_path(path: str | bytes | os.PathLike[Any]) -> LoadedFile:
    """The file at *path*. Raises `TypeError`, or `ValueError` with LiteRT's message."""
    name = os.fsdecode(os.fspath(path))
    try:
        stamp = os.stat(name)  # noqa: PTH116  # a start imports no paths
    except (OSError, ValueError) as error:
        raise ValueError(f"Could not open '{name}'.{NULL_MODEL}\n{error}") from error
    if not stat.S_ISREG(stamp.st_mode):
        # A pipe's content cannot be shared, and reading it may block.
        return _made(lambda: _read(name), None)
    version = stamp.st_dev, stamp.st_ino, stamp.st_size, stamp.st_mtime_ns, stamp.st_ctime_ns
    return _open(("path", os.path.realpath(name), *version), lambda: _read(name), None)


def _read(name: str) -> sealed_file.SealedFile:
    def judge(head: bytes, size: int | None) -> None:
        if head:  # an empty file has an error of its own
            check_header(memoryview(head), size, TFLITE.identifier)

    try:
        content = sealed_file.read_path(name, judge)
    except OSError as error:
        raise ValueError(f"Could not open '{name}'.{NULL_MODEL}\n{error}") from error
    if not len(content):
        raise ValueError(f"mmap of size 0 requested.{NULL_MODEL}\n{name} is empty")
    return content


def _open(
    key: tuple[Any, ...], read: Callable[[], sealed_file.SealedFile], owner: object
) -> LoadedFile:
    with _lock:
        known = _opened.get(key)
        if known is None:
            known = _opened[key] = _made(read, owner)
        return known


def _made(read: Callable[[], sealed_file.SealedFile], owner: object) -> LoadedFile:
    try:
        return LoadedFile(read(), owner)
    except ModelError as error:
        raise ValueError(texts.refused(error)) from error
