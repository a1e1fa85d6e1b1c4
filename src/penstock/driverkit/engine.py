"""`EngineDevice`: a device whose engine compiles whole models, with a cache.

A driver for a new engine starts from `EngineDevice` and `EngineModel` (docs/writing-a-driver.md).
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, TypeVar

from penstock import errors, hal
from penstock.distribution import current_origin, made_by
from penstock.driverkit.host_buffers import HostBuffers
from penstock.ir import Model
from penstock.sealed import LoadedEntry, SaveReport, Seal

if TYPE_CHECKING:
    from penstock.driverkit.postponed_write import Payloads

T = TypeVar("T")

POLL_SECONDS: Final = 0.01
"""Interval, in seconds, at which a compile with limits checks its cancel token."""


class CompilingDevice(hal.DeviceBase):
    """A device of one engine that saves what it compiles. *reason* says why the engine cannot be
    used on this machine ("": it can).

    A subclass implements `examine`, `compile` and `version_of_artefacts`, everything that compiled
    models depend on. With a cache it also sets *files*, the numbers of cache files, and implements
    `load`; *files* without `load` raise `InputError`. Neither the constructor nor `examine` may
    load the engine. *seal* seals and verifies the cache files.
    """

    files: ClassVar[tuple[int, int]] = (0, 0)
    """The numbers of model files and data files of one compiled model; (0, 0): no cache."""

    def __init__(
        self,
        name: str,
        kind: hal.DeviceType,
        capabilities: hal.Capabilities,
        *,
        reason: str = "",
        seal: Seal | None = None,
    ) -> None:
        own = type(self)
        loads = own.load is not CompilingDevice.load
        default = CompilingDevice.prepare_model_from_cache
        overrides = own.prepare_model_from_cache is not default
        if self.files != (0, 0) and not (loads or overrides):
            fault = f"{own.__name__}: files is {self.files}, but nothing loads them"
            remedy = "load(entry, config), or set files to (0, 0) for a device without a cache"
            raise errors.InputError(f"{fault}; implement {remedy}")
        self.name, self.type, self.capabilities = name, kind, capabilities
        self._reason, self._given_seal = reason, seal
        self._origin = current_origin()
        self._lock = threading.Lock()
        self.compiles = self.loads = 0
        """Numbers of models that the engine has compiled and loaded for this device."""

    def version_of_artefacts(self) -> str:
        """Driver, engine and processor: all that compiled models depend on besides the model."""
        raise NotImplementedError

    def unusable(self) -> str | None:
        """Why this process cannot use the engine, as far as can be known without loading it."""
        return None

    def examine(self, model: Model) -> Sequence[hal.Support]:
        """One answer for each operation of *model*."""
        raise NotImplementedError

    def compile(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        """Compiles a model whose operations are all supported, and saves it with `save`."""
        raise NotImplementedError

    def load(self, entry: LoadedEntry, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        """The prepared model of a verified cache entry. Raises `OtherVersion` for an entry of
        another engine, `GeneralFailure` for contents that `compile` cannot have written.
        """
        raise NotImplementedError

    @cached_property
    def version(self) -> str:
        return self.version_of_artefacts()

    def count(self, *, compiles: int = 0, loads: int = 0) -> None:
        """Adds to the counters. Called just before the engine compiles or loads."""
        with self._lock:
            self.compiles += compiles
            self.loads += loads

    def check(self) -> str | None:
        return self._reason or self.unusable()

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        return hal.refuse_unmapped(model, self.examine(model), self.capabilities.memory_kinds)

    def cache_files_needed(self) -> tuple[int, int]:
        return self.files

    @cached_property
    def seal(self) -> Seal:
        """The object that seals and verifies this device's cache files."""
        with made_by(self._origin):
            return self._given_seal or Seal(self.name, self.version, files=self.files)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        self._refuse_unusable()
        hal.validate_support(model, self.supported_operations(model))
        return self.compile(model, config)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        hal.validate_prepare_config(config)
        self._refuse_unusable()
        try:
            entry = self.seal.load(config)
            return self.load(entry, config)
        except errors.CacheError as error:
            raise errors.GeneralFailure(str(error)) from error

    def save(
        self, config: hal.PrepareConfig, payloads: Callable[[], Payloads]
    ) -> SaveReport | None:
        """Writes a compiled model to the cache handles of *config*. Returns None if there are no
        handles.

        *payloads* returns the contents of the model files and of the data files. An error of the
        engine or of the file system is reported and never raised.
        """
        if not config.model_cache and not config.data_cache:
            return None
        try:
            model, data = payloads()
        except (OSError, errors.DriverError) as error:
            return SaveReport(reason=f"{type(error).__name__}: {error}")
        return self.seal.save(config, model=model, data=data)

    def _refuse_unusable(self) -> None:
        if (reason := self.check()) is not None:
            raise errors.DeviceUnavailable(f"device {self.name}: {reason}")


class EngineDevice(HostBuffers, CompilingDevice):
    """A `CompilingDevice` with buffers, for prepared models of `EngineModel`. The buffers are host
    memory unless `make_domain` is overridden.
    """


def report_of(
    saved: SaveReport | None, artefact: str = "", *, later: bool = False
) -> hal.CacheReport:
    """The report of a save; None if no save was requested."""
    if saved is None:
        return hal.CacheReport(later=later, artefact=artefact)
    outcome: Literal["saved", "failed"] = "saved" if saved.saved else "failed"
    return hal.CacheReport(outcome, saved.reason or "", later, artefact)


THREAD: Final = "penstock-compile"
"""The name of the threads of `compiled_within`."""

Limits: TypeAlias = hal.PrepareConfig | hal.ExecutionConfig
"""A configuration with a deadline and a cancel token."""


def check_limits(limits: Limits) -> None:
    """Raises once the token of *limits* is set or the deadline has passed."""
    if limits.cancel is not None:
        limits.cancel.check()
    is_compile = isinstance(limits, hal.PrepareConfig)
    underway = "the model was compiled" if is_compile else "the model ran"
    hal.check_deadline(limits.deadline_ns, underway)


def compiled_within(limits: Limits, compile_it: Callable[[], T]) -> T:
    """Calls *compile_it*, and returns its result or raises its error. Raises earlier if *limits*
    end first.

    In that case the call continues in its own thread, and its result is dropped. Use it only for
    engines that release the interpreter lock while they compile and that write to no memory of the
    caller. Without limits it is called directly.
    """
    if limits.deadline_ns is None and limits.cancel is None:
        return compile_it()
    over, made, raised = threading.Event(), list[T](), list[BaseException]()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            made.append(context.run(compile_it))
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
            raised.append(error)
        over.set()

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    while not over.wait(_poll_seconds(limits)):
        check_limits(limits)
    if raised:
        raise raised[0]
    return made[0]


def _poll_seconds(limits: Limits) -> float | None:
    """Seconds until the next check of the limits."""
    if limits.deadline_ns is None:
        return POLL_SECONDS
    left = max(0.0, (limits.deadline_ns - time.monotonic_ns()) / 1e9)
    return left if limits.cancel is None else min(left, POLL_SECONDS)
