"""Staged compilation: a model runs in default shapes at once. After some runs the shapes of its
threads are measured, between the runs, and it goes on in the fastest ones.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.drivers.webgpu import artefact
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.running import Code, Executable, ShaderModel
from penstock.errors import CacheError, Cancelled, ClosedError, DriverError
from penstock.hal import CacheReport, CancelToken, ExecutionConfig, PrepareConfig
from penstock.knobs import DriverSetting
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.driverkit.postponed_write import PostponedWrite
    from penstock.sealed.late import LateWriter

log = Log(__name__)

tuning: Final = DriverSetting("webgpu_tuning", ("staged", "never"))
"""Whether the shapes of threads are measured once a model has run often enough."""

BASELINE: Final = "default shapes"
TUNED: Final = "tuned shapes"
"""The names of the two forms in receipts."""

LEAST_NS: Final = 1_000_000
"""Estimated work of the kernels with shapes, in one run, from which on a model is measured."""


def form_of(manifest: Manifest) -> str:
    """The name of the form of *manifest*; "" if it has one form."""
    if not manifest.sketch:
        return ""
    return TUNED if manifest.tuned else BASELINE


def is_wanted(manifest: Manifest, adapter: str) -> bool:
    """Whether a model is to be measured on *adapter*: it never was, or on another one, and it has
    enough work. Raises `InputError` for a setting that does not exist.
    """
    work = sum(call.estimate_ns for call in manifest.calls if call.template.startswith("tile"))
    return work >= LEAST_NS and manifest.tuned != adapter and tuning() == "staged"


class Staging:
    """The second stage of a model that runs *code*: after *uses* runs a thread measures the shapes
    of its threads. The outcome is written to the cache entry through *writer*, as soon as that
    needs no wait. Thread-safe.
    """

    def __init__(self, code: Code, writer: LateWriter, uses: int) -> None:
        self._code, self._writer, self._left = code, writer, uses
        self._lock = threading.Lock()
        self._cancel = CancelToken()
        self._write: PostponedWrite | None = None
        self._report: CacheReport | None = None

    @property
    def report(self) -> CacheReport | None:
        """The report of the cache files once the measurement is over."""
        return self._report if self._write is None else self._write.report

    def after_run(self, model: ShaderModel, config: ExecutionConfig) -> None:
        """Counts a run of *model*, and starts the measurement or the pending write."""
        if (write := self._write) is not None:
            write.attempt(config.deadline_ns)
            return
        if self._left <= 0 or not self._lock.acquire(blocking=False):
            return
        try:
            self._left -= 1
            if not self._left:
                owner = weakref.ref(model, lambda _: self._cancel.set())
                threading.Thread(
                    target=self._improve, args=(owner,), name="penstock-webgpu-tuning", daemon=True
                ).start()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the measurement, and drops a pending write. A second call does nothing."""
        self._cancel.set()
        self._writer.close()
        if self._write is not None:
            self._write.close()

    def _improve(self, owner: weakref.ref[ShaderModel]) -> None:
        """Measures, and lets the model go on in the fastest shapes."""
        try:
            manifest = self._best()
            is_other = manifest.calls != self._code.manifest.calls
            executable = self._executable(manifest) if is_other else None
        except Cancelled:
            return
        except (DriverError, CacheError, ClosedError) as error:
            log.warning("device %s keeps the default shapes: %s", self._code.gpu.name, error)
            self._writer.close()
            if (model := owner()) is not None:
                self._report = replace(model.report, later=False)
            return
        if executable is not None and (model := owner()) is not None:
            model.become(executable)
        if self._write is not None:
            self._write.attempt()

    def _best(self) -> Manifest:
        """The model in the fastest shapes: as another process has written it meanwhile, or
        measured here.
        """
        gpu, entry = self._code.gpu, self._writer.load()
        constants = entry.data[0]
        manifest = artefact.unpack(entry.model[0], constants)
        if manifest.tuned == gpu.adapter:
            self._writer.close()
            self._report = CacheReport(artefact=form_of(manifest))
            return manifest
        from penstock.driverkit.postponed_write import PostponedWrite
        from penstock.drivers.webgpu.tuning import tuned

        found = tuned(gpu, manifest, self._cancel)
        self._write = PostponedWrite(
            self._writer, lambda: artefact.pack(found, constants), form_of(found)
        )
        return found

    def _executable(self, manifest: Manifest) -> Executable:
        """*manifest*, ready to run."""
        limits = PrepareConfig(cancel=self._cancel)
        return Executable(Code(self._code.gpu, manifest, self._code.constants, limits))
