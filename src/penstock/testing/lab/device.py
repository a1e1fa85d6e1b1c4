"""`LabDevice`: a driver that uses every way of caching, and a blob cache of its own."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec.structs import replace

from penstock import errors, hal
from penstock.distribution import made_by
from penstock.driverkit.engine import EngineDevice, report_of
from penstock.driverkit.postponed_write import PostponedWrite
from penstock.hal.capabilities import FEATURE_LEVELS
from penstock.ir import Model
from penstock.memory import MEMORY_KINDS
from penstock.sealed import SYSTEM_FILES, FileSystem, KeyStore, LoadedEntry, Registry, Seal
from penstock.sealed.late import LateWriter
from penstock.testing.lab import program as programs
from penstock.testing.lab.compiler import compile_model, interface, optimise, support
from penstock.testing.lab.execution import execute
from penstock.testing.lab.machine import LabDomain, LaidOut, Machine
from penstock.testing.lab.program import Artefact, Bytes, Compiled, Program

if TYPE_CHECKING:
    from penstock.blobcache import PersistentBlobCache

LIMITS: Final = {"key": 96, "value": 4 << 20, "total": 32 << 20}
"""Most bytes of a key, of a blob, and of all blobs."""


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
        self._owned = isinstance(blobs, str | os.PathLike)
        if isinstance(blobs, str | os.PathLike):
            from penstock.blobcache import Capacity, Limits, PersistentBlobCache, Policy, Select

            policy = Policy(Select.LRU, Capacity.FIT)
            blobs = PersistentBlobCache.open(blobs, Limits(**LIMITS), policy)
        self._blobs = blobs
        self._device = b"artefact of " + hashlib.sha256(device.encode()).digest()
        self._version = self._device + hashlib.sha256(version.encode()).digest()[:16]
        self._delete(keep=self._version)

    def find(self, what: bytes) -> tuple[memoryview, memoryview] | None:
        """The stream and weights stored under *what*."""
        found = self._blobs.get(self._key(what))
        with suppress(programs.MalformedProgram):
            return None if found is None else programs.unpack(found)
        return None

    def keep(self, what: bytes, stream: Bytes, weights: Bytes) -> bool:
        """Stores them if they fit; returns whether they did."""
        return self._blobs.set(self._key(what), programs.pack(stream, weights))

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


CAPABILITIES: Final = hal.Capabilities(
    performance={"float32": hal.PerformanceInfo(execution_time=1.2, power_usage=1.2)},
    default_performance=None,
    only_when_named=True,
)


class LabDevice(EngineDevice):
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

    domain: LabDomain

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
            raise errors.InputError(f"no lab device has the layout {layout!r}")
        if mode not in MODES or feature_level not in FEATURE_LEVELS or uses < 1:
            raise errors.InputError(
                f"no lab device has mode {mode!r}, level {feature_level}, {uses} uses"
            )
        kinds = MEMORY_KINDS if feature_level >= IMAGES_FROM_LEVEL else MEMORY_KINDS[:2]
        claims = replace(CAPABILITIES, memory_kinds=kinds)
        super().__init__(name, hal.DeviceType.ACCELERATOR, claims)
        self.feature_level, self.mode, self.uses = feature_level, mode, uses
        self._version, self._files = version, files
        self.machine = Machine(tiled=layout == "tiles", count=self.tally, kinds=kinds)
        self.domain = LabDomain(self.machine, self.interface_of, memory)
        trust = partial(Seal, registry=registry, keys=keys, file_system=file_system)
        self._make_seal = partial(trust, name, version, files=files)
        self._artefacts = None if blobs is None else Artefacts(blobs, name, version)
        self._on_engine = on_engine
        self._counts: Counter[str] = Counter()

    def version_of_artefacts(self) -> str:
        return self._version

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

    @cached_property
    def seal(self) -> Seal:
        """The seal of the device's cache files."""
        with made_by(self._origin):
            return self._make_seal()

    def cache_files_needed(self) -> tuple[int, int]:
        return self._files

    def examine(self, model: Model) -> Sequence[hal.Support]:
        return [support(model, operation) for operation in model.operations]

    def compile(self, model: Model, config: hal.PrepareConfig) -> LabPreparedModel:
        if self.mode == "first_run":
            return self._compile_later(model, config)
        made = self.compiled(model, "baseline", config)
        writer, staged = None, self.mode == "staged"
        saved = self.save(config, lambda: (made.model, made.data))
        if saved is not None and saved.saved:
            self.tally("saves")
            writer = self.seal.late_writer(config, expected=saved.entry) if staged else None
        report = report_of(saved, made.program.artefact, later=writer is not None)
        return LabPreparedModel(self, report, made.program, writer=writer, improving=staged)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        if self._files == (0, 0):
            raise errors.GeneralFailure("this lab device does not cache")
        return super().prepare_model_from_cache(config)

    def load(self, entry: LoadedEntry, config: hal.PrepareConfig) -> LabPreparedModel:
        program = self.deserialise(entry.model, entry.data)
        self.count(loads=1)
        improving = self.mode == "staged" and program.artefact == "baseline"
        writer = self.seal.late_writer(config, expected=entry.entry) if improving else None
        report = hal.CacheReport(later=writer is not None, artefact=program.artefact)
        return LabPreparedModel(self, report, program, writer=writer, improving=improving)

    def free_artefacts(self) -> int:
        """Frees every program in the device's own blob cache and returns their number."""
        return 0 if self._artefacts is None else self._artefacts.free()

    def close(self) -> None:
        if self._artefacts is not None:
            self._artefacts.close()

    def compiled(
        self, model: Model, form: Artefact, config: hal.PrepareConfig | None = None
    ) -> Compiled:
        """*model* in that form: from the device's own blobs, else compiled."""

        def made() -> Program:
            baseline = compile_model(model, partial(_report, config))
            return baseline if form == "baseline" else optimise(baseline)

        return self._kept_or(f"{form} {model.digest.hex()}".encode(), made)

    def improved(self, baseline: Program) -> Compiled:
        """The optimised form of a program: from the device's own blobs, else compiled."""
        key = b"improved " + b"".join(programs.encode(baseline))
        return self._kept_or(key, lambda: optimise(baseline))

    def deserialise(self, model: Sequence[Bytes], data: Sequence[Bytes]) -> Program:
        """The program in an entry's payloads. Raises `GeneralFailure`."""
        self.engine("deserialise")
        return programs.decode(*programs.join(model, data))

    def engine(self, act: str) -> None:
        """Counts *act* and calls *on_engine* with it."""
        self.tally(act)
        if self._on_engine is not None:
            self._on_engine(act)

    def tally(self, what: str) -> None:
        """Counts saves, conversions, and actions of the engine."""
        with self._lock:
            self._counts[what] += 1

    def _compile_later(self, model: Model, config: hal.PrepareConfig) -> LabPreparedModel:
        has_files, writer, reason = bool(config.model_cache or config.data_cache), None, ""
        counts = len(config.model_cache), len(config.data_cache)
        if has_files and counts != self._files:
            reason = f"InvalidArgument: {counts} files were given, {self._files} are needed"
        elif has_files and config.lock is None:
            reason = "NotYetWritten: without the entry's lock nothing is written later"
        elif has_files:
            # Until the late write, the content of the files must not be a valid entry.
            with suppress(OSError):
                for handle in (*config.model_cache, *config.data_cache):
                    self.seal.file_system.truncate(handle.fd, 0)
            writer = self.seal.late_writer(config, expected=None)
        is_pending = has_files and not reason
        report = hal.CacheReport("failed" if reason else "none", reason, later=is_pending)
        return LabPreparedModel(self, report, model=model, writer=writer)

    def _kept_or(self, key: bytes, made: Callable[[], Program]) -> Compiled:
        """The program stored under *key*; otherwise a newly compiled one, which is then stored."""
        if self._artefacts is not None and (kept := self._artefacts.find(key)) is not None:
            with suppress(errors.GeneralFailure):
                return self._compiled(*kept)
        self.engine("compile")
        self.count(compiles=1)
        encoded = programs.encode(made())
        if self._artefacts is not None:
            self._artefacts.keep(key, *encoded)
        return self._compiled(*encoded)

    def _compiled(self, stream: Bytes, weights: Bytes) -> Compiled:
        """The program as one payload per file; as two pieces if it has no files."""
        files = self._files if any(self._files) else (1, 1)
        model, data = programs.split(stream, weights, files)
        return Compiled(self.deserialise(model, data), model, data)


def _report(config: hal.PrepareConfig | None, done: int, total: int) -> None:
    if config is not None and config.cancel is not None:
        config.cancel.check()
    if config is not None and config.progress is not None:
        config.progress(hal.ProgressEvent("compile", "lab", done, total))


class LabPreparedModel(hal.PreparedModelBase):
    """Executes *program*, which was deserialised from the payloads of an entry.

    Without a program, the first run reads or compiles *model*. An *improving* model does the same
    for the optimised form after enough runs. Both write through *writer*, if given, at the end of
    that run or a later one, and then close the handles.
    """

    def __init__(
        self,
        device: LabDevice,
        report: hal.CacheReport,
        program: Program | None = None,
        *,
        model: Model | None = None,
        writer: LateWriter | None = None,
        improving: bool = False,
    ) -> None:
        if program is not None:
            model = interface(program)
        assert model is not None
        self.device, self.model, self._report = device, model, report
        self._program, self._writer = program, writer
        self._write: PostponedWrite | None = None
        self._uses_left = device.uses if improving else 0
        self._changing = threading.Lock()
        self._laid_out: tuple[Program | None, LaidOut] = None, LaidOut()

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        program = self._program or self._first()
        self.device.engine("execute")
        laid_out = self._laid_out
        if laid_out[0] is not program:
            laid_out = self._laid_out = program, LaidOut()
        with self.device.domain.claim(self, request) as claim:
            result = execute(program, request, config, self.device.machine, laid_out[1], claim)
        if self._uses_left:
            self._count_use()
        write = self._write
        if write is not None and write.attempt(config.deadline_ns) and write.report.save == "saved":
            self.device.tally("saves")
        return result

    @property
    def cache_report(self) -> hal.CacheReport:  # type: ignore[override]  # a late write changes it
        return self._report if self._write is None else self._write.report

    def close(self) -> None:
        with self._changing:
            for part in (self._writer, self._write):
                if part is not None:
                    part.close()

    def _first(self) -> Program:
        """The program. It is compiled just in time unless another process has written it
        meanwhile.
        """
        with self._changing:
            if self._program is None:
                compile_now = partial(self.device.compiled, self.model, "optimised")
                self._program = self._written() or self._late(compile_now)
            return self._program

    def _count_use(self) -> None:
        """Changes to the optimised form at the last use. Other threads continue with the old
        form.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._uses_left = max(0, self._uses_left - 1)
            if not self._uses_left and (baseline := self._program) is not None:
                compile_now = partial(self.device.improved, baseline)
                self._program = self._written() or self._late(compile_now)
        finally:
            self._changing.release()

    def _written(self) -> Program | None:
        """The optimised form, if the entry contains it by now."""
        writer = self._writer
        if writer is None:
            return None
        try:
            loaded = writer.load()
            program = self.device.deserialise(loaded.model, loaded.data)
        except (errors.CacheError, errors.ClosedError, errors.GeneralFailure):
            return None
        if program.artefact != "optimised":
            return None
        self.device.count(loads=1)
        self._report = hal.CacheReport(artefact=program.artefact)
        writer.close()
        return program

    def _late(self, compile_now: Callable[[], Compiled]) -> Program:
        """Compiles. Runs write the program to the entry as soon as they can without waiting."""
        began = time.monotonic_ns()
        made = compile_now()
        spent = time.monotonic_ns() - began
        form = made.program.artefact
        self._report = hal.CacheReport(artefact=form)
        if (writer := self._writer) is not None:
            self._write = PostponedWrite(writer, lambda: (made.model, made.data), form, spent)
        return made.program


def create() -> LabDevice:
    """The entry point of `penstock.drivers`."""
    return LabDevice()
