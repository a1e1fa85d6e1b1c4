"""`Compilation`: NNAPI's compilation of a finished model; `Burst`: its fast series of runs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.cache.info import CacheInfo
from penstock.closing import Closing
from penstock.compilation.receipt import Receipt
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import InputError
from penstock.execution.compiled import CompiledModel
from penstock.hal import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    PREFERENCES,
    PRIORITIES,
    Capabilities,
    Device as HalDevice,
    ExtensionAttribute,
)
from penstock.ir import Model as IrModel
from penstock.logs import Log
from penstock.nnapi import codes, parameters
from penstock.nnapi.assembly import assemble
from penstock.nnapi.devices import Device, choose_devices, with_attribute
from penstock.nnapi.lowering import lower
from penstock.nnapi.model import Model, finished_model, policy_of
from penstock.nnapi.ports import Kind, Ported
from penstock.runtime.compiling import compile_model
from penstock.runtime.discovery import DeviceInfo, manager

if TYPE_CHECKING:
    from penstock.execution.burst import Burst as CompiledBurst


log = Log(__name__)

LEVEL_OF_DEADLINES: Final = 4
"""Devices below this feature level ignore deadlines (NNAPI section 1.4)."""

LEAST_ALIGNMENT: Final = 16
LEAST_PADDING: Final = 1
"""The least alignment and padding, in bytes, that a device may request (NNAPI section 4.9)."""


class Compilation(Closing, Ported):
    """A compilation under construction, then finished: `ANeuralNetworksCompilation` (NNAPI section
    1.4).

    `Compilation(model)` places *model* on every device, with fallback to the reference device;
    `create_for_devices` uses only the given devices. *model* must be finished, else BAD_STATE.
    Every call raises `NnapiError`: BAD_STATE for changes after `finish`, and for results before it.

    Not thread-safe until it is finished.
    """

    def __init__(self, model: Model) -> None:
        self.model = finished_model(model)
        self._finished, self._ir = model.made
        subgraph, listed = self._finished.subgraph, self._finished.subgraph.operands
        self.ports = {
            "input": tuple(listed[i] for i in subgraph.inputs),
            "output": tuple(listed[i] for i in subgraph.outputs),
        }
        self._relaxed = model.is_relaxed
        self._lock = threading.Lock()
        self._without: dict[frozenset[int], CompiledModel] = {}
        self._devices: list[HalDevice] = []
        self._arguments: dict[str, Any] = {"policy": policy_of(model)}
        self._timeout_ns = 0
        self._attributes: tuple[ExtensionAttribute, ...] = ()
        self._cache: CacheInfo | None = None
        self._owned_fds: list[int] = []
        weakref.finalize(self, _close_all, self._owned_fds)

    @classmethod
    def create_for_devices(
        cls, model: Model, devices: Sequence[Device | HalDevice | DeviceInfo | str]
    ) -> Self:
        """A compilation for *devices* only, in order of preference, without fallback.

        *devices* are handles, names or device objects. There is no fallback in a run either. Raises
        UNEXPECTED_NULL for None among them, BAD_DATA for an empty list, and for a device that is
        listed twice, unknown or unusable.
        """
        made = cls(model)
        wanted, made._devices = choose_devices(devices)
        policy = policy_of(model, allow_fallback=False)
        made._arguments, made.names_devices = {"policy": policy, "devices": wanted}, True
        return made

    def set_preference(self, preference: codes.Preference | int) -> None:
        """Low power, a fast single answer (the default) or sustained speed: 0, 1, 2."""
        self._check_open()
        code = parameters.code(codes.Preference, preference, "the preference")
        self._arguments["preference"] = PREFERENCES[code]

    def set_priority(self, priority: codes.Priority | int) -> None:
        """Low, medium (the default) or high: 90, 100, 110."""
        self._check_open()
        code = parameters.code(codes.Priority, priority, "the priority")
        self._arguments["priority"] = PRIORITIES[list(codes.Priority).index(code)]

    def set_timeout(self, duration: int) -> None:
        """Limits `finish` to *duration* nanoseconds; 0 is no limit.

        Raises BAD_DATA unless the compilation names a single device. Devices below feature level 4
        ignore deadlines.
        """
        self._check_open()
        nanoseconds = parameters.nanoseconds(duration, "the timeout")
        self.only_device("a timeout")
        self._timeout_ns = nanoseconds

    def set_caching(
        self,
        directory: str | bytes | os.PathLike[str],
        token: bytes,
        trust_token: bool = False,
    ) -> None:
        """Caches compiled artefacts in *directory*, under the caller's token of 32 bytes for the
        model.

        If the directory cannot be used, nothing is cached, and the receipt says so; an invalid name
        is logged. An entry of another model with the same token is a miss. *trust_token* skips that
        check for models too large to read at each start. The token must then change whenever the
        model does, or answers may be another model's (`docs/nnapi.md` explains how to choose one).
        """
        self._check_open()
        parameters.given(directory, "the cache directory")
        given = _token(token)
        trusted = parameters.flag(trust_token, "trust_token")
        try:
            path = os.fsdecode(os.fspath(directory))
        except TypeError:
            raise codes.bad_data(
                f"a cache directory must be a path, not {type(directory).__name__}"
            ) from None
        self._cache = None
        _close_all(self._owned_fds)
        try:
            if path:
                self._cache = CacheInfo(path, given, trust_token=trusted)
        except InputError as error:
            log.info("no compilation cache: %s", error)

    def set_caching_from_fds(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes
    ) -> None:
        """As `set_caching`, in files that the caller opened read-write. The descriptors are
        duplicated now.

        The device determines their number (`hal.Device.cache_files_needed`); with another number
        nothing is loaded or saved. Only a plan of one step can use it. Raises BAD_DATA for a
        descriptor that is not open.
        """
        self._check_open()
        lists = [
            [
                parameters.whole(fd, "a file descriptor", -1, 2**31 - 1)
                for fd in parameters.listed(fds, what)
            ]
            for fds, what in ((model_cache, "the model cache"), (data_cache, "the data cache"))
        ]
        given = _token(token)
        owned: list[int] = []
        try:
            for fd in (*lists[0], *lists[1]):
                owned.append(os.dup(fd))  # noqa: PERF401  # closed after a failure
            models = len(lists[0])
            info = CacheInfo.from_fds(owned[:models], owned[models:], token=given)
        except (OSError, InputError) as error:
            _close_all(owned)
            raise codes.bad_data(f"cache files cannot be used: {error}") from error
        _close_all(self._owned_fds)
        self._owned_fds += owned
        self._cache = info

    def add_extension_attribute(
        self,
        extension_name: str,
        attribute_code_within_extension: int,
        data: object,
        length: int | None = None,
    ) -> None:
        """Adds a hint for the device: one attribute of an extension.

        The value is *length* bytes of the buffer *data* (all without *length*), copied now. It is
        part of the cache key. A driver ignores attributes that it does not know.

        Raises BAD_DATA unless the compilation names a single device that offers the extension, for
        a repeated attribute and an empty value; UNEXPECTED_NULL if *data* is None.
        """
        self._check_open()
        given = extension_name, attribute_code_within_extension, data, length
        device = self.only_device("an extension's attribute")
        self._attributes = with_attribute(self._attributes, device, given)

    def finish(self) -> None:
        """Compiles. A second call is BAD_STATE, even after a failure.

        Raises BAD_DATA if no device supports an operation; otherwise, without fallback, the result
        code of the driver that failed.
        """
        self._check_open()
        self._sealed = "has failed"
        try:
            with codes.translated():
                seconds = self._timeout_ns / 1e9
                if self._timeout_ns and self._devices[0].feature_level < LEVEL_OF_DEADLINES:
                    seconds = 0
                self._compiled = self._compile(self._ir, seconds or None, self._cache or False)
        finally:
            # The descriptors serve this compile only, whether it succeeds or fails.
            _close_all(self._owned_fds)
        self._sealed = "is finished"

    @property
    def single_device(self) -> HalDevice | None:
        """The device, if it was created for exactly one."""
        return self._devices[0] if len(self._devices) == 1 else None

    def only_device(self, what: str) -> HalDevice:
        """The single device. Raises BAD_DATA, naming *what* needs it, for none or several."""
        if (device := self.single_device) is None:
            raise codes.bad_data(f"{what} needs a compilation for exactly one device")
        return device

    def compiled_without(self, omitted: frozenset[int]) -> CompiledModel:
        """The model compiled without these optional inputs; compiled once. Raises BAD_DATA."""
        whole = self.compiled
        if not omitted:
            return whole
        with self._lock, codes.translated():
            if omitted not in self._without:
                model = lower(assemble(self._finished, relaxed=self._relaxed), omitted=omitted)
                self._without[omitted] = self._compile(model, None, False)
            return self._without[omitted]

    @property
    def receipt(self) -> Receipt:
        """The receipt of `finish`: devices, compiles, cache hits and the reasons of misses."""
        return self.compiled.receipt

    def get_preferred_memory_alignment_for_input(self, index: int) -> int:
        """The best alignment in bytes, a power of two, of memory for input *index*."""
        return max([LEAST_ALIGNMENT, *(c.alignment for c in self._users("input", index))])

    def get_preferred_memory_padding_for_input(self, index: int) -> int:
        """The padding in bytes, a power of two, that suits memory for input *index* best."""
        return max([LEAST_PADDING, *(c.padding for c in self._users("input", index))])

    def get_preferred_memory_alignment_for_output(self, index: int) -> int:
        """The same for output *index*: the best alignment."""
        return max([LEAST_ALIGNMENT, *(c.alignment for c in self._users("output", index))])

    def get_preferred_memory_padding_for_output(self, index: int) -> int:
        """The same for output *index*: the best padding."""
        return max([LEAST_PADDING, *(c.padding for c in self._users("output", index))])

    def close(self) -> None:
        """Frees it, finished or not, after runs in flight. A second call has no effect."""
        self._sealed = "is closed"
        compiled, self._compiled = self._compiled, None
        with self._lock:
            others = list(self._without.values())
            self._without.clear()
        for made in (compiled, *others):
            if made is not None:
                made.close()
        _close_all(self._owned_fds)

    def _check_open(self) -> None:
        if self._sealed:
            raise codes.bad_state(f"the compilation {self._sealed} and can no longer be changed")

    def _compile(
        self, model: IrModel, timeout: float | None, cache: CacheInfo | bool
    ) -> CompiledModel:
        return compile_model(
            model,
            timeout=timeout,
            cache=cache,
            extension_attributes=self._attributes,
            **self._arguments,
        )

    def _users(self, kind: Kind, index: int) -> list[Capabilities]:
        """The capabilities of the devices that read or write an input or output of the model."""
        plan = self.compiled.plan
        entry = plan.model.entry
        listed = entry.ordinary_inputs if kind == "input" else entry.ordinary_outputs
        operand = listed[self.port(kind, index).index]
        names = {s.device for s in plan.steps if operand in s.inputs or operand in s.outputs}
        devices = self._devices
        if not self.names_devices:
            with codes.translated():
                devices = manager.choose(None)
            fallback = manager.by_name(FALLBACK_DEVICE)
            if fallback is not None and fallback not in devices:
                devices = [*devices, fallback]
        return [d.capabilities for d in devices if d.name in names]


def _token(token: object) -> bytes:
    parameters.given(token, "the cache token")
    data = bytes(token) if isinstance(token, bytes | bytearray | memoryview) else None
    if data is None or len(data) != BYTE_SIZE_OF_CACHE_TOKEN:
        found = type(token).__name__ if data is None else len(data)
        raise codes.bad_data(f"a cache token has {BYTE_SIZE_OF_CACHE_TOKEN} bytes, not {found}")
    return data


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


class Burst(Closing):
    """Resources kept between executions of a finished *compilation*: `ANeuralNetworksBurst` (NNAPI
    section 7.1).

    One execution at a time uses it. It may be closed before or after the memories of its
    executions.
    """

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = parameters.instance(compilation, Compilation, "the compilation")
        self._running = threading.Lock()
        self._burst: CompiledBurst | None
        with codes.translated():
            self._burst = compilation.compiled.burst()

    @contextmanager
    def executing(self, compilation: Compilation) -> Iterator[CompiledBurst]:
        """A block that executes *compilation*. Raises BAD_DATA for another compilation than the
        burst's, BAD_STATE if the burst is executing or closed.
        """
        if compilation is not self.compilation:
            raise codes.bad_data("the burst is another compilation's")
        if not self._running.acquire(blocking=False):
            raise codes.bad_state("the burst is executing already")
        try:
            if self._burst is None:
                raise codes.bad_state("the burst is closed")
            yield self._burst
        finally:
            self._running.release()

    def close(self) -> None:
        """Frees it, after an execution in flight. A second call has no effect."""
        with self._running:
            burst, self._burst = self._burst, None
        if burst is not None:
            burst.close()
