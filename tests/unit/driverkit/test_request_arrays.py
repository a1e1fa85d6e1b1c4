"""The pools of a request as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import memory as memory_package
from penstock.driverkit.request_arrays import mapped_pools
from penstock.errors import GeneralFailure
from penstock.hal import Memory, Request
from penstock.memory.mapping import Mapping


def test_pools_are_released_if_a_later_pool_cannot_be_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[str] = []

    def map_memory(memory: Memory) -> Mapping:
        if memory.name == "unknown":
            raise GeneralFailure("no such memory")
        mapping = Mapping(np.zeros(memory.size, np.uint8))
        mapping.ended = lambda: released.append(memory.name)
        return mapping

    monkeypatch.setattr(memory_package, "map_memory", map_memory)
    pools = tuple(Memory(name, None, 8) for name in ("ashmem", "mmap_fd", "unknown"))
    with (
        pytest.raises(GeneralFailure, match="no such memory"),
        mapped_pools(Request((), (), pools)),
    ):
        pytest.fail("the block does not run")
    assert sorted(released) == ["ashmem", "mmap_fd"]
