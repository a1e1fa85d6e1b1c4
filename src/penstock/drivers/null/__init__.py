"""The null device: prepares every model and computes nothing, so that what is above it can be measured."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.hal import (
    DONE,
    SUPPORTED,
    Capabilities,
    DeviceBase,
    ExecutionConfig,
    ExecutionResult,
    OutputShape,
    PrepareConfig,
    PreparedModelBase,
    Request,
    Support,
    validate_prepare,
    validate_request,
)
from penstock.ir import Model
from penstock.ir.types import is_static

__all__ = ["NullDevice", "create"]


class NullDevice(DeviceBase):
    """Says yes to everything and leaves outputs as they are; used only when it is named."""

    name = "null"
    version = "1"
    capabilities = Capabilities(default_performance=None, only_when_named=True)

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return [SUPPORTED] * len(model.operations)

    def prepare_model(self, model: Model, config: PrepareConfig) -> NullPreparedModel:
        validate_prepare(model, config)
        return NullPreparedModel(model)


class NullPreparedModel(PreparedModelBase):
    """Checks requests; unknown dimensions of its outputs are reported as 0."""

    def __init__(self, model: Model) -> None:
        self.model, self._result = model, DONE
        shapes = [model.operands[i].shape for i in model.entry.outputs]
        if not all(map(is_static, shapes)):
            sizes = (tuple(d or 0 for d in s or ()) for s in shapes)
            self._result = ExecutionResult(tuple(map(OutputShape, sizes)))

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        validate_request(self.model, request, config)
        return self._result


def create() -> NullDevice:
    """The entry point of `penstock.drivers`."""
    return NullDevice()
