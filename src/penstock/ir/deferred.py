"""Constants that are decoded again when somebody asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.ir.model import Model
from penstock.ir.subgraph import ConstantPool


class Decoding:
    """The pools of the model that *decode* returns, which is called on first use. Thread-safe."""

    def __init__(self, decode: Callable[[], Model]) -> None:
        self._decode = decode
        self._pools: tuple[ConstantPool, ...] | None = None
        self._lock = threading.Lock()

    def pool(self, number: int) -> ConstantPool:
        """Pool *number* of the model. Raises the errors of *decode*."""
        with self._lock:
            if self._pools is None:
                self._pools = self._decode().pools
        return self._pools[number]


class DeferredPool(ConstantPool, frozen=True, eq=False, weakref=True):
    """Pool *number* of a `Decoding`, its *owner*. The bytes are decoded on first use."""

    number: int = 0

    @property  # type: ignore[misc]  # in the place of the field
    def view(self) -> memoryview:
        decoding: Decoding = self.owner
        return decoding.pool(self.number).view


def deferred(decoding: Decoding, number: int, kind: str) -> ConstantPool:
    """Pool *number* of *decoding*, of memory of that *kind*."""
    return DeferredPool(memoryview(b""), decoding, kind, number)
