"""One step through the cache, else through its driver: NNAPI's three flows (NNAPI section 2.4).

A load that fails, for whatever reason, becomes a compile; a save that fails fails nothing. Both are logged
and stand in the receipt.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from penstock import knobs
from penstock.cache.directory import CacheDirectory
from penstock.cache.index import IndexRecord
from penstock.cache.info import CacheInfo
from penstock.cache.ingredients import (
    MODEL_INGREDIENTS,
    binding_of,
    changed_ingredients,
    derived_token,
    describe_change,
    ingredients_of,
    nnapi_token,
)
from penstock.cache.lease import Lease
from penstock.cache.opened import OpenFiles
from penstock.compilation.calls import call_driver, call_driver_from_cache, describe
from penstock.compilation.receipt import CacheOutcome
from penstock.errors import (
    CacheError,
    DriverError,
    IngredientChanged,
    NoEntry,
    NotYetWritten,
    TokenCollision,
)
from penstock.hal import (
    NO_CACHE_REPORT,
    CacheHandle,
    CacheReport,
    Device,
    PrepareConfig,
    PreparedModel,
    ProgressEvent,
)
from penstock.ir import Model
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep

log = logging.getLogger(__name__)

LEAST_FEATURE_LEVEL: Final = 3
"""Drivers below have no caching calls (NNAPI section 1.3)."""


class Obtained(NamedTuple):
    """A prepared model, where it came from, and whether its driver compiled it."""

    prepared: PreparedModel
    outcome: CacheOutcome
    compiled: bool


@dataclass(frozen=True, slots=True)
class Key:
    """What one step is cached under: the effective *token*, the *binding* sealed beside it, and every
    ingredient of it by name.
    """

    token: bytes
    binding: bytes
    ingredients: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Caching:
    """How the compile of one plan uses the cache that *info* names.

    *model* is the model before *shapes* (input position -> dimensions given) were put into it.
    """

    info: CacheInfo
    model: Model
    shapes: Mapping[int, Sequence[int]]
    plan: ExecutionPlan

    def key(self, device: Device, step: ExecutionStep, config: PrepareConfig) -> Key:
        """The key of *step*."""
        ingredients = ingredients_of(
            self.model,
            device,
            config,
            step=step.model,
            operations=step.operations,
            shapes=self.shapes,
            trust_token=self.info.trust_token,
        )
        if self.info.token is None:
            token = derived_token(ingredients)
        else:
            compound = len(self.plan.steps) > 1
            token = nnapi_token(
                self.info.token, device, config, step.operations if compound else None
            )
        return Key(token, binding_of(ingredients), ingredients)


def obtain(
    device: Device, step: ExecutionStep, config: PrepareConfig, caching: Caching
) -> Obtained:
    """*step* prepared by *device*, from the cache where it can be.

    Raises what `prepare_model` raises, and `Cancelled` or `MissedDeadline*` while it waits.
    """
    needed = _files_needed(device)
    if reason := _cannot_cache(device, needed):
        return _compiled(device, step, config, CacheOutcome("off", reason))
    if caching.info.directory is None:
        return _in_given_files(device, step, config, caching)
    return _entry(device, step, config, caching, caching.info.directory, needed).obtain()


def look_up(
    device: Device, step: ExecutionStep, config: PrepareConfig, caching: Caching
) -> Obtained | None:
    """*step* out of a cache directory; None where it would have to be compiled."""
    needed = _files_needed(device)
    if _cannot_cache(device, needed) or caching.info.directory is None:
        return None
    loaded = _entry(device, step, config, caching, caching.info.directory, needed).load()
    return loaded if isinstance(loaded, Obtained) else None


def _entry(
    device: Device,
    step: ExecutionStep,
    config: PrepareConfig,
    caching: Caching,
    directory: Path,
    needed: tuple[int, int],
) -> _Entry:
    key = caching.key(device, step, config)
    config = structs.replace(config, token=key.token, binding=key.binding)
    return _Entry(CacheDirectory(directory), device, step, config, key, needed)


def _files_needed(device: Device) -> tuple[int, int]:
    """What the device said when it was found, asked again; one that fails at it does not cache."""
    try:
        return device.cache_files_needed()
    except Exception as error:  # noqa: BLE001  # a driver may raise anything
        log.warning("device %s failed in cache_files_needed: %r", device.name, error)
        return 0, 0


def _cannot_cache(device: Device, needed: tuple[int, int]) -> str:
    if needed == (0, 0):
        return f"device {device.name} does not cache"
    if device.feature_level < LEAST_FEATURE_LEVEL:
        return (
            f"device {device.name} has feature level {device.feature_level}; "
            f"caching begins with {LEAST_FEATURE_LEVEL}"
        )
    return ""


def _compiled(
    device: Device, step: ExecutionStep, config: PrepareConfig, outcome: CacheOutcome
) -> Obtained:
    return Obtained(call_driver(device, step, config), outcome, True)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One step's entry in a cache directory."""

    directory: CacheDirectory
    device: Device
    step: ExecutionStep
    config: PrepareConfig
    key: Key
    needed: tuple[int, int]

    def obtain(self) -> Obtained:
        loaded = self.load()
        if isinstance(loaded, Obtained):
            return loaded
        reason = self._explained(loaded)
        log.info("step %d on %s: cache miss: %s", self.step.index, self.device.name, reason)
        try:
            lease = self._lease()
        except CacheError as error:
            return self._without_saving(reason, str(error))
        if lease is None:
            held = f"another process has been compiling it for {knobs.lease_seconds():g} s"
            return self._without_saving(reason, held)
        with lease:
            if lease.waited:
                loaded = self.load()
                if isinstance(loaded, Obtained):
                    return loaded
                reason = self._explained(loaded)
            if isinstance(loaded, NotYetWritten) and (writer := lease.late_writer()) is not None:
                return self._without_saving(reason, f"{writer} is still to write it")
            return self._compile(lease, reason)

    def load(self) -> Obtained | CacheError | DriverError:
        """The prepared model out of the cache, or why there is none."""
        try:
            files = self.directory.open(self.key.token, self.needed)
        except CacheError as error:
            return error
        with files:
            try:
                prepared = call_driver_from_cache(self.device, _with_files(self.config, files))
            except DriverError as error:
                return error
        self.directory.touch(self.key.token)
        return Obtained(prepared, CacheOutcome("hit", report_of(prepared).artefact), False)

    def _lease(self) -> Lease | None:
        config = self.config
        wait_ns = int(knobs.lease_seconds() * 1e9)
        if config.deadline_ns is not None:
            wait_ns = min(wait_ns, max(0, config.deadline_ns - time.monotonic_ns()))
        if config.progress is not None:
            config.progress(ProgressEvent("lease", self.device.name, 0, 1))
        return self.directory.lease(self.key.token, wait_ns=wait_ns, cancel=config.cancel)

    def _compile(self, lease: Lease, reason: str) -> Obtained:
        try:
            files = lease.create(self.needed)
        except CacheError as error:
            return self._without_saving(reason, str(error))
        with files:
            began = time.perf_counter_ns()
            try:
                prepared = call_driver(self.device, self.step, _with_files(self.config, files))
            except BaseException:
                lease.discard(files)
                raise
            spent = time.perf_counter_ns() - began
            not_saved = self._publish(lease, files, report_of(prepared), spent)
        if not_saved:
            log.warning(
                "step %d on %s: not saved: %s", self.step.index, self.device.name, not_saved
            )
        outcome = CacheOutcome("miss", reason, saved=not not_saved, not_saved=not_saved)
        return Obtained(prepared, outcome, True)

    def _publish(self, lease: Lease, files: OpenFiles, report: CacheReport, compile_ns: int) -> str:
        """Why nothing was published; empty when the entry stands."""
        written = all(os.fstat(h.fd).st_size for h in (*files.model, *files.data))
        if report.save == "failed" or not (written or report.later):
            lease.discard(files)
            return report.reason or f"device {self.device.name} wrote nothing"
        record = IndexRecord(
            token=self.key.token.hex(),
            binding=self.key.binding.hex(),
            device=self.device.name,
            version=self.device.version,
            ingredients=dict(self.key.ingredients),
            models=self.needed[0],
            datas=self.needed[1],
            created=time.time(),
            compile_ns=compile_ns,
        )
        try:
            lease.publish(files, record, late=not written)
        except CacheError as error:
            return str(error)
        return ""

    def _without_saving(self, reason: str, why: str) -> Obtained:
        log.info("step %d on %s: will not be saved: %s", self.step.index, self.device.name, why)
        return _compiled(
            self.device,
            self.step,
            _without_token(self.config),
            CacheOutcome("miss", reason, not_saved=why),
        )

    def _explained(self, error: CacheError | DriverError) -> str:
        """The reason of a miss: where the key is the cause, with the ingredient that differs."""
        now = self.key.ingredients
        text = str(error)
        if isinstance(error, NoEntry):
            nearest = self.directory.nearest(now)
            if nearest is None:
                return text
            return str(
                NoEntry(f"the nearest entry differs in {_changes(nearest.ingredients, now)}")
            )
        if not text.startswith(f"{TokenCollision.__name__}:"):
            return text if isinstance(error, CacheError) or _is_named(text) else describe(error)
        record = self.directory.record(self.key.token)
        if record is None:
            return text
        changes = _changes(record.ingredients, now)
        if MODEL_INGREDIENTS.isdisjoint(changed_ingredients(record.ingredients, now)):
            return str(IngredientChanged(f"the token's entry differs in {changes}"))
        return str(TokenCollision(f"the token was given to another model: {changes}"))


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(
        describe_change(name, before.get(name), now.get(name))
        for name in changed_ingredients(before, now)
    )


def _is_named(text: str) -> bool:
    """Whether a driver passed a `CacheError`'s own text on."""
    name = text.partition(":")[0]
    return any(kind.__name__ == name for kind in CacheError.__subclasses__())


def _in_given_files(
    device: Device, step: ExecutionStep, config: PrepareConfig, caching: Caching
) -> Obtained:
    """The caller's own descriptors: loaded from, else compiled and saved in place."""
    if len(caching.plan.steps) > 1:
        reason = "files given by descriptor serve plans of one step"
        return _compiled(device, step, config, CacheOutcome("off", reason))
    key = caching.key(device, step, config)
    info = caching.info
    config = structs.replace(
        config,
        token=key.token,
        binding=key.binding,
        model_cache=tuple(map(CacheHandle, info.model_cache)),
        data_cache=tuple(map(CacheHandle, info.data_cache)),
    )
    try:
        prepared = call_driver_from_cache(device, config)
    except DriverError as error:
        reason = str(error) if _is_named(str(error)) else describe(error)
    else:
        return Obtained(prepared, CacheOutcome("hit", report_of(prepared).artefact), False)
    made = _compiled(device, step, config, CacheOutcome("miss", reason))
    report = report_of(made.prepared)
    saved = CacheOutcome("miss", reason, saved=report.save == "saved", not_saved=report.reason)
    return made._replace(outcome=saved)


def _with_files(config: PrepareConfig, files: OpenFiles) -> PrepareConfig:
    return structs.replace(config, model_cache=files.model, data_cache=files.data, lock=files.lock)


def _without_token(config: PrepareConfig) -> PrepareConfig:
    bare = PrepareConfig()
    return structs.replace(config, token=bare.token, binding=bare.binding)


def report_of(prepared: PreparedModel) -> CacheReport:
    """What the driver says of its cache files; a driver written without the member says nothing."""
    report = getattr(prepared, "cache_report", NO_CACHE_REPORT)
    return report if isinstance(report, CacheReport) else NO_CACHE_REPORT
