"""The null device: prepares every model and computes nothing, to measure the layers above."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import hal
from penstock.errors import InvalidArgument
from penstock.hal.request import ProvenRequest
from penstock.ir import Model
from penstock.ir.types import is_static
from penstock.memory import map_memory

__all__ = ["NullDevice", "create"]


class NullDevice(hal.DeviceBase):
    """A device that supports every operation and writes zeros. Used only when it is named."""

    name = "null"
    version = "1"
    capabilities = hal.Capabilities(default_performance=None, only_when_named=True)

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = [hal.SUPPORTED] * len(model.operations)
        return hal.refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NullPreparedModel:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        return NullPreparedModel(model)


class NullPreparedModel(hal.PreparedModelBase):
    """A prepared model that checks requests and reports unknown dimensions of its outputs as 0."""

    def __init__(self, model: Model) -> None:
        self.model, self._result = model, hal.DONE
        shapes = [model.operands[i].shape for i in model.entry.outputs]
        if not all(map(is_static, shapes)):
            sizes = (tuple(d or 0 for d in s or ()) for s in shapes)
            self._result = hal.ExecutionResult(tuple(map(hal.OutputShape, sizes)))

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        if type(request) is not ProvenRequest and any(
            isinstance(a, hal.TokenArgument) for a in (*request.inputs, *request.outputs)
        ):
            raise InvalidArgument("the null device has no buffers; a token means nothing to it")
        for pool in request.pools:
            map_memory(pool).close()
        for output in request.outputs:
            if isinstance(output, hal.HostMemory):
                output.array.fill(0)
        return self._result


def create() -> NullDevice:
    """The entry point of `penstock.drivers`."""
    return NullDevice()
