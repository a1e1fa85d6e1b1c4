"""Constants that are decoded again when somebody asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

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


class DeferredPool(ConstantPool, frozen=True, eq=False, weakref=True, kw_only=True):
    """Pool *number* of *decoding*. Its bytes, and what owns them, are decoded on first use."""

    decoding: Decoding
    number: int

    @property  # type: ignore[misc]  # in the place of the field
    def view(self) -> memoryview:
        return self.decoding.pool(self.number).view

    @property  # type: ignore[misc]  # in the place of the field
    def owner(self) -> Any:
        return self.decoding.pool(self.number).owner


def deferred(decoding: Decoding, number: int, kind: str) -> ConstantPool:
    """Pool *number* of *decoding*, of memory of that *kind*."""
    return DeferredPool(memoryview(b""), None, kind, decoding=decoding, number=number)
