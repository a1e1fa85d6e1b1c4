"""The models of a server: where they come from, which version answers, loading and unloading."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

import penstock
from penstock.errors import InputError, PenstockError
from penstock.serve.errors import InvalidRequest, NotReady, UnknownModel
from penstock.serve.served import ServedVersion
from penstock.serve.settings import Settings

State = Literal["READY", "LOADING", "UNAVAILABLE"]

FILES: Final = (".tflite", ".onnx")
NAME: Final = re.compile(r"[\w.-]{1,128}")
"""Names of models. A colon separates the name of a signature."""


class Source(Struct, frozen=True):
    """Where a model comes from: a file, or a directory with a directory for each version."""

    name: str
    path: Path


class Entry(Struct, frozen=True):
    """One line of the repository's index."""

    name: str
    version: str
    state: State
    reason: str


def sources_of(words: list[str]) -> list[Source]:
    """The models that a command line names, each as FILE, NAME=FILE or a repository's directory.

    A repository has a directory for each model, with a directory for each version (a number) that
    holds a model file. Raises `InputError`.
    """
    found: list[Source] = []
    for word in words:
        name, equals, rest = word.partition("=")
        path = Path(rest if equals else word)
        if not path.exists():
            raise InputError(f"{path}: no such file or directory")
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


class _Model:
    """A source, the version that answers, and the error of the last load."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.current: ServedVersion | None = None
        self.reason = "unloaded"
        self.number = 0
        """The version of a lone file: the number of contents that it has had."""
        self.digest: object = None
        self.loading = threading.Lock()


class ModelRepository:
    """The models of *sources* by name. Thread-safe."""

    def __init__(self, sources: list[Source], settings: Settings) -> None:
        self._settings = settings
        self._models = {source.name: _Model(source) for source in sources}

    @property
    def names(self) -> list[str]:
        return list(self._models)

    def load(self, name: str) -> float:
        """Loads the newest version of the model, which takes over once it is warm, and returns the
        seconds that this took.

        Requests that the version before has accepted get their answers from it. Raises
        `UnknownModel`; and `InvalidRequest` if the new version cannot be loaded: the version before
        then stays.
        """
        model = self._model(name)
        began = time.monotonic()
        with model.loading:
            try:
                version, path = self._newest(model)
                loaded = penstock.load(path)
                digest = loaded.digest
                number = model.number + (digest != model.digest)
                served = ServedVersion(loaded, version or str(number), self._settings)
            except (PenstockError, OSError) as error:
                model.reason = f"{type(error).__name__}: {error}"
                raise InvalidRequest(f"model {name!r} cannot be loaded: {model.reason}") from error
            model.number, model.digest = number, digest
            model.reason = ""
            before, model.current = model.current, served
        seconds = time.monotonic() - began
        if before is not None:
            before.retire()
        return seconds

    def unload(self, name: str) -> None:
        """Unloads the model; requests that it has accepted get their answers.

        Raises `UnknownModel`.
        """
        model = self._model(name)
        with model.loading:
            before, model.current = model.current, None
            model.reason = "unloaded"
        if before is not None:
            before.retire()

    def find(self, name: str, version: str = "") -> tuple[ServedVersion, str | None]:
        """The version that answers for *name*, which may be `MODEL:SIGNATURE`, and the signature.

        Raises `UnknownModel`, and `NotReady` for a model that is not loaded.
        """
        wanted, colon, signature = name.partition(":")
        model = self._model(wanted)
        current = model.current
        if current is None:
            raise NotReady(f"model {wanted!r} is not ready: {model.reason}")
        if version not in {"", current.version}:
            raise UnknownModel(f"model {wanted!r} has no version {version!r}; {current.version} is")
        return current, signature if colon else None

    def versions(self) -> Iterator[tuple[str, ServedVersion]]:
        """The versions that answer, by the names of their models."""
        for name, model in self._models.items():
            if (current := model.current) is not None:
                yield name, current

    def is_ready(self) -> bool:
        """Whether every model is loaded and warm."""
        return all(model.current is not None for model in self._models.values())

    def index(self) -> list[Entry]:
        """Every model with its state."""
        entries = []
        for name, model in self._models.items():
            current = model.current
            state: State = "READY" if current is not None else "UNAVAILABLE"
            if current is None and model.loading.locked():
                state = "LOADING"
            entries.append(
                Entry(name, current.version if current is not None else "", state, model.reason)
            )
        return entries

    def close(self) -> None:
        """Unloads every model."""
        for name in self.names:
            self.unload(name)

    def _model(self, name: str) -> _Model:
        found = self._models.get(name)
        if found is None:
            raise UnknownModel(f"no model is named {name!r}")
        return found

    def _newest(self, model: _Model) -> tuple[str, Path]:
        """The version and the file that a load takes; "" for a lone file. Raises `InputError`."""
        path = model.source.path
        if not path.is_dir():
            return "", path
        versions = [each for each in path.iterdir() if each.is_dir() and each.name.isdecimal()]
        if not versions:
            raise InputError(f"{path} has no directory whose name is a number: a version")
        newest = max(versions, key=lambda each: int(each.name))
        files = [each for each in sorted(newest.iterdir()) if each.suffix in FILES]
        if len(files) != 1:
            raise InputError(f"{newest} has {len(files)} files {' or '.join(FILES)}; it needs one")
        return newest.name, files[0]
