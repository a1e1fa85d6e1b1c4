"""Maintenance of a cache directory: lists, verifies, explains and removes entries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock import knobs
from penstock.arguments import check_kind
from penstock.cache import ingredients as parts
from penstock.cache.directory import CacheDirectory
from penstock.cache.eviction import Found, collect, scan
from penstock.cache.info import checked_directory, default_directory
from penstock.cache.naming import IndexRecord
from penstock.errors import CacheError, InputError, NoEntry, Unreadable
from penstock.sealed import EntryFiles
from penstock.threads import allowed_threads

if TYPE_CHECKING:
    from penstock.hal import Device, PrepareConfig
    from penstock.ir import Model
    from penstock.sealed.seal import Seal

_MOST_LOOKS: Final = 20


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry of a cache directory.

    *token* is the 32 bytes that name it. *model_cache* and *data_cache* are its files, *nbytes* the
    size of these and the index, *created* and *used* seconds since the epoch. The other fields come
    from the index, and are empty without an authentic one. *device* and *version* are those of the
    driver. *ingredients* maps name to text for everything the entry was compiled from, and
    *binding* is their digest. *compile_ns* is the duration of the compile.
    """

    token: bytes
    model_cache: tuple[Path, ...]
    data_cache: tuple[Path, ...]
    nbytes: int
    created: float
    used: float
    device: str = ""
    version: str = ""
    ingredients: Mapping[str, str] = field(default_factory=dict, hash=False)
    binding: bytes = b""
    compile_ns: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a compile would find its entry (*found*), and if not why: *reason* is `<Name>:
    sentence`.

    *token* names the entry, existing or not (the caller's own token, if it was compiled under one).
    *ingredients* are those of the key. If there is no such entry, *nearest* is the index record of
    the most similar entry, and *changed* names the ingredients that differ.
    """

    token: bytes
    ingredients: Mapping[str, str]
    found: bool
    reason: str = ""
    nearest: IndexRecord | None = None
    changed: tuple[str, ...] = ()


class Removed(list[CacheEntry]):
    """The removed entries, and *kept*: how many others could not be removed; *reason* is the
    first's.

    *reason* is `<Name>: sentence`. Entries in use are not counted.
    """

    def __init__(self, entries: Iterable[CacheEntry] = (), kept: int = 0, reason: str = "") -> None:
        super().__init__(entries)
        self.kept, self.reason = kept, reason


class Cache:
    """The compilation cache in *directory*; None is the directory of `compile(cache=True)`.

    Safe while other processes compile: an entry in use is left alone. Methods do not create a
    missing directory; it counts as an empty cache.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        chosen = default_directory() if directory is None else directory
        self.directory = Path(checked_directory(chosen))
        self._cache = CacheDirectory(self.directory)

    def entries(self) -> list[CacheEntry]:
        """Every entry, the most recently used first. Raises `Unreadable`."""
        found = sorted(self._scan(), key=lambda group: group.used_ns, reverse=True)
        return [self._entry(group) for group in found]

    def verify(self) -> list[tuple[CacheEntry, CacheError | None]]:
        """Each entry, with None if a driver would accept it, else the error that rejects it.

        Reads every file and compares it with its driver's registry. Entries that other processes
        remove or keep replacing are left out. Raises `Unreadable` for a directory that cannot be
        listed.
        """
        return [verdict for e in self.entries() if (verdict := self._verified(e)) is not None]

    def explain(
        self,
        model: Model,
        device: Device,
        config: PrepareConfig | None = None,
        *,
        step: Model | None = None,
        operations: Sequence[int] | None = None,
        shapes: Mapping[int, Sequence[int]] | None = None,
    ) -> Explanation:
        """Explains whether a compile of *model* on *device* would find its entry, and if not what
        changed.

        *step* and *operations* are the part that *device* gets: a model of its own, and the
        operations' indexes in *model*. None is the whole model. *shapes* are the input shapes given
        for the compile, by input position. *config* None is that of a compile without further
        arguments. For a model that must be loaded and partitioned, or for devices by name, use
        `penstock.runtime.explain.explain_model`. Raises `InputError` for an invalid argument.
        """
        # Of the model and of NumPy, other methods need nothing.
        from penstock.hal import PrepareConfig
        from penstock.ir import Model

        check_kind(model, Model, "model must be a Model")
        if not callable(getattr(device, "cache_files_needed", None)):
            raise InputError(f"device must be a Device, not {type(device).__name__}")
        check_kind(config, (PrepareConfig, type(None)), "config must be a PrepareConfig")
        config = config or PrepareConfig(num_threads=allowed_threads())
        ingredients = parts.ingredients_of(
            model, device, config, step=step, operations=operations, shapes=shapes
        )
        token, needed = parts.derived_token(ingredients), device.cache_files_needed()
        if needed == (0, 0):
            reason = str(NoEntry(f"device {device.name} does not cache"))
            return Explanation(token, ingredients, found=False, reason=reason)
        nearest = self._cache.nearest(ingredients)
        if nearest is not None and nearest.ingredients == ingredients:
            token = bytes.fromhex(nearest.token)
        if any(group.token == token for group in self._scan()):
            source = ingredients["source"]
            seal = self._cache.store.seal(device.name, device.version, needed, source)
            defect = self._defect(seal, token, parts.binding_of(ingredients), needed)
            return Explanation(token, ingredients, defect is None, str(defect or ""))
        before = None if nearest is None else nearest.ingredients
        reason = str(parts.no_entry(before, ingredients))
        changed = () if before is None else parts.changed_ingredients(before, ingredients)
        return Explanation(token, ingredients, False, reason, nearest, tuple(changed))

    def gc(self, max_bytes: int | None = None) -> Removed:
        """Evicts the least recently used entries until at most *max_bytes* are left, and the oldest
        kept plans that do not fit beside these.

        Also removes what dead processes left. *max_bytes* None is the knob `cache_limit_mib`.
        Entries in use are kept. Returns the removed entries and what could not be removed. Raises
        `Unreadable`.
        """
        if max_bytes is None:
            limit = knobs.cache_limit_mib()
            max_bytes = limit << 20 if limit > 0 else None
        elif type(max_bytes) is not int or max_bytes < 0:
            raise InputError(f"a cache cannot be kept to {max_bytes!r} bytes")
        return self._collect(max_bytes)

    def clear(self) -> Removed:
        """Removes every entry not in use, also from the drivers' registries, measured placements,
        kept answers, kept plans, measured costs of engines and what runs showed.

        Returns the removed entries and what could not be removed. Raises `Unreadable`.
        """
        from penstock.cache.plans import KeptPlans
        from penstock.cache.verdicts import Calibrations, KeptAnswers, LearnedTimes, Verdicts

        for records in (Verdicts, KeptAnswers, KeptPlans, Calibrations, LearnedTimes):
            records(self.directory).clear()
        return self._collect(-1)

    def _collect(self, most_bytes: int | None) -> Removed:
        before = {entry.token: entry for entry in self.entries()}
        if not before and not self.directory.exists():
            return Removed()
        refused: dict[bytes, str] = {}
        with self._cache.store.naming("emptied"):
            gone = collect(self._cache.store, most_bytes, refused=refused)
        if most_bytes is not None and most_bytes >= 0:
            from penstock.cache.plans import KeptPlans

            taken = sum(group.nbytes for group in self._scan())
            KeptPlans(self.directory).trim(max(0, most_bytes - taken))
        went = (before[token] for token in gone if token in before)
        return Removed(went, len(refused), next(iter(refused.values()), ""))

    def _scan(self) -> list[Found]:
        with self._cache.store.naming("read"):
            try:
                return [group for group in scan(self._cache.store) if group.is_entry]
            except FileNotFoundError:
                if self.directory.is_symlink():
                    raise
                return []

    def _entry(self, group: Found) -> CacheEntry:
        files = group.names("model", "data")
        created = min(group.status[name].modified_ns for name in files) / 1e9
        entry = CacheEntry(
            group.token,
            tuple(self.directory / name for name in group.names("model")),
            tuple(self.directory / name for name in group.names("data")),
            group.nbytes,
            created,
            group.used_ns / 1e9,
        )
        if (record := self._cache.record(group.token)) is None:
            return entry
        return replace(
            entry,
            created=record.created,
            device=record.device,
            version=record.version,
            ingredients=MappingProxyType(record.ingredients),
            binding=bytes.fromhex(record.binding),
            compile_ns=record.compile_ns,
        )

    def _verified(self, entry: CacheEntry) -> tuple[CacheEntry, CacheError | None] | None:
        """The entry and its defect; None if it was removed, or replaced during each check."""
        store = self._cache.store
        names = [path.name for path in (*entry.model_cache, *entry.data_cache)]
        for _ in range(_MOST_LOOKS):
            before = [store.version_of(name) for name in names]
            defect = self._verified_once(entry.token)
            if defect is None or (any(before) and before == [*map(store.version_of, names)]):
                return entry, defect
            if not any(before):
                break
        return None

    def _verified_once(self, token: bytes) -> CacheError | None:
        record = self._cache.record(token)
        if record is None:
            return Unreadable(
                "nothing says whose the entry is: its index is missing, altered, not readable, or "
                "sealed under another state directory or key; a compile that hits the entry writes "
                "its index again, and 'penstock cache clear' removes both"
            )
        seal, needed = self._cache.store.seal_of(record), (record.models, record.datas)
        return self._defect(seal, token, bytes.fromhex(record.binding), needed)

    def _defect(
        self, seal: Seal, token: bytes, binding: bytes, needed: tuple[int, int]
    ) -> CacheError | None:
        try:
            with self._cache.open(token, needed) as files:
                loaded = seal.load(EntryFiles(files.model, files.data, token, binding))
        except CacheError as error:
            return error
        for payload in (*loaded.model, *loaded.data):
            payload.release()
        return None
