"""What the tests of caching share: a model, a token, compiles of the one through the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.cache.info import CacheInfo
from penstock.ir import Model
from tests.support_caching import CachingDevice
from tests.unit.partitioning.models import chain

TOKEN = bytes(range(32))
X = np.ones((2, 3), np.float32)
MODEL = chain(("ADD", "RELU"))


def compiled(device: Any, cache: Any, model: Model = MODEL, **more: Any) -> penstock.CompiledModel:
    devices = list(device) if isinstance(device, list | tuple) else [device]
    return penstock.compile(model, devices=devices, cache=cache, **more)


def outcome(device: Any, cache: Any, model: Model = MODEL, **more: Any) -> tuple[str, str]:
    """The first step's cache outcome; the answer is checked on the way."""
    with compiled(device, cache, model, **more) as made:
        made.run([X] * len(made.inputs))
        step = made.receipt.steps[0]
        assert made.receipt.compiles == sum(s.cache.outcome != "hit" for s in made.receipt.steps)
        return step.cache.outcome, step.cache.reason


def info(tmp_path: Path, token: bytes = TOKEN) -> CacheInfo:
    return CacheInfo(tmp_path / "cache", token)


def two(first: str = "one", second: str = "two", version: str = "1") -> tuple[CachingDevice, ...]:
    return (
        CachingDevice(first, kinds=frozenset({"ADD"}), version=version),
        CachingDevice(second, kinds=frozenset({"RELU"}), version=version),
    )
