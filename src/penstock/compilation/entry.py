"""Obtains one step from the cache, or else from its driver (the three flows of NNAPI section 2.4).

If a load fails for any reason, the step is compiled (`filling`), and the receipt says so.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock import knobs
from penstock.cache.directory import CacheDirectory
from penstock.cache.info import CacheInfo
from penstock.cache.ingredients import binding_of, derived_token, ingredients_of, nnapi_token
from penstock.cache.store import OpenFiles
from penstock.closing import without_frames
from penstock.compilation.calls import call_driver, call_driver_from_cache, config_of, report_of
from penstock.compilation.step_receipt import CacheOutcome, Recorder
from penstock.errors import FOREIGN, CacheError, DriverError, Unreadable
from penstock.facade import uncollected
from penstock.hal import Device, PrepareConfig, PreparedModel
from penstock.hal.prepared import Opened, retain_entry
from penstock.ir import Model
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.sealed.places import asked_path

if TYPE_CHECKING:
    from penstock.cache.naming import IndexRecord

log = Log(__name__)

LEAST_FEATURE_LEVEL: Final = 3
"""The lowest feature level with caching calls (NNAPI section 1.3)."""


class Obtained(Struct, frozen=True):
    """A prepared model, its origin, and whether the driver compiled it."""

    prepared: PreparedModel
    outcome: CacheOutcome
    compiled: bool


class Key(Struct, frozen=True):
    """The effective *token* of one step, the *binding* sealed with it, and all key ingredients."""

    token: bytes
    binding: bytes
    ingredients: Mapping[str, str]


class Caching(Struct, frozen=True):
    """Cache options of one compilation; *model* is the one before *shapes* were fixed."""

    info: CacheInfo
    model: Model
    shapes: Mapping[int, Sequence[int]]
    plan: ExecutionPlan

    @property
    def in_given_files(self) -> bool:
        """Whether the caller opened the cache files, and may close them after the call."""
        return self.info.place is None

    def key(self, device: Device, step: ExecutionStep, config: PrepareConfig) -> Key:
        """The cache key of *step*."""
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


class Entry(Struct, frozen=True):
    """The entry of one step in a cache directory; *config* carries its token and binding.

    *store* is the URL of the shared store; empty without one.
    """

    directory: CacheDirectory
    device: Device
    step: ExecutionStep
    config: PrepareConfig
    key: Key
    needed: tuple[int, int]
    recorder: Recorder
    store: str = ""

    def opening(self) -> Opened:
        """What opens the files of the entry, now or in the life of a later process of the driver.
        It keeps neither the model nor the compile's configuration.
        """
        directory, needed = self.directory, self.needed
        token, binding = self.key.token, self.key.binding

        @contextmanager
        def opened(config: PrepareConfig) -> Iterator[PrepareConfig]:
            until, cancel = config.deadline_ns, config.cancel
            with directory.open(token, needed, deadline_ns=until, cancel=cancel) as files:
                yield with_files(replace(config, token=token, binding=binding), files)

        return opened

    def load(self) -> Obtained | CacheError | DriverError:
        """Loads the prepared model from the cache; returns the error if it cannot."""
        config, token = self.config, self.key.token
        if self.store and is_due(self.store):
            from penstock.compilation.store_check import ask_again

            ask_again(self.store, self.directory.store, config)
        opened = self.opening()
        with self.recorder.time("cache", f"load step {self.step.index}", self.device.name):
            try:
                with opened(config) as filled, uncollected:
                    prepared = call_driver_from_cache(self.device, filled, self.step)
            except (CacheError, DriverError) as error:
                return without_frames(error)
            retain_entry(prepared, opened)
            if not self.directory.touch(token):
                self.directory.restore(self.record())
            return Obtained(prepared, hit(prepared), False)

    def record(self, compile_ns: int = 0) -> IndexRecord:
        """The index record of a new entry, whose compile took *compile_ns* (0 if unknown)."""
        from penstock.cache.naming import IndexRecord

        return IndexRecord(
            token=self.key.token.hex(),
            binding=self.key.binding.hex(),
            device=self.device.name,
            version=self.device.version,
            ingredients=dict(self.key.ingredients),
            models=self.needed[0],
            datas=self.needed[1],
            compile_ns=compile_ns,
            # Read from `sys.modules`: an import would be circular.
            penstock=sys.modules["penstock"].__version__,
        )


def is_due(store: str) -> bool:
    """Whether the shared store at *store* was last asked too long ago to load copies from it.

    A machine that never asked it has no copies.
    """
    hours = knobs.store_check_hours()
    try:
        asked = os.stat(asked_path(store)).st_mtime  # noqa: PTH116  # as in the cache
    except (OSError, Unreadable):
        return False
    return hours > 0 and not 0 <= time.time() - asked < 3600 * hours


def look_up(
    device: Device, step: ExecutionStep, config: PrepareConfig, caching: Caching, recorder: Recorder
) -> Obtained | None:
    """Loads *step* from a cache directory; None if the step must be compiled."""
    needed, config = files_needed(device), config_of(step, config)
    if reason_not_cached(device, needed) or caching.info.place is None:
        return None
    entry = entry_of(device, step, config, caching, caching.info.place, needed, recorder)
    loaded = entry.load()
    return loaded if isinstance(loaded, Obtained) else None


def why_not_cached(device: Device) -> str:
    """Why *device* never caches a compile; empty if it caches."""
    return reason_not_cached(device, files_needed(device))


def compiled(
    device: Device,
    step: ExecutionStep,
    config: PrepareConfig,
    outcome: CacheOutcome,
    recorder: Recorder,
) -> Obtained:
    """Compiles *step* by its driver, which gets the file handles of *config*, if any."""
    with recorder.time("compile", f"step {step.index}", device.name):
        return Obtained(call_driver(device, step, config), outcome, True)


def hit(prepared: PreparedModel) -> CacheOutcome:
    """The cache outcome of a hit; names the artefact if the driver has several."""
    return CacheOutcome("hit", report_of(prepared).artefact)


def with_files(config: PrepareConfig, files: OpenFiles) -> PrepareConfig:
    """*config* with the file handles of an entry."""
    return replace(config, model_cache=files.model, data_cache=files.data, lock=files.lock)


def entry_of(
    device: Device,
    step: ExecutionStep,
    config: PrepareConfig,
    caching: Caching,
    directory: str,
    needed: tuple[int, int],
    recorder: Recorder,
) -> Entry:
    with recorder.time("cache", f"key of step {step.index}"):
        key = caching.key(device, step, config)
    config = replace(config, token=key.token, binding=key.binding)
    store = caching.info.store
    return Entry(CacheDirectory(directory), device, step, config, key, needed, recorder, store)


def files_needed(device: Device) -> tuple[int, int]:
    """The number of model and data cache files the device needs; (0, 0) if asking fails."""
    try:
        return device.cache_files_needed()
    except FOREIGN as error:  # a driver may raise anything
        log.warning("device %s failed in cache_files_needed: %r", device.name, error)
        return 0, 0


def reason_not_cached(device: Device, needed: tuple[int, int]) -> str:
    if needed == (0, 0):
        return f"device {device.name} does not cache"
    if device.feature_level < LEAST_FEATURE_LEVEL:
        return (
            f"device {device.name} has feature level {device.feature_level}; "
            f"caching begins with {LEAST_FEATURE_LEVEL}"
        )
    return ""
