"""`DomainDevice`: adds memory domains to any device, for tests of driver-managed buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock import hal
from penstock.driverkit.host_buffers import HostBuffers
from penstock.errors import GeneralFailure, OutputInsufficientSize
from penstock.ir import DataLocation, Model, NDArray
from penstock.ir.types import static_shape
from penstock.memory import MemoryPool, pool_of
from penstock.memory.domain import MemoryDomain
from penstock.testing.doubles import InterceptingDevice


class DomainDevice(HostBuffers, InterceptingDevice):
    """*device* with memory domains: requests may name its buffers by token (NNAPI sections 6.4 and
    6.5).

    Allocating a buffer whose shape is not completely known is `GeneralFailure`.
    """

    domain: MemoryDomain

    def __init__(self, device: hal.Device, name: str | None = None) -> None:
        super().__init__(device, name)
        self.domain = PoolDomain(self.interface_of, dynamic=False)

    def cache_files_needed(self) -> tuple[int, int]:
        """None, so no caching: a model loaded from a cache would not know the buffers."""
        return 0, 0

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        return DomainModel(self, self.device.prepare_model(model, config), model)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        raise GeneralFailure("this device does not cache")


class PoolDomain(MemoryDomain):
    """Keeps each value in a pool."""

    def encode(self, array: NDArray, room: Callable[[], Any]) -> Any:
        kept = in_pool(array.shape, array.dtype)
        kept[...] = array
        return kept


class DomainModel(hal.PreparedModelBase):
    """A prepared model whose requests may name buffers; the inner model gets pools."""

    def __init__(self, device: DomainDevice, prepared: hal.PreparedModel, model: Model) -> None:
        self.device, self._prepared, self.model = device, prepared, model

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        entry, pools = self.model.entry, list(request.pools)
        inputs, outputs = list(request.inputs), list(request.outputs)
        with self.device.domain.claim(self, request) as claim:
            for at, value in claim.inputs.items():
                inputs[at] = _lent(value.content, pools, value.shape)
            results: dict[int, NDArray] = {}
            for at, buffer in claim.outputs.items():
                operand = entry.operands[entry.outputs[at]]
                results[at] = in_pool(static_shape(buffer.shape) or (), operand.dtype.numpy)
                outputs[at] = _lent(results[at], pools, ())
            try:
                inner = hal.Request(tuple(inputs), tuple(outputs), tuple(pools))
                result = self._prepared.execute(inner, config)
            except OutputInsufficientSize as error:
                if results:
                    raise GeneralFailure(f"an output is larger than its buffer: {error}") from error
                raise
            for at, array in results.items():
                shapes = result.output_shapes
                claim.put(at, array, shapes[at].dimensions if shapes else array.shape)
            return result

    def close(self) -> None:
        self._prepared.close()


def in_pool(shape: tuple[int, ...], dtype: Any) -> NDArray:
    """An array in a separate pool, which lives as long as the array."""
    with MemoryPool.anonymous(max(1, math.prod(shape) * dtype.itemsize)) as pool:
        return pool.view(dtype, shape)


def _lent(array: NDArray, pools: list[hal.Memory], shape: tuple[int, ...]) -> hal.RequestArgument:
    place = pool_of(array)
    if place is None:
        raise GeneralFailure("a buffer without bytes cannot be lent")
    pools.append(place.memory)
    return hal.PoolArgument(DataLocation(len(pools) - 1, place.offset, array.nbytes), shape)
