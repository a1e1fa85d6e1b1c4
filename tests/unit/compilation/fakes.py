"""A device that keeps what it was given, and breaks as it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.hal import Capabilities, PerformanceInfo, PrepareConfig
from penstock.ir import Model
from tests.support_devices import KERNELS, NumpyDevice, NumpyPrepared

EVERYTHING: Final = frozenset(KERNELS)


class Recorded(NumpyPrepared):
    """Counts how often it is closed."""

    def __init__(self, model: Model, on_close: Callable[[], None]) -> None:
        super().__init__(model)
        self.closed, self._on_close = 0, on_close

    def close(self) -> None:
        self.closed += 1
        self._on_close()


class Recorder(NumpyDevice):
    """Takes *kinds* (none: everything), keeps every config in *configs* and what it prepared in
    *made*. *on_prepare* and *on_close* are called each time.
    """

    def __init__(
        self,
        name: str,
        *kinds: str,
        on_prepare: Callable[[], None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
        **more: Any,
    ) -> None:
        super().__init__(name, frozenset(kinds) or EVERYTHING, **more)
        self.capabilities = Capabilities(default_performance=PerformanceInfo(0.5, 0.5))
        self._on_prepare, self._on_close = on_prepare, on_close
        self.configs: list[PrepareConfig] = []
        self.made: list[Recorded] = []

    def prepare_model(self, model: Model, config: PrepareConfig) -> Recorded:
        self.configs.append(config)
        super().prepare_model(model, config)
        self._on_prepare()
        self.made.append(Recorded(model, self._on_close))
        return self.made[-1]


class Returning(Recorder):
    """Returns *result* from `prepare_model`."""

    result: Any = None

    def prepare_model(self, model: Model, config: PrepareConfig) -> Any:
        return self.result


def raiser(error: BaseException) -> Callable[[], None]:
    """A function that raises *error*."""

    def fail() -> None:
        raise error

    return fail
