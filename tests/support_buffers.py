"""Readers, writers and resizers on one device buffer together: what the soak and its short version
share.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import penstock
from penstock.errors import PenstockError
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand
from penstock.memory import DeviceBuffer

WIDTH: Final = 3
ROWS: Final = (1, 2, 5, 9, 33)
LIMIT: Final = 5.0
"""Seconds that a call may take; runs have it as their deadline."""


def doubling() -> Model:
    """y = x + x of any number of rows."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None, WIDTH), "x")
    y = Operand(DType.FLOAT32, (None, WIDTH), Lifetime.TEMPORARY_VARIABLE, "y")
    return b.build(b.operation("ADD", [x, x], [y]))


class Contest:
    """*seconds* of it on the device *name*: `calls` by kind, those that were `refused`, the
    `slowest`, and `problems`.
    """

    def __init__(self, name: str, *, isolate: bool, seconds: float, seed: int) -> None:
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.slowest = 0.0
        self.problems: list[str] = []
        self._seed, self._lock = seed, threading.Lock()
        policy = penstock.Policy(allow_fallback=False)
        with (
            penstock.compile(
                doubling(), devices=[name], cache=None, policy=policy, isolate=isolate
            ) as compiled,
            compiled.allocate(inputs=["x"], outputs=["y"]) as contested,
            compiled.allocate(inputs=["x"]) as calm,
        ):
            if contested.device is None or calm.device is None:
                self.problems.append(f"a buffer is not on the device: {contested.fallback_reason}")
                return
            calm.copy_from(_value(7, 11.0))
            contested.copy_from(_value(1, 1.0))
            self._until = time.monotonic() + seconds
            self._run(compiled, contested, calm)
            contested.copy_from(_value(4, 2.0))
            if not np.array_equal(compiled.run([contested])[0], _value(4, 4.0)):
                self.problems.append("the buffer is not usable afterwards")

    def _run(self, compiled: Any, contested: DeviceBuffer, calm: DeviceBuffer) -> None:
        def read_calm(_: random.Random) -> None:
            if not np.array_equal(compiled.run([calm], timeout=LIMIT)[0], _value(7, 22.0)):
                self.problems.append("who reads what nobody writes got another value")
            if not np.array_equal(calm.numpy(), _value(7, 11.0)):
                self.problems.append("a copy of what nobody writes has another value")

        def write(chance: random.Random) -> None:
            contested.copy_from(_value(chance.choice(ROWS), float(chance.randrange(1, 100))))

        def run_into(chance: random.Random) -> None:
            given = _value(chance.choice(ROWS), float(chance.randrange(1, 100)))
            compiled.run([given], out=[contested], timeout=LIMIT)

        def read(_: random.Random) -> None:
            self._check_whole(compiled.run([contested], timeout=LIMIT)[0])

        def copy_out(_: random.Random) -> None:
            self._check_whole(contested.numpy())

        def come_and_go(chance: random.Random) -> None:
            with compiled.allocate(inputs=["x"]) as other:
                value = _value(chance.choice(ROWS), 3.0)
                other.copy_from(value)
                if not np.array_equal(other.numpy(), value):
                    self.problems.append("a buffer of one's own has another value")

        kinds = [read_calm, read_calm, write, run_into, read, copy_out, come_and_go]
        threads = [
            threading.Thread(target=self._repeat, args=(kind, number), daemon=True)
            for number, kind in enumerate(kinds)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._until - time.monotonic()) + 4 * LIMIT)
        if any(thread.is_alive() for thread in threads):
            self.problems.append("a call does not return")

    def _repeat(self, call: Callable[[random.Random], None], number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        alone = call.__name__ in {"read_calm", "come_and_go"}
        while time.monotonic() < self._until and not self.problems:
            began = time.monotonic()
            try:
                call(chance)
            except PenstockError as error:
                # What others write meanwhile may be of another size, or not there at all.
                self.refused[type(error).__name__] += 1
                if alone:
                    self.problems.append(f"{call.__name__}: {type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001  # told by the thread that waits
                self.problems.append(f"{call.__name__} raised {error!r}")
            with self._lock:
                self.calls[call.__name__] += 1
                self.slowest = max(self.slowest, time.monotonic() - began)

    def _check_whole(self, value: NDArray) -> None:
        if value.size and not (value == value.flat[0]).all():
            self.problems.append(f"a value of shape {value.shape} is made of several")


def _value(rows: int, number: float) -> NDArray:
    return np.full((rows, WIDTH), number, np.float32)
