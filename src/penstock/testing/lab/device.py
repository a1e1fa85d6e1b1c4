"""The lab device's own cache of compiled programs: how a driver uses `penstock.blobcache` for
itself.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from penstock.blobcache import Capacity, Limits, PersistentBlobCache, Policy, Select
from penstock.errors import CacheError, GeneralFailure, InputError
from penstock.hal import (
    Buffer,
    BufferDesc,
    BufferRole,
    CacheHandle,
    CacheReport,
    Capabilities,
    DeviceBase,
    DeviceType,
    PerformanceInfo,
    PrepareConfig,
    ProgressEvent,
    Support,
    refuse_unmapped,
    validate_prepare,
    validate_prepare_config,
    validate_support,
)
from penstock.hal.capabilities import FEATURE_LEVELS
from penstock.ir import Model
from penstock.memory import MEMORY_KINDS
from penstock.sealed import SYSTEM_FILES, FileSystem, KeyStore, Registry, SaveReport, Seal
from penstock.sealed.origin import current_origin, made_by
from penstock.testing.lab.compiler import compile_model, optimise, support
from penstock.testing.lab.machine import LabDomain, Machine
from penstock.testing.lab.prepared import LabPreparedModel, said
from penstock.testing.lab.program import Bytes, Program, decode, encode, join, split

LIMITS: Final = Limits(key=96, value=4 << 20, total=32 << 20)
POLICY: Final = Policy(Select.LRU, Capacity.FIT)
_LENGTH: Final = struct.Struct("<Q")
_ALIGNED: Final = 16


class Artefacts:
    """Programs of one version of one device, in *blobs*: a file that is opened, or a cache that the
    caller has opened and closes.

    Those of the device's other versions are freed when this one starts. A blob cache notices
    damage, not malice: its file belongs where only its user can write, and a program from it is
    parsed as one from a stranger.
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
        """The stream and weights kept under *what*."""
        if (found := self._blobs.get(self._key(what))) is None or len(found) < _LENGTH.size:
            return None
        content = memoryview(found)
        (length,) = _LENGTH.unpack(content[: _LENGTH.size])
        return content[_LENGTH.size :][:length], content[_LENGTH.size :][length:]

    def keep(self, what: bytes, stream: Bytes, weights: Bytes) -> bool:
        """Keeps them, if they fit; whether they did."""
        padded = bytes(stream) + bytes(-(len(stream) + _LENGTH.size) % _ALIGNED)
        return self._blobs.set(self._key(what), _LENGTH.pack(len(padded)) + padded + bytes(weights))

    def free(self) -> int:
        """Frees all programs of the device; how many there were."""
        return self._delete()

    def close(self) -> None:
        """Writes what is unwritten, and closes what was opened here."""
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
"""Below this feature level the device maps what every device does, and no hardware buffer."""

LAYOUTS: Final[tuple[Layout, ...]] = ("rows", "tiles")
MODES: Final[tuple[Mode, ...]] = ("now", "first_run", "staged")


class Compiled(NamedTuple):
    """A program, and the payloads of (model, data) files that it was deserialised from."""

    program: Program
    model: list[bytes]
    data: list[bytes]


class LabDevice(DeviceBase):
    """A small float32 accelerator in NumPy, for tests of whatever has to do with compilation
    caching.

    It executes nothing but programs that it has deserialised from payloads of cache files, whether
    they were just compiled or loaded: *files* are how many (model, data) it asks for. *mode* "now"
    compiles when it prepares; "first_run" at the first run; "staged" a baseline when it prepares,
    and an optimised form after *uses* runs, also of a baseline that was loaded. What is compiled
    late is written late, if the runtime gave the entry's lock.

    `compiles`, `loads` and `saves` count what succeeded. *on_engine* is told "compile",
    "deserialise" and "execute" before the engine does it, and may raise or wait; `engine_calls`
    counts these. *blobs*, a path or a cache, is where it keeps compiled programs on its own,
    whatever the runtime caches; see `free_artefacts`.

    Its buffers (memory domains) may be of unknown size, and have *memory* bytes together, None for
    any number. *layout* "tiles" keeps values in them, and computes on them, in tiles of 8 x 8;
    `conversions` counts how often a value was brought from one layout to the other.

    *registry*, *keys* and *file_system* are those of its `penstock.sealed.Seal`. Thread-safe.
    """

    type = DeviceType.ACCELERATOR
    capabilities = Capabilities(
        performance={"float32": PerformanceInfo(execution_time=1.2, power_usage=1.2)},
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
        self._artefacts: Artefacts | None = None
        if blobs is not None:
            from penstock.testing.lab.device import Artefacts

            self._artefacts = Artefacts(blobs, name, version)
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
        """How often a value was brought from rows to tiles, or back."""
        return self._counts["conversions"]

    @property
    def engine_calls(self) -> dict[str, int]:
        """How often the engine was asked to do what."""
        with self._lock:
            kinds = ("compile", "deserialise", "execute")
            return {kind: self._counts[kind] for kind in kinds}

    @property
    def seal(self) -> Seal:
        """What its cache files are sealed with."""
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

    def supported_operations(self, model: Model) -> Sequence[Support]:
        answers = [support(model, operation) for operation in model.operations]
        return refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: PrepareConfig) -> LabPreparedModel:
        validate_prepare(model, config, self.capabilities.memory_kinds)
        validate_support(model, self.supported_operations(model))
        if self.mode == "first_run":
            return self._prepare_later(model, config)
        compiled = self.compile(model, "baseline", config)
        report, writer = None, None
        if config.model_cache or config.data_cache:
            report = self.seal.save(
                config.model_cache,
                config.data_cache,
                config.token,
                config.binding,
                model=compiled.model,
                data=compiled.data,
            )
            if self.mode == "staged" and report.saved:
                writer = self.seal.late_writer(config, expected=report.entry)
        return LabPreparedModel(
            self,
            self.report(report, compiled.program.artefact, later=writer is not None),
            program=compiled.program,
            writer=writer,
            improving=self.mode == "staged",
        )

    def prepare_model_from_cache(self, config: PrepareConfig) -> LabPreparedModel:
        validate_prepare_config(config)
        if self._needed == (0, 0):
            raise GeneralFailure("this lab device does not cache")
        try:
            loaded = self.seal.load(
                config.model_cache, config.data_cache, config.token, config.binding
            )
        except CacheError as error:
            raise GeneralFailure(str(error)) from error
        program = self.deserialise(loaded.model, loaded.data)
        self.count("loads")
        improving = self.mode == "staged" and program.artefact == "baseline"
        writer = self.seal.late_writer(config, expected=loaded.entry) if improving else None
        report = CacheReport(later=writer is not None, artefact=program.artefact)
        return LabPreparedModel(self, report, program=program, writer=writer, improving=improving)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        with self._lock:
            if self.domain is None:
                self.domain = LabDomain(self.machine, self._interface_of, self._memory)
        return self.domain.allocate(desc, roles)

    def _interface_of(self, prepared: object) -> Model | None:
        if isinstance(prepared, LabPreparedModel) and prepared.device is self:
            return prepared.model
        return None

    def free_artefacts(self) -> int:
        """Frees every program in its own blob cache; how many there were."""
        return 0 if self._artefacts is None else self._artefacts.free()

    def close(self) -> None:
        if self._artefacts is not None:
            self._artefacts.close()

    def compile(self, model: Model, form: str, config: PrepareConfig | None = None) -> Compiled:
        """*model* in that form: from its own blobs, else compiled."""

        def made() -> Program:
            self.engine("compile")
            self.count("compiles")
            baseline = compile_model(model, lambda done, total: _tell(config, done, total))
            return baseline if form == "baseline" else optimise(baseline)

        digest = model.digest
        return self._kept_or(f"{form} {digest.hex()}".encode(), made)

    def improve(self, baseline: Program) -> Compiled:
        """The optimised form of a program: from its own blobs, else compiled."""

        def made() -> Program:
            self.engine("compile")
            self.count("compiles")
            return optimise(baseline)

        return self._kept_or(b"improved " + b"".join(encode(baseline)), made)

    def deserialise(self, model: Sequence[Bytes], data: Sequence[Bytes]) -> Program:
        """The program in an entry's payloads, and the only way to one. Raises `GeneralFailure`."""
        self.engine("deserialise")
        return decode(*join(model, data))

    def report(
        self, saved: SaveReport | None, artefact: str, *, later: bool = False
    ) -> CacheReport:
        """What to say of a save, which is counted."""
        if saved is not None and saved.saved:
            self.count("saves")
        return said(saved, artefact, later=later)

    def engine(self, act: str) -> None:
        """Counts *act* and tells who wants to know."""
        self.count(act)
        if self._on_engine is not None:
            self._on_engine(act)

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _prepare_later(self, model: Model, config: PrepareConfig) -> LabPreparedModel:
        writer, report = None, CacheReport()
        if config.model_cache or config.data_cache:
            counts = len(config.model_cache), len(config.data_cache)
            if counts != self._needed:
                reason = f"InvalidArgument: {counts} files were given, {self._needed} are needed"
                report = CacheReport("failed", reason)
            elif config.lock is None:
                reason = "NotYetWritten: without the entry's lock nothing is written later"
                report = CacheReport("failed", reason)
            else:
                self._empty((*config.model_cache, *config.data_cache))
                writer = self.seal.late_writer(config, expected=None)
                report = CacheReport(later=True)
        return LabPreparedModel(self, report, model=model, writer=writer)

    def _empty(self, handles: Sequence[CacheHandle]) -> None:
        """Empties files that are to be written later: what they hold is nobody's entry."""
        with suppress(OSError):
            for handle in handles:
                self.seal.file_system.truncate(handle.fd, 0)

    def _kept_or(self, key: bytes, made: Callable[[], Program]) -> Compiled:
        """What its blobs have under *key*, or *made*, which they then keep."""
        if self._artefacts is not None and (kept := self._artefacts.find(key)) is not None:
            with suppress(GeneralFailure):
                return self._compiled(*kept)
        encoded = encode(made())
        if self._artefacts is not None:
            self._artefacts.keep(key, *encoded)
        return self._compiled(*encoded)

    def _compiled(self, stream: Bytes, weights: Bytes) -> Compiled:
        """One payload a file, or in two pieces where it has no files, and the program in them."""
        model, data = split(stream, weights, self._needed if any(self._needed) else (1, 1))
        return Compiled(self.deserialise(model, data), model, data)


def _tell(config: PrepareConfig | None, done: int, total: int) -> None:
    if config is None:
        return
    if config.cancel is not None:
        config.cancel.check()
    if config.progress is not None:
        config.progress(ProgressEvent("compile", "lab", done, total))


def create() -> LabDevice:
    """The entry point of `penstock.drivers`."""
    return LabDevice()
