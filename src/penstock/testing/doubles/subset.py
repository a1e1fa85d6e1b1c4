"""`SubsetDevice`: a device that supports less than it could."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.hal import (
    Device,
    PrepareConfig,
    PreparedModel,
    Support,
    refuse_unmapped,
    validate_prepare,
    validate_support,
)
from penstock.ir import Model
from penstock.testing.doubles.intercepting import InterceptingDevice


class SubsetDevice(InterceptingDevice):
    """Supports what *device* does and *supports* lets it: for tests of partitioning.

    *supports* takes (model, index of an operation of its entry subgraph) and returns whether it
    may, or the reason why not.
    """

    def __init__(
        self, device: Device, name: str, supports: Callable[[Model, int], bool | str]
    ) -> None:
        super().__init__(device, name)
        self._supports = supports

    def supported_operations(self, model: Model) -> Sequence[Support]:
        answers = [
            self._narrowed(answer, self._supports(model, index))
            for index, answer in enumerate(super().supported_operations(model))
        ]
        return refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        validate_prepare(model, config, self.capabilities.memory_kinds)
        validate_support(model, self.supported_operations(model))
        return super().prepare_model(model, config)

    def _narrowed(self, answer: Support, allowed: bool | str) -> Support:
        if allowed is True or not answer.supported:
            return answer
        reason = allowed if isinstance(allowed, str) else f"{self.name} leaves it to others"
        return Support(supported=False, reason=reason, accuracy=answer.accuracy)
