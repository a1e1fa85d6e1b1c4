"""The models of a server: which version answers, loading, unloading, and making room for others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

import penstock
from penstock.errors import InputError, PenstockError
from penstock.hal import CancelToken
from penstock.serve import records
from penstock.serve.errors import InvalidRequest, NoMemory, NotReady, UnknownModel
from penstock.serve.memory import MemoryBudget, check_model, memory_of
from penstock.serve.reloading import Reload
from penstock.serve.served import ServedVersion
from penstock.serve.settings import Settings
from penstock.serve.shares import WHOLE, Shares
from penstock.serve.sources import Source, file_of
from penstock.serve.statistics import Statistics

State = Literal["READY", "LOADING", "UNAVAILABLE"]

MADE_ROOM: Final = "unloaded to make room; a request loads it again"


class Entry(Struct, frozen=True):
    """One line of the repository's index."""

    name: str
    version: str
    state: State
    reason: str


class VersionStatistics(Struct, frozen=True):
    """The statistics of a version, and the memory that it has (0: unloaded to make room)."""

    name: str
    version: str
    statistics: Statistics
    nbytes: int


class _Model:
    """A source, the versions that answer, and the error of the last load."""

    def __init__(self, source: Source, *, is_pinned: bool) -> None:
        self.source, self.is_pinned = source, is_pinned
        self.shares = Shares()
        self.reason = "not loaded yet"
        self.number = 0
        """The version of a lone file: the number of contents that it has had."""
        self.digest: object = None
        self.loading = threading.Lock()
        self.used_ns = 0
        """When the model was last loaded or asked, of `time.monotonic_ns`."""
        self.evicted: list[tuple[str, float]] = []
        """Versions and their shares that were unloaded to make room."""
        self.reload: Reload | None = None
        self.statistics: dict[str, Statistics] = {}
        """Of the versions that answer, or would if they had not been unloaded to make room."""

    def absence(self) -> tuple[State, str]:
        """The state of the model while no version answers, and why."""
        if self.loading.locked():
            return "LOADING", "loading"
        return "UNAVAILABLE", self.reason


class ModelRepository:
    """The models of *sources* by name. Thread-safe.

    Raises `InputError` if a pinned model is none of them.
    """

    def __init__(self, sources: list[Source], settings: Settings) -> None:
        self._settings = settings
        pinned = settings.memory.pinned
        self._models = {s.name: _Model(s, is_pinned=s.name in pinned) for s in sources}
        if unknown := [name for name in pinned if name not in self._models]:
            raise InputError(f"pinned model {unknown[0]!r} is none of the models")
        self._budget = MemoryBudget(settings.memory.total)
        self._lock = threading.Lock()
        """Held while a model is chosen to be unloaded, or its reload begins or ends."""
        self._ending, self._closing = CancelToken(), CancelToken()
        self.evictions = 0
        """How often a model was unloaded to make room."""

    @property
    def names(self) -> list[str]:
        return list(self._models)

    @property
    def used_bytes(self) -> int:
        """The memory of all versions in memory."""
        return self._budget.used

    def load(self, name: str, version: str = "", share: float | None = None) -> float:
        """Loads a version of the model, by default the newest, and returns the seconds that this
        took.

        It takes over once it is warm, or gets *share* per cent of the requests beside the versions
        before it. Requests that a version has accepted get their answers from it. A version that
        answers already only gets its new share. Raises `UnknownModel`; `InvalidRequest` if the
        version cannot be loaded, and `NoMemory` if there is no room: the versions before then stay.
        `NotReady` if the server ends.
        """
        model = self._model(name)
        if share is not None and not 0 < share <= WHOLE:
            raise InvalidRequest(f"a share must be above 0 and at most {WHOLE}, not {share}")
        began = time.monotonic()
        served = self._load(model, version, share, self._ending)
        with self._lock:
            model.evicted = []
        served.lease.become("held")
        return time.monotonic() - began

    def unload(self, name: str, version: str = "") -> None:
        """Unloads a version of the model, by default all; requests that it has accepted get their
        answers, and the other versions its share. No request loads it again.

        Raises `UnknownModel`.
        """
        model = self._model(name)
        with model.loading:
            with self._lock:
                known = [each for each, _ in model.evicted]
                model.evicted = [e for e in model.evicted if version and e[0] != version]
            gone = model.shares.remove(version)
            if version and not gone and version not in known:
                raise UnknownModel(f"model {name!r} has no version {version!r}")
            model.reason = "unloaded"
            for each in [version] if version else [*model.statistics]:
                model.statistics.pop(each, None)
        for served in gone:
            served.retire()

    def take(
        self,
        name: str,
        version: str = "",
        deadline_ns: int | None = None,
        cancel: CancelToken | None = None,
    ) -> tuple[ServedVersion, str | None]:
        """The version that answers for *name*, which may be `MODEL:SIGNATURE`, and the signature.
        The version is taken: `give_back` ends its use.

        A model that was unloaded to make room is loaded again. Raises `UnknownModel`, `NotReady`
        for a model that is not loaded, and what `Reload.wait` raises.
        """
        wanted, colon, signature = name.partition(":")
        model = self._model(wanted)
        while True:
            model.used_ns = time.monotonic_ns()
            chosen = model.shares.choose(version)
            if chosen is None:
                reload = self._reload_of(wanted, model, version)
                if reload is None:
                    continue
                chosen = reload.wait(version, deadline_ns, cancel)
                if chosen is not None:
                    return chosen, signature if colon else None
            elif chosen.take():
                return chosen, signature if colon else None
            # A new version took over in between, or the model was unloaded.

    def is_ready(self) -> bool:
        """Whether every model is loaded and warm, or was and was unloaded to make room."""
        return all(model.shares.served or model.evicted for model in self._models.values())

    def find(self, name: str, version: str = "") -> tuple[ServedVersion, str | None]:
        """The version that answers for *name* as it is, and the signature.

        Raises `UnknownModel`, and `NotReady` for a model that is not loaded.
        """
        wanted, colon, signature = name.partition(":")
        model = self._model(wanted)
        chosen = model.shares.choose(version)
        if chosen is None:
            raise self._absent(wanted, model, version)
        return chosen, signature if colon else None

    def made_room(self, name: str, version: str = "") -> bool:
        """Whether *version*, "" for any, was unloaded to make room. Raises `UnknownModel`."""
        evicted = self._model(name.partition(":")[0]).evicted
        return any(version in {"", each} for each, _ in evicted)

    def versions_of(self, name: str) -> list[str]:
        """The versions of *name* that answer. Raises `UnknownModel`."""
        model = self._model(name.partition(":")[0])
        return [each.version for each in model.shares.served]

    def versions(self) -> Iterator[tuple[str, ServedVersion]]:
        """The versions that answer, by the names of their models."""
        for name, model in self._models.items():
            for served in model.shares.served:
                yield name, served

    def statistics(self, name: str = "", version: str = "") -> list[VersionStatistics]:
        """The statistics of *version* of the model *name*; "" for all. Raises `UnknownModel`."""
        names = [name.partition(":")[0]] if name else self.names
        found = []
        for each in names:
            model = self._model(each)
            memory = {served.version: served.lease.nbytes for served in model.shares.served}
            memory.update((evicted, 0) for evicted, _ in model.evicted)
            found += [
                VersionStatistics(each, number, model.statistics[number], nbytes)
                for number, nbytes in memory.items()
                if version in {"", number} and number in model.statistics
            ]
        if version and not found:
            raise UnknownModel(f"model {name!r} has no version {version!r}")
        return found

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
                state, reason = model.absence()
                for version, _ in model.evicted or [("", 0.0)]:
                    entries.append(Entry(name, version, state, reason))
        return entries

    def end_loads(self) -> None:
        """Ends the loads that nobody's request waits for, and refuses further ones."""
        self._ending.set()

    def close(self) -> None:
        """Unloads every model. Loads that are in progress end with `NotReady`."""
        self._ending.set()
        self._closing.set()
        for name, model in self._models.items():
            with self._lock:
                reload = model.reload
            if reload is not None:
                reload.join()
            self.unload(name)

    def _model(self, name: str) -> _Model:
        found = self._models.get(name)
        if found is None:
            raise UnknownModel(f"no model is named {name!r}")
        return found

    def _absent(self, name: str, model: _Model, version: str) -> UnknownModel | NotReady:
        known = ", ".join(each.version for each in model.shares.served)
        if known:
            return UnknownModel(f"model {name!r} has no version {version!r}; it has {known}")
        return NotReady(f"model {name!r} is not ready: {model.absence()[1]}")

    def _load(
        self, model: _Model, version: str, share: float | None, cancel: CancelToken
    ) -> ServedVersion:
        """Loads and warms *version* of *model*, and gives it its share."""
        name = model.source.name
        with model.loading:
            served = model.shares.choose(version) if version and share is not None else None
            if served is None:
                try:
                    served = self._made(model, version, cancel)
                except (PenstockError, OSError) as error:
                    if cancel.is_set():
                        raise NotReady("the server is shutting down") from error
                    model.reason = f"{type(error).__name__}: {error}"
                    kind = NoMemory if isinstance(error, NoMemory) else InvalidRequest
                    raise kind(f"model {name!r} cannot be loaded: {model.reason}") from error
                records.unbatched(name, served.version, served.unbatched)
            model.reason = ""
            model.used_ns = time.monotonic_ns()
            gone = model.shares.put(served, WHOLE if share is None else share)
        for each in gone:
            each.retire()
            if each.version != served.version:
                model.statistics.pop(each.version, None)
        return served

    def _made(self, model: _Model, version: str, cancel: CancelToken) -> ServedVersion:
        """A version of *model*, loaded and warm. Raises `PenstockError`, `OSError`."""
        cancel.check()
        name, path = file_of(model.source.path, version)
        loaded = penstock.load(path)
        digest = loaded.digest
        number = model.number + (digest != model.digest)
        nbytes = memory_of(loaded, self._settings)
        check_model(nbytes, self._settings.memory.model)
        lease = self._budget.lease(nbytes, lambda: self._make_room(model))
        try:
            chosen = name or str(number)
            statistics = model.statistics.get(chosen) or Statistics()
            served = ServedVersion(loaded, chosen, self._settings, lease, statistics, cancel)
        except BaseException:
            lease.become("ended")
            raise
        model.number, model.digest = number, digest
        model.statistics[chosen] = statistics
        return served

    def _make_room(self, wanted: _Model) -> bool:
        """Unloads the model that was used least recently, but not *wanted*; False if all stay."""
        with self._lock:
            loaded = [
                model
                for model in self._models.values()
                if model is not wanted
                and not model.is_pinned
                and model.reload is None
                and model.shares.served
            ]
            if not loaded:
                return False
            chosen = min(loaded, key=lambda model: model.used_ns)
            served = chosen.shares.served
            chosen.evicted = [(s.version, chosen.shares.share_of(s.version)) for s in served]
            chosen.reason = MADE_ROOM
            self.evictions += 1
            gone = chosen.shares.remove()
        for each in gone:
            each.retire()
        return True

    def _reload_of(self, name: str, model: _Model, version: str) -> Reload | None:
        """The reload of *model*, begun if need be; None if *version* answers meanwhile.

        Raises `UnknownModel`, and `NotReady` if the model was not unloaded to make room.
        """
        with self._lock:
            if model.reload is None and model.evicted and not self._closing.is_set():
                versions = [*model.evicted]
                model.reload = Reload(
                    lambda: self._restore(model, versions),
                    model.shares.choose,
                    lambda: self._restored(model),
                    self._settings.limits.queue,
                )
                model.reload.start()
            if model.reload is None and model.shares.choose(version) is None:
                raise self._absent(name, model, version)
            return model.reload

    def _restore(self, model: _Model, versions: list[tuple[str, float]]) -> None:
        """Loads *versions* with their shares. The first one gets all requests until the next comes.

        The file of a model without versions is read again: another content is its next version.
        """
        whole = 0.0
        for version, share in versions:
            whole += share
            named = version if model.source.path.is_dir() else ""
            try:
                self._load(model, named, WHOLE * share / whole, self._closing)
            except InvalidRequest as error:
                raise NotReady(str(error)) from error

    def _restored(self, model: _Model) -> None:
        with self._lock:
            model.reload = None
            served = model.shares.served
            if served:
                model.evicted = []
        # Other loads may unload the model from here on.
        for each in served:
            each.lease.become("held")
