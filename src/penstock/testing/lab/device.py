"""`LabDevice`: a driver that uses every way of caching, and a blob cache of its own."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from penstock import hal
from penstock.blobcache import Capacity, Limits, PersistentBlobCache, Policy, Select
from penstock.distribution import current_origin, made_by
from penstock.errors import CacheError, GeneralFailure, InputError
from penstock.hal.capabilities import FEATURE_LEVELS
from penstock.ir import Model
from penstock.memory import MEMORY_KINDS
from penstock.sealed import SYSTEM_FILES, FileSystem, KeyStore, Registry, SaveReport, Seal
from penstock.testing.lab.compiler import compile_model, optimise, support
from penstock.testing.lab.machine import LabDomain, Machine
from penstock.testing.lab.prepared import LabPreparedModel
from penstock.testing.lab.program import (
    Artefact,
    Bytes,
    Compiled,
    MalformedProgram,
    Program,
    decode,
    encode,
    join,
    pack,
    split,
    unpack,
)

LIMITS: Final = Limits(key=96, value=4 << 20, total=32 << 20)
POLICY: Final = Policy(Select.LRU, Capacity.FIT)


class Artefacts:
    """The stored programs of one version of one device, in *blobs*.

    *blobs* is a file that this object opens and closes, or a cache that the caller opens and
    closes. Programs of the device's other versions are freed at the start. A blob cache detects
    damage, not malice. Only its user may write its file, and a program from it is parsed as
    untrusted.
    """

    def __init__(
        self, blobs: PersistentBlobCache | str | os.PathLike[str], device: str, version: str
    ) -> None:
        self._owned = not isinstance(blobs, PersistentBlobCache)
        self._blobs = (
            blobs
            if isinstance(blobs, PersistentBlobCache)
            else PersistentBlobCache.open(blobs, LIMITS, POLICY)
        )
        self._device = b"artefact of " + hashlib.sha256(device.encode()).digest()
        self._version = self._device + hashlib.sha256(version.encode()).digest()[:16]
        self._delete(keep=self._version)

    def find(self, what: bytes) -> tuple[memoryview, memoryview] | None:
        """The stream and weights stored under *what*."""
        found = self._blobs.get(self._key(what))
        with suppress(MalformedProgram):
            return None if found is None else unpack(found)
        return None

    def keep(self, what: bytes, stream: Bytes, weights: Bytes) -> bool:
        """Stores them if they fit; returns whether they did."""
        return self._blobs.set(self._key(what), pack(stream, weights))

    def free(self) -> int:
        """Frees all programs of the device and returns their number."""
        return self._delete()

    def close(self) -> None:
        """Writes pending entries. Closes the cache if this object opened it."""
        if self._owned:
            self._blobs.terminate()
        else:
            self._blobs.save()

    def _key(self, what: bytes) -> bytes:
        return self._version + hashlib.sha256(what).digest()

    def _delete(self, keep: bytes | None = None) -> int:
        mine = [key for key, _ in self._blobs.items() if key.startswith(self._device)]
        return sum(
            self._blobs.delete(key) for key in mine if keep is None or not key.startswith(keep)
        )


Mode: TypeAlias = Literal["now", "first_run", "staged"]

Layout: TypeAlias = Literal["rows", "tiles"]

IMAGES_FROM_LEVEL: Final = 4
"""Below this feature level the device maps the mandatory kinds of memory, but no hardware buffers.
"""

LAYOUTS: Final[tuple[Layout, ...]] = ("rows", "tiles")
MODES: Final[tuple[Mode, ...]] = ("now", "first_run", "staged")


class LabDevice(hal.DeviceBase):
    """A small float32 accelerator in NumPy, for tests of compilation caching.

    It executes only programs that it has deserialised from payloads of cache files, compiled or
    loaded; *files* are the numbers of (model, data) files. *mode* "now" compiles when it prepares;
    "first_run" at the first run; "staged" compiles a baseline when it prepares, and an optimised
    form after *uses* runs, also of a baseline that was loaded. A form that is compiled late is
    written late, if the runtime gave the entry's lock.

    `compiles`, `loads` and `saves` count successes. *on_engine* is called with "compile",
    "deserialise" or "execute" before the engine does it, and may raise or wait; `engine_calls`
    counts these. *blobs*, a path or a cache, stores compiled programs whatever the runtime caches;
    see `free_artefacts`.

    Its buffers (memory domains) may be of unknown size, and have *memory* bytes together (None: no
    limit). With *layout* "tiles" values lie in them, and are computed, in tiles of 8 x 8;
    `conversions` counts the changes of layout.

    *registry*, *keys* and *file_system* are those of its `penstock.sealed.Seal`. Thread-safe.
    """

    type = hal.DeviceType.ACCELERATOR
    capabilities = hal.Capabilities(
        performance={"float32": hal.PerformanceInfo(execution_time=1.2, power_usage=1.2)},
        default_performance=None,
        only_when_named=True,
    )

    def __init__(
        self,
        name: str = "lab",
        version: str = "1",
        *,
        feature_level: int = 8,
        mode: Mode = "now",
        uses: int = 3,
        layout: Layout = "rows",
        memory: int | None = None,
        files: tuple[int, int] = (2, 1),
        registry: Registry | None = None,
        keys: KeyStore | None = None,
        file_system: FileSystem = SYSTEM_FILES,
        blobs: PersistentBlobCache | str | os.PathLike[str] | None = None,
        on_engine: Callable[[str], None] | None = None,
    ) -> None:
        if layout not in LAYOUTS:
            raise InputError(f"no lab device has the layout {layout!r}")
        if mode not in MODES or feature_level not in FEATURE_LEVELS or uses < 1:
            raise InputError(f"no lab device has mode {mode!r}, level {feature_level}, {uses} uses")
        self.name, self.version, self.feature_level = name, version, feature_level
        self.mode, self.uses = mode, uses
        kinds = MEMORY_KINDS if feature_level >= IMAGES_FROM_LEVEL else MEMORY_KINDS[:2]
        self.capabilities = replace(type(self).capabilities, memory_kinds=kinds)
        self.machine = Machine(tiled=layout == "tiles", count=self.count, kinds=kinds)
        self.domain: LabDomain | None = None
        self._memory = memory
        self._needed, self._trust = files, (registry, keys, file_system)
        self._artefacts = None if blobs is None else Artefacts(blobs, name, version)
        self._on_engine = on_engine
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._known_seal: Seal | None = None
        self._origin = current_origin()

    @property
    def compiles(self) -> int:
        """How often a model was compiled, or a program optimised."""
        return self._counts["compiles"]

    @property
    def loads(self) -> int:
        """How often an entry was loaded from cache files."""
        return self._counts["loads"]

    @property
    def saves(self) -> int:
        """How often an entry was written to cache files, at once or late."""
        return self._counts["saves"]

    @property
    def conversions(self) -> int:
        """How often a value was converted from rows to tiles, or back."""
        return self._counts["conversions"]

    @property
    def engine_calls(self) -> dict[str, int]:
        """How often the engine did each of its actions."""
        with self._lock:
            return {act: self._counts[act] for act in ("compile", "deserialise", "execute")}

    @property
    def seal(self) -> Seal:
        """The seal of the device's cache files."""
        with self._lock:
            if self._known_seal is None:
                registry, keys, files = self._trust
                with made_by(self._origin):
                    self._known_seal = Seal(
                        self.name,
                        self.version,
                        files=self._needed,
                        registry=registry,
                        keys=keys,
                        file_system=files,
                    )
            return self._known_seal

    def cache_files_needed(self) -> tuple[int, int]:
        return self._needed

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = [support(model, operation) for operation in model.operations]
        return hal.refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> LabPreparedModel:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        hal.validate_support(model, self.supported_operations(model))
        if self.mode == "first_run":
            return self._prepare_later(model, config)
        compiled = self.compile(model, "baseline", config)
        report, writer = None, None
        if config.model_cache or config.data_cache:
            entry = config.model_cache, config.data_cache, config.token, config.binding
            report = self.seal.save(*entry, model=compiled.model, data=compiled.data)
            if self.mode == "staged" and report.saved:
                writer = self.seal.late_writer(config, expected=report.entry)
        return LabPreparedModel(
            self,
            self.report(report, compiled.program.artefact, later=writer is not None),
            program=compiled.program,
            writer=writer,
            improving=self.mode == "staged",
        )

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> LabPreparedModel:
        hal.validate_prepare_config(config)
        if self._needed == (0, 0):
            raise GeneralFailure("this lab device does not cache")
        try:
            entry = config.model_cache, config.data_cache, config.token, config.binding
            loaded = self.seal.load(*entry)
        except CacheError as error:
            raise GeneralFailure(str(error)) from error
        program = self.deserialise(loaded.model, loaded.data)
        self.count("loads")
        improving = self.mode == "staged" and program.artefact == "baseline"
        writer = self.seal.late_writer(config, expected=loaded.entry) if improving else None
        report = hal.CacheReport(later=writer is not None, artefact=program.artefact)
        return LabPreparedModel(self, report, program=program, writer=writer, improving=improving)

    def allocate(
        self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
    ) -> tuple[int, hal.Buffer]:
        with self._lock:
            if self.domain is None:
                self.domain = LabDomain(self.machine, self._interface_of, self._memory)
        return self.domain.allocate(desc, roles)

    def _interface_of(self, prepared: object) -> Model | None:
        if isinstance(prepared, LabPreparedModel) and prepared.device is self:
            return prepared.model
        return None

    def free_artefacts(self) -> int:
        """Frees every program in the device's own blob cache and returns their number."""
        return 0 if self._artefacts is None else self._artefacts.free()

    def close(self) -> None:
        if self._artefacts is not None:
            self._artefacts.close()

    def compile(
        self, model: Model, form: Artefact, config: hal.PrepareConfig | None = None
    ) -> Compiled:
        """*model* in that form: from the device's own blobs, else compiled."""

        def made() -> Program:
            baseline = compile_model(model, lambda done, total: _report(config, done, total))
            return baseline if form == "baseline" else optimise(baseline)

        return self._kept_or(f"{form} {model.digest.hex()}".encode(), made)

    def improve(self, baseline: Program) -> Compiled:
        """The optimised form of a program: from the device's own blobs, else compiled."""
        key = b"improved " + b"".join(encode(baseline))
        return self._kept_or(key, lambda: optimise(baseline))

    def deserialise(self, model: Sequence[Bytes], data: Sequence[Bytes]) -> Program:
        """The program in an entry's payloads. Raises `GeneralFailure`."""
        self.engine("deserialise")
        return decode(*join(model, data))

    def report(
        self, saved: SaveReport | None, artefact: str, *, later: bool = False
    ) -> hal.CacheReport:
        """The report of a save (None: not requested); counts it."""
        if saved is None:
            return hal.CacheReport(later=later, artefact=artefact)
        if saved.saved:
            self.count("saves")
        return hal.CacheReport(
            "saved" if saved.saved else "failed", saved.reason or "", later, artefact
        )

    def engine(self, act: str) -> None:
        """Counts *act* and calls *on_engine* with it."""
        self.count(act)
        if self._on_engine is not None:
            self._on_engine(act)

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _prepare_later(self, model: Model, config: hal.PrepareConfig) -> LabPreparedModel:
        writer, report = None, hal.CacheReport()
        if config.model_cache or config.data_cache:
            counts = len(config.model_cache), len(config.data_cache)
            if counts != self._needed:
                reason = f"InvalidArgument: {counts} files were given, {self._needed} are needed"
                report = hal.CacheReport("failed", reason)
            elif config.lock is None:
                reason = "NotYetWritten: without the entry's lock nothing is written later"
                report = hal.CacheReport("failed", reason)
            else:
                self._empty((*config.model_cache, *config.data_cache))
                writer = self.seal.late_writer(config, expected=None)
                report = hal.CacheReport(later=True)
        return LabPreparedModel(self, report, model=model, writer=writer)

    def _empty(self, handles: Sequence[hal.CacheHandle]) -> None:
        """Truncates files that are written later, so that their content is not a valid entry."""
        with suppress(OSError):
            for handle in handles:
                self.seal.file_system.truncate(handle.fd, 0)

    def _kept_or(self, key: bytes, made: Callable[[], Program]) -> Compiled:
        """The program stored under *key*; otherwise a newly compiled one, which is then stored."""
        if self._artefacts is not None and (kept := self._artefacts.find(key)) is not None:
            with suppress(GeneralFailure):
                return self._compiled(*kept)
        self.engine("compile")
        self.count("compiles")
        encoded = encode(made())
        if self._artefacts is not None:
            self._artefacts.keep(key, *encoded)
        return self._compiled(*encoded)

    def _compiled(self, stream: Bytes, weights: Bytes) -> Compiled:
        """The program as one payload per file; as two pieces if it has no files."""
        model, data = split(stream, weights, self._needed if any(self._needed) else (1, 1))
        return Compiled(self.deserialise(model, data), model, data)


def _report(config: hal.PrepareConfig | None, done: int, total: int) -> None:
    if config is None:
        return
    if config.cancel is not None:
        config.cancel.check()
    if config.progress is not None:
        config.progress(hal.ProgressEvent("compile", "lab", done, total))


def create() -> LabDevice:
    """The entry point of `penstock.drivers`."""
    return LabDevice()
