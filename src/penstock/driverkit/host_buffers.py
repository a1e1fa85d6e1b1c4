"""What each engine's device has for requests: buffers, and the arrays of a request whose arguments
are all arrays. `penstock.driverkit.request_arrays` serves every other request.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from penstock import hal
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from penstock.hal import Buffer, BufferDesc, BufferRole
    from penstock.memory.domain import Claim, MemoryDomain


def lent_arrays(arguments: Sequence[hal.RequestArgument]) -> list[NDArray] | None:
    """The fast path: the arrays that the caller passed; None if any argument is not an array."""
    arrays = []
    for argument in arguments:
        if type(argument) is not hal.HostMemory:
            return None
        arrays.append(argument.array)
    return arrays


class HostBuffers:
    """A mixin for devices with buffers of known size, in aligned host memory unless `make_domain`
    is overridden.

    The attribute `device` of a prepared model is its device.
    """

    domain: MemoryDomain | None = None
    _domain_lock = threading.Lock()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        """As `Device.allocate`."""
        with self._domain_lock:
            if self.domain is None:
                self.domain = self.make_domain()
        return self.domain.allocate(desc, roles)

    def make_domain(self) -> MemoryDomain:
        """The device's memory, made when it is first asked for. It takes `interface_of`."""
        from penstock.memory.domain import MemoryDomain

        return MemoryDomain(self.interface_of, dynamic=False)

    def claimed(
        self, prepared: hal.PreparedModelBase, request: hal.Request
    ) -> AbstractContextManager[Claim | None]:
        """The buffers that *request* names, as a context manager; None if the device has none."""
        return nullcontext() if self.domain is None else self.domain.claim(prepared, request)

    def interface_of(self, prepared: object) -> Model | None:
        """The model, or its interface, of a prepared model of this device; None for others."""
        is_own = getattr(prepared, "device", None) is self
        model: Model | None = getattr(prepared, "model", None) if is_own else None
        return model
