"""An entry of a real engine's driver: a quantised network of the corpus in a cache directory, to be
attacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec import structs

import penstock
from penstock.cache.directory import CacheDirectory
from penstock.compilation.step_receipt import CacheOutcome
from penstock.driverkit.engine import EngineDevice
from penstock.errors import CacheError, GeneralFailure
from penstock.hal import Device, PrepareConfig, PreparedModelBase
from penstock.ir import NDArray
from tests.support_attacks import flip

NETWORK = "hello_world_int8"
FILES = 1, 1


class Recording:
    """Mixed into a device: keeps the configuration that it was last asked to load with."""

    asked = PrepareConfig()

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModelBase:
        self.asked = config
        loaded: PreparedModelBase = super().prepare_model_from_cache(config)  # type: ignore[misc]  # the device's
        return loaded


class EngineEntry:
    """The network compiled into *directory* with accuracy "relaxed"; each compile is another
    device's. A subclass makes the devices.

    What the reference device answers is what this network is expected to answer: it is small
    enough.
    """

    form = ""
    """What the driver calls the artefact."""

    def device(self) -> EngineDevice:
        """A device of its own: counters at zero."""
        raise NotImplementedError

    def recorded(self) -> EngineDevice:
        """As `device`, a `Recording` one."""
        raise NotImplementedError

    def __init__(self, corpus: Path, directory: Path) -> None:
        self.directory = directory
        self.model = penstock.load(corpus / "models" / "networks" / f"{NETWORK}.tflite")
        self.inputs = [np.array([[value]], np.int8) for value in range(-128, 128, 32)]
        self.expected = self._answers(["reference"], None)[0]
        assert self.compiled() == ("miss", "NoEntry")
        device = self.recorded()
        self._answers([device], directory)
        assert isinstance(device, Recording)
        self.config = device.asked

    def compiled(self) -> tuple[str, str]:
        """Outcome and reason's name of a compile that answers right; the driver's counters agree
        with them.
        """
        device = self.device()
        answers, outcome = self._answers([device], self.directory)
        assert all(map(np.array_equal, answers, self.expected))
        hit = outcome.outcome == "hit"
        assert (device.compiles, device.loads) == ((0, 1) if hit else (1, 0))
        assert outcome.saved != hit, outcome
        return outcome.outcome, outcome.reason.partition(":")[0]

    def attack(self, kind: type[CacheError], number: int, bits: Iterable[int]) -> int:
        """For each bit: the untouched entry hits, with it flipped the entry is refused for *kind*,
        the recompiled one hits, which is the next bit's untouched one. How many there were.
        """
        done = 0
        assert self.compiled() == ("hit", self.form)
        for bit in bits:
            fd = os.open(self.paths()[number], os.O_RDWR)
            try:
                flip(fd, bit)
            finally:
                os.close(fd)
            assert self.compiled() == ("miss", kind.__name__), (number, bit)
            assert self.compiled() == ("hit", self.form), (number, bit)
            done += 1
        return done

    def paths(self) -> list[Path]:
        """The model file and the data file."""
        return [p for p in sorted(self.directory.iterdir()) if p.name[64:] in {"10", "20"}]

    def bits(self) -> list[tuple[int, int]]:
        """(number of file, bit) of every bit of both files."""
        sizes = [path.stat().st_size for path in self.paths()]
        return [(number, bit) for number, size in enumerate(sizes) for bit in range(size * 8)]

    @contextmanager
    def opened(self) -> Iterator[tuple[EngineDevice, PrepareConfig]]:
        """A device, and what to ask it to load with, for as long as the block lasts."""
        with CacheDirectory(self.directory).open(self.config.token, FILES) as files:
            config = structs.replace(
                self.config, model_cache=files.model, data_cache=files.data, lock=files.lock
            )
            yield self.device(), config

    def refuse(self, kind: type[CacheError], bits: Iterable[tuple[int, int]]) -> int:
        """For each (file, bit): the untouched entry is verified, with the bit flipped the driver
        refuses it for *kind* without a call of the engine, and it is flipped back. How many there
        were.
        """
        done = 0
        with self.opened() as (device, config):
            handles = (*config.model_cache, *config.data_cache)
            for number, bit in bits:
                loaded = device.seal.load(config)
                assert loaded.model[0].nbytes > 0
                flip(handles[number].fd, bit)
                assert refusal(device, config) == kind.__name__, (number, bit)
                flip(handles[number].fd, bit)
                done += 1
            assert (device.compiles, device.loads) == (0, 0)
            device.prepare_model_from_cache(config).close()
            assert (device.compiles, device.loads) == (0, 1)
        return done

    def _answers(
        self, devices: Sequence[str | Device], cache: Path | None
    ) -> tuple[list[NDArray], CacheOutcome]:
        policy = penstock.Policy(accuracy="relaxed", allow_fallback=False)
        with penstock.compile(
            self.model,
            devices=devices,
            cache=cache,
            policy=policy,
            num_threads=1,
            shapes={str(self.model.inputs[0].name): (1, 1)},
        ) as compiled:
            (step,) = compiled.receipt.steps
            assert step.device in {d if isinstance(d, str) else d.name for d in devices}
            assert len(step.operations) == len(self.model.operations)
            answers = [np.array(compiled.run([given])[0]) for given in self.inputs]
        return answers, step.cache


def refusal(device: EngineDevice, config: PrepareConfig) -> str:
    """The name of the refusal; "accepted" without one."""
    try:
        device.prepare_model_from_cache(config).close()
    except GeneralFailure as error:
        return str(error).partition(":")[0]
    return "accepted"
