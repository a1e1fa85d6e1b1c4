"""Prepared models that the checks of one device share: each standard case is compiled once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Final

from penstock.closing import Closing
from penstock.hal import Device, PrepareConfig, PreparedModel, Support
from penstock.ir import Model

PREPARE: Final = PrepareConfig()


class SharedModels(Closing):
    """Keeps the prepared models of the standard cases of *device* open for the next check.

    Within a `with SharedModels(device)` block, the checks that only execute (`SHARING`) prepare a
    case only if no earlier check of *device* has, and ask what *device* supports once for each
    model. The checks that damage cache files save each model once. All other checks prepare for
    themselves. The models are closed at the end of the block; *device* stays open.

    *saved* has the contents of the cache files that were saved, by token.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self.forget()
        _BY_DEVICE[id(device)] = self

    def prepared(self, model: Model) -> PreparedModel:
        """*model* in its default configuration, prepared at the first call."""
        with self._lock:
            if id(model) not in self._prepared:
                made = self.device.prepare_model(model, PREPARE)
                self._closing.callback(made.close)
                self._prepared[id(model)] = model, made
            return self._prepared[id(model)][1]

    def support(self, model: Model) -> Sequence[Support]:
        """What the device supports of *model*, asked at the first call."""
        if id(model) not in self._support:
            self._support[id(model)] = model, self.device.supported_operations(model)
        return self._support[id(model)][1]

    def forget(self) -> None:
        """Forgets the models without closing them: a check that failed may still use them."""
        self._closing = ExitStack()
        # The models are kept with their numbers, so that no other model gets one of them.
        self._prepared: dict[int, tuple[Model, PreparedModel]] = {}
        self._support: dict[int, tuple[Model, Sequence[Support]]] = {}
        self.saved: dict[bytes, list[bytes]] = {}

    def close(self) -> None:
        """Closes the models."""
        _BY_DEVICE.pop(id(self.device), None)
        closing = self._closing
        self.forget()
        closing.close()


_BY_DEVICE: Final[dict[int, SharedModels]] = {}
_IN_USE: Final[ContextVar[SharedModels | None]] = ContextVar("penstock-shared-models", default=None)


def sharing(check: Callable[[Device], None]) -> Callable[[Device], None]:
    """*check*, which uses the `SharedModels` of its device, if there are any."""

    @wraps(check)
    def shared(device: Device) -> None:
        before = _IN_USE.set(_BY_DEVICE.get(id(device)))
        try:
            check(device)
        finally:
            _IN_USE.reset(before)

    return shared


def shared_models(device: Device) -> SharedModels | None:
    """The models of *device* that the running check shares with other checks, if it does."""
    found = _IN_USE.get()
    return found if found is not None and found.device is device else None


def support_of(device: Device, model: Model) -> Sequence[Support]:
    """What *device* supports of *model*. A check that shares models asks once."""
    shared = shared_models(device)
    return device.supported_operations(model) if shared is None else shared.support(model)
