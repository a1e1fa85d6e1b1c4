"""A device that takes as many seconds as its input says, and stops when it is told to, unless the
input is negative.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock import hal
from penstock.errors import GeneralFailure
from penstock.ir import DType, Model, ModelBuilder
from penstock.memory import map_memory


class SlowDevice(hal.DeviceBase):
    """Writes its input to its output."""

    name = "slow"
    version = "1"

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        return [hal.SUPPORTED] * len(model.operations)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> SlowPreparedModel:
        return SlowPreparedModel(model)


class SlowPreparedModel(hal.PreparedModelBase):
    def __init__(self, model: Model) -> None:
        self.model = model

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        given, wanted = request.inputs[0], request.outputs[0]
        if isinstance(given, hal.PoolArgument) and isinstance(wanted, hal.PoolArgument):
            region = map_memory(request.pools[0]).array.view("float32")
            source = region[given.location.offset // 4 :][:4]
            target = region[wanted.location.offset // 4 :][:4]
        elif isinstance(given, hal.HostMemory) and isinstance(wanted, hal.HostMemory):
            source, target = given.array, wanted.array
        else:
            raise GeneralFailure("arguments of two kinds")
        seconds = float(source[0])
        if seconds > 100:
            raise GeneralFailure("x" * 100_000)
        end = time.monotonic() + abs(seconds)
        while time.monotonic() < end:
            time.sleep(0.002)
            if seconds > 0 and config.cancel is not None:
                config.cancel.check()
        target[...] = source
        if not config.measure:
            return hal.DONE
        return hal.ExecutionResult((), hal.Timing(7, 1000))


def create() -> SlowDevice:
    return SlowDevice()


def slow_model() -> Model:
    """One input and one output of four float32."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (4,), "x")
    return b.build(b.operation("RELU", [x], [(DType.FLOAT32, (4,))]))
