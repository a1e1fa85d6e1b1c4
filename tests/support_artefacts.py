"""A network whose artefacts drivers over an engine keep in cache files, and those files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from penstock import hal
from penstock.ir import DType, Model, ModelBuilder, NDArray

TOKEN: Final = bytes(range(32))
BINDING: Final = bytes(range(32, 64))
X: Final = np.linspace(-2, 2, 2 * 40, dtype=np.float32).reshape(2, 40)
WEIGHTS: Final = np.random.default_rng(5).standard_normal((30, 40)).astype(np.float32)


def network() -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2, 40), "x")
    (y,) = b.operation(
        "FULLY_CONNECTED", [x, b.constant(WEIGHTS), None], [(DType.FLOAT32, (2, 30))]
    )
    (z,) = b.operation("RELU", [y], [(DType.FLOAT32, (2, 30))])
    return b.build([z, x])


def answer() -> NDArray:
    result: NDArray = np.maximum(X @ WEIGHTS.T, 0)
    return result


@contextmanager
def cache_files(folder: Path, files: tuple[int, int]) -> Iterator[hal.PrepareConfig]:
    """A configuration with the cache files of *folder*, made where there are none."""
    names = [f"model{i}" for i in range(files[0])] + [f"data{i}" for i in range(files[1])]
    fds = [os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in names]
    handles = tuple(map(hal.CacheHandle, fds))
    try:
        yield hal.PrepareConfig(
            token=TOKEN, binding=BINDING, model_cache=handles[: files[0]],
                data_cache=handles[files[0] :]
        )  # fmt: skip
    finally:
        for fd in fds:
            os.close(fd)


def run(prepared: hal.PreparedModelBase) -> NDArray:
    out, same = np.empty((2, 30), np.float32), np.empty_like(X)
    request = hal.Request((hal.HostMemory(X),), (hal.HostMemory(out), hal.HostMemory(same)))
    prepared.execute(request, hal.ExecutionConfig())
    assert np.array_equal(same, X)
    return out


def flip(place: int) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[place] ^= 0x10
        return bytes(changed)

    return damage


DAMAGES: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "a bit of the seal": ("SealBroken", flip(100)),
    "a bit of the payload": ("SealBroken", flip(-1)),
    "a byte less": ("WrongLength", lambda content: content[:-1]),
    "a byte more": ("WrongLength", lambda content: content + b"\0"),
}
"""What is done to a cache file, and the reason by which it is refused."""
