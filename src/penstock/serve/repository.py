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
from penstock.serve.shares import WHOLE, Shares

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
    """A source, the versions that answer, and the error of the last load."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.shares = Shares()
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

    def load(self, name: str, version: str = "", share: float | None = None) -> float:
        """Loads a version of the model, by default the newest, and returns the seconds that this
        took.

        It takes over once it is warm, or gets *share* per cent of the requests beside the versions
        before it. Requests that a version has accepted get their answers from it. A version that
        answers already only gets its new share. Raises `UnknownModel`; and `InvalidRequest` if the
        version cannot be loaded: the versions before then stay.
        """
        model = self._model(name)
        if share is not None and not 0 < share <= WHOLE:
            raise InvalidRequest(f"a share must be above 0 and at most {WHOLE}, not {share}")
        began = time.monotonic()
        with model.loading:
            served = model.shares.choose(version) if version and share is not None else None
            if served is None:
                try:
                    served = self._made(model, version)
                except (PenstockError, OSError) as error:
                    model.reason = f"{type(error).__name__}: {error}"
                    text = f"model {name!r} cannot be loaded: {model.reason}"
                    raise InvalidRequest(text) from error
            model.reason = ""
            gone = model.shares.put(served, WHOLE if share is None else share)
        seconds = time.monotonic() - began
        for each in gone:
            each.retire()
        return seconds

    def unload(self, name: str, version: str = "") -> None:
        """Unloads a version of the model, by default all; requests that it has accepted get their
        answers, and the other versions its share.

        Raises `UnknownModel`.
        """
        model = self._model(name)
        with model.loading:
            gone = model.shares.remove(version)
            if version and not gone:
                raise UnknownModel(f"model {name!r} has no version {version!r}")
            model.reason = "unloaded"
        for each in gone:
            each.retire()

    def find(self, name: str, version: str = "") -> tuple[ServedVersion, str | None]:
        """The version that answers for *name*, which may be `MODEL:SIGNATURE`, and the signature.

        Raises `UnknownModel`, and `NotReady` for a model that is not loaded.
        """
        wanted, colon, signature = name.partition(":")
        model = self._model(wanted)
        chosen = model.shares.choose(version)
        if chosen is None:
            known = ", ".join(each.version for each in model.shares.served)
            if known:
                raise UnknownModel(f"model {wanted!r} has no version {version!r}; it has {known}")
            raise NotReady(f"model {wanted!r} is not ready: {model.reason}")
        return chosen, signature if colon else None

    def versions_of(self, name: str) -> list[str]:
        """The versions of *name* that answer. Raises `UnknownModel`."""
        model = self._model(name.partition(":")[0])
        return [each.version for each in model.shares.served]

    def versions(self) -> Iterator[tuple[str, ServedVersion]]:
        """The versions that answer, by the names of their models."""
        for name, model in self._models.items():
            for served in model.shares.served:
                yield name, served

    def is_ready(self) -> bool:
        """Whether every model is loaded and warm."""
        return all(model.shares.served for model in self._models.values())

    def index(self) -> list[Entry]:
        """Every version of every model with its state; with several versions also its share."""
        entries = []
        for name, model in self._models.items():
            served = model.shares.served
            for each in served:
                reason = model.reason
                if len(served) > 1:
                    reason = reason or f"{model.shares.share_of(each.version):g} % of requests"
                entries.append(Entry(name, each.version, "READY", reason))
            if not served:
                state: State = "LOADING" if model.loading.locked() else "UNAVAILABLE"
                entries.append(Entry(name, "", state, model.reason))
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

    def _made(self, model: _Model, version: str) -> ServedVersion:
        """A version of *model*, loaded and warm. Raises `PenstockError`, `OSError`."""
        name, path = self._found(model, version)
        loaded = penstock.load(path)
        digest = loaded.digest
        number = model.number + (digest != model.digest)
        served = ServedVersion(loaded, name or str(number), self._settings)
        model.number, model.digest = number, digest
        return served

    def _found(self, model: _Model, version: str) -> tuple[str, Path]:
        """The version and the file that a load takes; "" for a lone file. Raises `InputError`."""
        path = model.source.path
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
